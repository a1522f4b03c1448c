# SPDX-License-Identifier: Apache-2.0
"""The benchmarks' timing, on a device whose times are known: long enough, in turn, free of host time, alike for all when clocks drift."""

import math

import pytest
from fake_clock import FakeClock

from bench import device_state
from bench.timing import MOST_LAUNCHES, TARGET_US, WARM_ROUNDS, WARM_US, Work, launches_for, measure


@pytest.mark.parametrize("launch_us", (1.0, 14.0, 120.0, 800.0, 5000.0))
@pytest.mark.parametrize("sets", (2, 5, 32))
def test_a_timing_lasts_long_enough_and_takes_whole_turns(launch_us, sets):
    launches = launches_for(launch_us, sets)
    assert launches * launch_us >= TARGET_US or launches == MOST_LAUNCHES
    assert launches < sets or launches % sets == 0 or launches == MOST_LAUNCHES
    assert (launches - sets) * launch_us < TARGET_US


def timed(clock, times, rounds=5, sets=4, **options):
    works = {name: Work(clock.work(name, us), sets, 10.0) for name, us in times.items()}
    return measure(clock, works, rounds, **options)


def test_times_are_those_of_the_device_not_of_the_host():
    """A launch costs the host more than the shortest kernel takes."""
    times = {"short": 7.0, "long": 900.0}
    timings = timed(FakeClock(host_us=25.0), times)
    for name, us in times.items():
        assert timings[name].median_us == pytest.approx(us)
        assert timings[name].graph and timings[name].launches == launches_for(us, 4)


def test_the_device_never_waits_for_the_host_within_a_round():
    clock = FakeClock()
    timed(clock, {"a": 100.0, "b": 200.0})
    launches = [entry for entry in clock.log if entry[0] in "ab"]
    assert all(ahead for _, _, ahead in launches[-100:])


def test_contenders_run_in_turn_and_each_is_the_first_as_often():
    clock, rounds = FakeClock(), 6
    timed(clock, {"a": 1500.0, "b": 1500.0, "c": 1500.0}, rounds)
    tail = [name for name, _, _ in clock.log][-6 * 3 * 2:]
    firsts = tail[::6]
    assert sorted(firsts) == sorted("abc" * 2)
    assert [set(tail[start:start + 6]) for start in range(0, len(tail), 6)] == [set("abc")] * 6


def test_a_drifting_clock_meets_all_alike():
    slowing = FakeClock(slower=lambda now: 1 + now / 1e6)
    timings = timed(slowing, {"a": 100.0, "b": 100.0, "c": 200.0}, rounds=12)
    assert timings["a"].slowest_us > 1.03 * timings["a"].fastest_us
    assert timings["a"].median_us == pytest.approx(timings["b"].median_us, rel=0.01)
    assert timings["c"].median_us == pytest.approx(2 * timings["a"].median_us, rel=0.01)


def test_rounds_in_front_are_not_timed():
    """The first WARM_US are 10 times slower: none of them may be seen."""
    slow_until = 1.4 * WARM_US
    timings = timed(FakeClock(slower=lambda now: 10.0 if now < slow_until / 2 else 1.0), {"a": 100.0})
    assert timings["a"].slowest_us == pytest.approx(100.0)


def test_every_round_is_observed_while_the_device_is_busy():
    clock, busy = FakeClock(), []
    timed(clock, {"a": 5000.0}, rounds=4, observe=lambda: busy.append(clock.device > clock.host))
    assert len(busy) == 4 + max(WARM_ROUNDS, math.ceil(WARM_US / 5000)) and all(busy)


def test_what_cannot_be_captured_is_timed_without_a_graph():
    timings = timed(FakeClock(host_us=1.0, capturable=False), {"a": 300.0})
    assert not timings["a"].graph and timings["a"].median_us == pytest.approx(300.0)


def test_nothing_to_time_is_no_error():
    assert measure(FakeClock(), {}, 3) == {}


def test_states_are_summed_up_and_taken_once():
    readings = iter([device_state.State(1980, 3201, 310.5, 41, 0x0), device_state.State(1605, 3201, 698.0, 52, 0x4),
                     device_state.State(1700, 3201, 650.0, 50, 0x20)])
    watch = device_state.Watch(lambda: next(readings))
    for _ in range(3):
        watch()
    assert watch.take() == {"sm_mhz": 1700, "lowest_sm_mhz": 1605, "memory_mhz": 3201, "power_w": 698.0, "temperature_c": 52,
                            "throttle": "0x24", "readings": 3}
    assert watch.take() is None


def test_a_device_without_readings_is_told_once_and_harms_nothing():
    def fails():
        raise OSError("nvmlDeviceGetPowerUsage gives NVML error 3")
    watch = device_state.Watch(fails)
    watch()
    watch()
    assert watch.take() is None and "NVML error 3" in watch.problem


def test_without_nvml_the_watch_says_why(monkeypatch):
    def missing(name):
        raise OSError(f"{name}: cannot open shared object file")
    monkeypatch.setattr(device_state.ctypes, "CDLL", missing)
    watch = device_state.watch("GPU-0")
    watch()
    assert watch.take() is None and "libnvidia-ml.so.1" in watch.problem and watch.driver is None


class FakeNvml:
    """NVML's functions, which fill in what they are given a pointer to."""

    def __init__(self, values, refused=None):
        self.values, self.refused = values, refused

    def __getattr__(self, name):
        def function(*arguments):
            if name == self.refused:
                return 3
            value = self.values.get((name, arguments[1]) if name == "nvmlDeviceGetClockInfo" else name)
            if name == "nvmlSystemGetDriverVersion":
                arguments[0].value = value
            elif value is not None:
                arguments[-1]._obj.value = value
            return 0
        return function


NVML = {
    "nvmlSystemGetDriverVersion": b"580.159.03", ("nvmlDeviceGetClockInfo", 1): 1755, ("nvmlDeviceGetClockInfo", 2): 3201,
    "nvmlDeviceGetPowerUsage": 612_345, "nvmlDeviceGetTemperature": 55, "nvmlDeviceGetCurrentClocksThrottleReasons": 4,
}


def test_states_are_read_through_nvml(monkeypatch):
    monkeypatch.setattr(device_state.ctypes, "CDLL", lambda name: FakeNvml(NVML))
    watch = device_state.watch("GPU-0")
    watch()
    assert watch.driver == "580.159.03" and not watch.problem
    assert watch.take() == {"sm_mhz": 1755, "lowest_sm_mhz": 1755, "memory_mhz": 3201, "power_w": 612.345, "temperature_c": 55,
                            "throttle": "0x4", "readings": 1}


@pytest.mark.parametrize("refused", ("nvmlInit_v2", "nvmlDeviceGetHandleByUUID", "nvmlDeviceGetPowerUsage"))
def test_what_nvml_refuses_is_told(monkeypatch, refused):
    monkeypatch.setattr(device_state.ctypes, "CDLL", lambda name: FakeNvml(NVML, refused))
    watch = device_state.watch("GPU-0")
    watch()
    assert watch.take() is None and watch.problem == f"{refused} gives NVML error 3"
