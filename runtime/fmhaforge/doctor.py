# SPDX-License-Identifier: Apache-2.0
"""A look at the machine: Python, driver, devices, and installed packages that are known not to go together."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata

from .bundle import Bundle
from .driver import Driver
from .errors import FmhaForgeError

OK, WARNING, PROBLEM = "ok", "warning", "problem"

MINIMUM_DRIVER = 12000
"""The oldest CUDA version of the driver whose library functions the runtime uses."""

PACKAGES = ("fmhaforge", "cuda-python", "cuda-bindings", "nvidia-cutlass-dsl", "nvidia-cutlass-dsl-libs-base",
            "nvidia-cutlass-dsl-libs-core", "nvidia-cutlass-dsl-libs-cu12", "nvidia-cutlass-dsl-libs-cu13",
            "nvidia-cuda-nvcc-cu12", "nvidia-cuda-nvcc", "ziglang", "scons")
"""What the runtime and the build use; absence is no problem for the runtime."""

_DSL = "nvidia-cutlass-dsl"
_FLAVOURS = (f"{_DSL}-libs-cu12", f"{_DSL}-libs-cu13")


@dataclass(frozen=True)
class Note:
    """One line of the report: `status` is ok, warning or problem."""

    status: str
    subject: str
    detail: str


def diagnose(driver: Driver, bundle: Bundle | None = None, installed: Callable[[str], str | None] | None = None) -> tuple[Note, ...]:
    """Looks around and reports; raises nothing. `bundle` adds what it serves on each device."""
    return (*_python(), *_packages(installed or installed_version), *_driver(driver, bundle))


def installed_version(name: str) -> str | None:
    """The version of an installed distribution, or None."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _python() -> Iterator[Note]:
    yield Note(OK, "python", f"{platform.python_version()} on {platform.system()} {platform.machine()}")


def _packages(installed: Callable[[str], str | None]) -> Iterator[Note]:
    versions = {name: version for name in PACKAGES if (version := installed(name)) is not None}
    for name, version in versions.items():
        yield Note(OK, name, version)
    if "cuda-bindings" not in versions:
        yield Note(PROBLEM, "cuda-bindings", "is not installed, so nothing can be run; install cuda-python")
    yield from _conflicts(versions)


def _conflicts(versions: Mapping[str, str]) -> Iterator[Note]:
    both = [name for name in _FLAVOURS if name in versions]
    if len(both) > 1:
        yield Note(PROBLEM, _DSL, f"{' and '.join(both)} overwrite each other's files; uninstall both and install one: the build uses cu12")
    parts = {name: version for name, version in versions.items() if name.startswith(_DSL)}
    if len(set(parts.values())) > 1:
        found = ", ".join(f"{name} {version}" for name, version in parts.items())
        yield Note(PROBLEM, _DSL, f"parts of different versions are mixed ({found}); reinstall nvidia-cutlass-dsl")
    if _DSL in versions and not both and f"{_DSL}-libs-base" in versions:
        yield Note(WARNING, _DSL, "neither libs-cu12 nor libs-cu13 is installed; install nvidia-cutlass-dsl-libs-cu12 to build")


def _driver(driver: Driver, bundle: Bundle | None) -> Iterator[Note]:
    try:
        version = driver.version()
        count = driver.device_count()
    except FmhaForgeError as error:
        yield Note(WARNING, "driver", f"{error}; queries and builds work without one")
        return
    if version < MINIMUM_DRIVER:
        yield Note(PROBLEM, "driver", f"serves CUDA {_dotted(version)}; {_dotted(MINIMUM_DRIVER)} or newer is needed")
    else:
        yield Note(OK, "driver", f"CUDA {_dotted(version)}")
    if count == 0:
        yield Note(WARNING, "devices", "the driver sees no device; check CUDA_VISIBLE_DEVICES")
    for device in range(count):
        yield _device(driver, device, bundle)


def _device(driver: Driver, device: int, bundle: Bundle | None) -> Note:
    try:
        sm = driver.sm(device)
        limit = driver.attribute(device, "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN")
        detail = f"{driver.device_name(device)}, SM {sm}, {limit} bytes of shared memory a block"
    except FmhaForgeError as error:
        return Note(PROBLEM, f"device {device}", str(error))
    if bundle is None:
        return Note(OK, f"device {device}", detail)
    served = bundle.metadata.arch_table.get(sm, ())
    rows = [row for row in bundle.metadata.rows if row.sm in served]
    if not rows:
        return Note(WARNING, f"device {device}", f"{detail}; the bundle has no row for it")
    return Note(OK, f"device {device}", f"{detail}; the bundle serves it by {len({row.variant for row in rows})} variants")


def _dotted(version: int) -> str:
    return f"{version // 1000}.{version % 1000 // 10}"
