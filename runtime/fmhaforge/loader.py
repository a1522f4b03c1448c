# SPDX-License-Identifier: Apache-2.0
"""Rows made ready on devices: loaded once, shared by all threads, never unloaded by themselves."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from . import launch
from .checked_launch import FaultReports
from .driver import Driver
from .errors import CaptureError, DriverError, EmptyLibraryError, LoadError
from .metadata import Row
from .query import ROUTE_PTX

_NOT_FOUND = "CUDA_ERROR_NOT_FOUND"
_COUNT_SINCE = 12040


@dataclass(frozen=True)
class Kernel:
    """A row that can be launched on `device`: its kernel's handle and compiled plan."""

    row: Row
    device: int
    library: int
    handle: int
    sm_count: int
    plan: launch.CompiledPlan


class Loader:
    """Loads rows through the driver. A failed load leaves nothing behind and can be tried again.

    `read(path, sha256)` gives the verified bytes of a file of the bundle. `reports` holds what checked kernels write to.
    """

    def __init__(self, driver: Driver, read: Callable[[str, str], bytes]):
        self._driver = driver
        self._read = read
        self.reports = FaultReports(driver)
        self._guard = threading.Lock()
        self._locks: dict[tuple, threading.Lock] = {}
        self._kernels: dict[tuple, Kernel] = {}
        self._ready: dict[tuple, Kernel] = {}

    def prepare(self, row: Row, route: str, device: int, context: int, stream: int, preflight: str) -> Kernel:
        """The kernel of a row, loaded into the current context, whose handle is `context`, of `device`.

        `stream` is the one about to be used: when it captures a graph, a first load is refused with CaptureError, which names
        the function `preflight`. Raises LoadError when the row cannot be loaded.
        """
        home = (row.variant, row.sm, route, device)
        key = (*home, self._driver.context_id(context))
        kernel = self._ready.get(key)
        if kernel is not None:
            return kernel
        with self._lock_of(home):
            kernel = self._ready.get(key)
            if kernel is None:
                self._refuse_capture(row, stream, preflight)
                fresh = home not in self._kernels
                kernel = self._load(row, route, device) if fresh else self._kernels[home]
                self._finish(kernel, fresh)
                self._kernels[home] = kernel
                self._ready[key] = kernel  # published last, when everything about it is done
        return kernel

    def _lock_of(self, home: tuple) -> threading.Lock:
        """Different kernels load at the same time, one kernel once."""
        with self._guard:
            return self._locks.setdefault(home, threading.Lock())

    def loaded(self) -> tuple[Kernel, ...]:
        """The kernels that are loaded now."""
        return tuple(self._kernels.copy().values())

    def unload(self) -> None:
        """Unloads everything. No launch or graph may be using the kernels any more; later calls load again."""
        with self._guard:
            for home, lock in self._locks.items():
                with lock:
                    self._unload_one(home)
        self.reports.free()

    def _unload_one(self, home: tuple) -> None:
        kernel = self._kernels.pop(home, None)
        if kernel is None:
            return
        for key in [key for key in self._ready.copy() if key[:-1] == home]:
            del self._ready[key]
        with self._driver.context_of(kernel.device):
            self._driver.unload_library(kernel.library)

    def _refuse_capture(self, row: Row, stream: int, preflight: str) -> None:
        if self._driver.is_capturing(stream):
            raise CaptureError(row.label, f"is not loaded yet and the stream captures a graph; call {preflight}(stream) before "
                                          "the capture begins")

    def _load(self, row: Row, route: str, device: int) -> Kernel:
        driver = self._driver
        limit = driver.attribute(device, "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN")
        used = row.smem_bytes + row.static_smem_bytes
        if used > limit:
            raise LoadError(row.label, f"needs {used} bytes of shared memory a block, device {device} gives {limit}; build a smaller tile")
        jit = route == ROUTE_PTX
        image = self._read(row.ptx, row.ptx_sha256) if jit else self._read(row.cubin, row.cubin_sha256)
        name = row.ptx if jit else row.cubin
        try:
            library = driver.load_library(image, jit)
        except DriverError as error:
            raise LoadError(row.label, f"device {device} (SM {driver.sm(device)}) refuses {name}: {error}") from error
        try:
            handle = self._find(row, library, name, device)
            driver.set_dynamic_smem(handle, device, row.smem_bytes)
        except BaseException:
            driver.unload_library(library)
            raise
        return Kernel(row, device, library, handle, driver.attribute(device, "MULTIPROCESSOR_COUNT"), launch.compiled(row.plan))

    def _find(self, row: Row, library: int, name: str, device: int) -> int:
        empty = EmptyLibraryError(row.label, f"{name} loaded on device {device} (SM {self._driver.sm(device)}) but holds no kernel "
                                             "for it; the bundle is damaged or was built for another device")
        if self._driver.version() >= _COUNT_SINCE and self._driver.kernel_count(library) == 0:
            raise empty
        try:
            return self._driver.kernel(library, row.symbol)
        except DriverError as error:
            if error.status == _NOT_FOUND:
                raise empty from error
            raise LoadError(row.label, f"{name} gives no kernel {row.symbol}: {error}") from error

    def _finish(self, kernel: Kernel, fresh: bool) -> None:
        try:
            self._driver.finish_loading(kernel.handle)
        except BaseException as error:
            if fresh:
                self._driver.unload_library(kernel.library)
            if isinstance(error, DriverError):
                raise LoadError(kernel.row.label, f"cannot be loaded on device {kernel.device}: {error}") from error
            raise
