# SPDX-License-Identifier: Apache-2.0
"""Clocks, power and temperature of the device while it works, read through NVML: informational, and left out where NVML is not there."""

from __future__ import annotations

import ctypes
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

_SM_CLOCK, _MEMORY_CLOCK, _CORE_TEMPERATURE = 1, 2, 0


@dataclass(frozen=True)
class State:
    """One reading: MHz, watts, degrees Celsius, and NVML's bits of what holds the clock down (0x4 is the power limit)."""

    sm_mhz: int
    memory_mhz: int
    power_w: float
    temperature_c: int
    throttle: int


class Watch:
    """Collects readings: call it while the device is busy. Never fails; `problem` says why there are none.

    `driver` is the version of the driver, such as 580.65.06, where it is known.
    """

    def __init__(self, read: Callable[[], State] | None, problem: str = "", driver: str | None = None):
        self._read = read
        self._states: list[State] = []
        self.problem = problem
        self.driver = driver

    def __call__(self) -> None:
        if self._read is not None:
            try:
                self._states.append(self._read())
            except OSError as error:
                self._read, self.problem = None, str(error)

    def take(self) -> dict[str, Any] | None:
        """What was read since the last time, summed up; None if nothing was."""
        states, self._states = self._states, []
        return summary(states) if states else None


def summary(states: Sequence[State]) -> dict[str, Any]:
    """Median and lowest clock, most power, highest temperature, and everything that held the clock down at any time."""
    clocks, throttle = [state.sm_mhz for state in states], 0
    for state in states:
        throttle |= state.throttle
    return {
        "sm_mhz": statistics.median(clocks), "lowest_sm_mhz": min(clocks), "memory_mhz": max(state.memory_mhz for state in states),
        "power_w": max(state.power_w for state in states), "temperature_c": max(state.temperature_c for state in states),
        "throttle": f"{throttle:#x}", "readings": len(states),
    }


def watch(uuid: str) -> Watch:
    """A watch of the device with that UUID (`GPU-...`)."""
    try:
        return Watch(*_reader(uuid))
    except (OSError, AttributeError) as error:
        return Watch(None, str(error))


def _reader(uuid: str) -> tuple[Callable[[], State], str, str]:
    """What makes a Watch: a function that reads the device's state, no problem, and the driver's version.

    Raises OSError or AttributeError when NVML cannot be used.
    """
    nvml = ctypes.CDLL("libnvidia-ml.so.1")

    def call(name: str, *arguments: Any) -> None:
        status = getattr(nvml, name)(*arguments)
        if status:
            raise OSError(f"{name} gives NVML error {status}")

    def number(name: str, *arguments: Any, kind: Any = ctypes.c_uint) -> int:
        value = kind()
        call(name, device, *arguments, ctypes.byref(value))
        return value.value

    call("nvmlInit_v2")
    version, device = ctypes.create_string_buffer(80), ctypes.c_void_p()
    call("nvmlSystemGetDriverVersion", version, ctypes.c_uint(len(version)))
    call("nvmlDeviceGetHandleByUUID", uuid.encode(), ctypes.byref(device))

    def read() -> State:
        return State(
            sm_mhz=number("nvmlDeviceGetClockInfo", _SM_CLOCK), memory_mhz=number("nvmlDeviceGetClockInfo", _MEMORY_CLOCK),
            power_w=number("nvmlDeviceGetPowerUsage") / 1000, temperature_c=number("nvmlDeviceGetTemperature", _CORE_TEMPERATURE),
            throttle=number("nvmlDeviceGetCurrentClocksThrottleReasons", kind=ctypes.c_ulonglong),
        )
    return read, "", version.value.decode()
