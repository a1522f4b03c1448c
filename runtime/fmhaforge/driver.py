# SPDX-License-Identifier: Apache-2.0
"""Every call into the CUDA driver, in one thin class over `cuda.bindings.driver`.

`Driver(module)` takes any object with the functions and enums of `cuda.bindings.driver` that are used here, so that tests can
put a recording one in its place. Handles are plain integers outside this file. Nothing is imported before the first call.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from .errors import DriverError, DriverMissingError, ForkedError
from .plan import TENSOR_MAP_ALIGNMENT, TENSOR_MAP_BYTES

SPECIAL_STREAMS = (0, 1, 2)
"""The default stream, the legacy stream and the per-thread stream: handles that belong to whatever context is current."""

_SWIZZLE_BYTES = {0: "NONE", 32: "32B", 64: "64B", 128: "128B"}
_PROMOTION_BYTES = {0: "NONE", 64: "L2_64B", 128: "L2_128B", 256: "L2_256B"}
_TENSOR_MAP_DTYPES = {"float16": "FLOAT16", "int32": "INT32"}
_JIT_LOG_BYTES = 8192
_TENSOR_MAP_SINCE = 12000
_POINTER = ctypes.c_void_p
_INT = ctypes.c_int
_ENCODE_TILED = ctypes.CFUNCTYPE(_INT, _POINTER, _INT, ctypes.c_uint32, _POINTER, _POINTER, _POINTER, _POINTER, _POINTER, _INT, _INT, _INT, _INT)
"""cuTensorMapEncodeTiled(map, type, rank, address, dims, strides, box, element strides, interleave, swizzle, promotion, fill)"""


@dataclass(frozen=True)
class Place:
    """A device and one of its contexts; `is_current` says whether that is current in this thread already."""

    device: int
    context: int
    is_current: bool


class Driver:
    """The CUDA driver. Methods raise DriverError when a call fails, DriverMissingError when there is no driver."""

    def __init__(self, module: Any = None):
        self._module = module
        self._initialised = False
        self._pid = 0
        self._lock = threading.Lock()
        self._device_count: int | None = None
        self._encoder: Callable[..., int] | None = None
        self._primary: dict[int, int] = {}
        self._attributes: dict[tuple[int, str], int] = {}

    # -- the module ---------------------------------------------------------------------------------------------------------

    @property
    def module(self) -> Any:
        """The bindings; imported, and the driver initialised, on first use."""
        if not self._initialised:
            with self._lock:
                if not self._initialised:
                    self._module = self._module or _bindings()
                    self._checked("cuInit", self._invoke("cuInit", 0))
                    self._pid = os.getpid()
                    self._initialised = True
        return self._module

    def _invoke(self, name: str, *arguments: Any) -> tuple:
        function = getattr(self._module, name, None)
        if function is None:
            raise DriverMissingError(f"cuda.bindings.driver has no {name}; install cuda-python 12.8 or newer")
        try:
            return function(*arguments)
        except (RuntimeError, OSError, ImportError) as error:
            raise DriverMissingError(f"no CUDA driver can be used ({name}: {str(error).rstrip('.')}); install an NVIDIA driver for "
                                     "CUDA 12.0 or newer, and run where a GPU is visible") from error

    def _checked(self, name: str, result: tuple, detail: str = "") -> Any:
        status = result[0]
        if int(status) != 0:
            raise DriverError(name, int(status), getattr(status, "name", str(status)), detail)
        return result[1] if len(result) == 2 else result[1:]

    def call(self, name: str, *arguments: Any) -> Any:
        """Calls the driver function `name` and returns its result without the status."""
        if not self._initialised:
            _ = self.module
        return self._checked(name, self._invoke(name, *arguments))

    # -- devices and contexts -----------------------------------------------------------------------------------------------

    def version(self) -> int:
        """The CUDA version the driver supports, such as 12080 for 12.8."""
        return int(self.call("cuDriverGetVersion"))

    def device_count(self) -> int:
        """How many CUDA devices this process sees; asked once."""
        if self._device_count is None:
            self._device_count = int(self.call("cuDeviceGetCount"))
        return self._device_count

    def device_name(self, device: int) -> str:
        """The marketing name of the device."""
        name = self.call("cuDeviceGetName", 256, self.call("cuDeviceGet", device))
        return name.split(b"\0", 1)[0].decode("utf-8", "replace")

    def attribute(self, device: int, name: str) -> int:
        """The device attribute CU_DEVICE_ATTRIBUTE_<name>; asked once per device."""
        key = (device, name)
        if key not in self._attributes:
            attribute = getattr(self.module.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
            self._attributes[key] = int(self.call("cuDeviceGetAttribute", attribute, self.call("cuDeviceGet", device)))
        return self._attributes[key]

    def sm(self, device: int) -> int:
        """The compute capability of the device as one number: 90 for 9.0."""
        return 10 * self.attribute(device, "COMPUTE_CAPABILITY_MAJOR") + self.attribute(device, "COMPUTE_CAPABILITY_MINOR")

    def primary_context(self, device: int) -> int:
        """The primary context of the device, retained once per process and kept."""
        with self._lock:
            if device not in self._primary:
                self._primary[device] = int(self._checked(
                    "cuDevicePrimaryCtxRetain", self._invoke("cuDevicePrimaryCtxRetain",
                                                             self._checked("cuDeviceGet", self._invoke("cuDeviceGet", device)))))
            return self._primary[device]

    def context_id(self, context: int) -> int:
        """The number of a context that no other one in this process ever has. Its handle may be given to another one when it is destroyed."""
        return int(self.call("cuCtxGetId", context))

    def place(self, stream: int, device: int | None = None) -> Place:
        """Where work on `stream` runs.

        A stream that was created has a context, which decides. The special streams 0, 1 and 2 belong to the thread's current
        context if it is one of the wanted `device` (None: any), else to the primary context of that device (None: device 0).
        Raises ForkedError in a child that was forked after the driver had been used.
        """
        if self._initialised and self._pid != os.getpid():
            raise ForkedError("CUDA was used before fork() and does not work in the child; start the child by spawn, or fork first")
        current = int(self.call("cuCtxGetCurrent"))
        if stream not in SPECIAL_STREAMS:
            context = int(self.call("cuStreamGetCtx", stream))
            return Place(self._context_device(context, current), context, context == current)
        of_current = int(self.call("cuCtxGetDevice")) if current else None
        wanted = (of_current or 0) if device is None else device
        if of_current == wanted:
            return Place(wanted, current, True)
        return Place(wanted, self.primary_context(wanted), False)

    def _context_device(self, context: int, current: int) -> int:
        if context == current:
            return int(self.call("cuCtxGetDevice"))
        self.call("cuCtxPushCurrent", context)
        try:
            return int(self.call("cuCtxGetDevice"))
        finally:
            self.call("cuCtxPopCurrent")

    @contextmanager
    def current(self, place: Place) -> Iterator[None]:
        """Makes the context of a place current for a block."""
        if place.is_current:
            yield
            return
        self.call("cuCtxPushCurrent", place.context)
        try:
            yield
        finally:
            self.call("cuCtxPopCurrent")

    @contextmanager
    def context_of(self, device: int) -> Iterator[None]:
        """Makes a context of the device current for a block: the thread's own if it is one, else the primary context."""
        with self.current(self.place(0, device)):
            yield

    # -- streams and pointers -----------------------------------------------------------------------------------------------

    def is_capturing(self, stream: int) -> bool:
        """Whether the stream captures a graph. The legacy stream counts as capturing while a blocking stream captures."""
        status, *rest = self._invoke("cuStreamIsCapturing", stream)
        if getattr(status, "name", "") == "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT":
            return True
        return int(self._checked("cuStreamIsCapturing", (status, *rest))) != 0

    def pointer_device(self, pointer: int) -> int | None:
        """The device that the memory at `pointer` belongs to, or None when CUDA does not know the address."""
        return self._of_pointer("DEVICE_ORDINAL", pointer)

    def allocation(self, pointer: int) -> int | None:
        """The number of the allocation at `pointer`, that no other one in this process ever has; None when CUDA does not know the address."""
        return self._of_pointer("BUFFER_ID", pointer)

    def _of_pointer(self, name: str, pointer: int) -> int | None:
        attribute = getattr(self.module.CUpointer_attribute, f"CU_POINTER_ATTRIBUTE_{name}")
        status, *rest = self._invoke("cuPointerGetAttribute", attribute, pointer)
        if getattr(status, "name", "") == "CUDA_ERROR_INVALID_VALUE":
            return None
        return int(self._checked("cuPointerGetAttribute", (status, *rest)))

    def pointer_is_shared(self, pointer: int) -> bool:
        """Whether the memory at `pointer` is managed or page-locked host memory, which every device reaches."""
        attributes = self.module.CUpointer_attribute
        kind = int(self.call("cuPointerGetAttribute", attributes.CU_POINTER_ATTRIBUTE_MEMORY_TYPE, pointer))
        if kind == int(self.module.CUmemorytype.CU_MEMORYTYPE_HOST):
            return True
        return bool(int(self.call("cuPointerGetAttribute", attributes.CU_POINTER_ATTRIBUTE_IS_MANAGED, pointer)))

    # -- libraries ----------------------------------------------------------------------------------------------------------

    def load_library(self, image: bytes, jit: bool = False) -> int:
        """Loads a cubin, or with `jit` a PTX text that the driver assembles; returns the library's handle."""
        _ = self.module
        if not jit:
            return int(self._checked("cuLibraryLoadData", self._invoke("cuLibraryLoadData", image, None, None, 0, None, None, 0)))
        options = self.module.CUjit_option
        log = bytearray(_JIT_LOG_BYTES)
        result = self._invoke("cuLibraryLoadData", image + b"\0", [options.CU_JIT_ERROR_LOG_BUFFER,
                                                                 options.CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES], [log, len(log)], 2,
                              None, None, 0)
        return int(self._checked("cuLibraryLoadData", result, log.split(b"\0", 1)[0].decode("utf-8", "replace").strip()))

    def unload_library(self, library: int) -> None:
        """Unloads a library; its kernels must not be in use by any launch or graph."""
        self.call("cuLibraryUnload", self._handle("CUlibrary", library))

    def kernel_count(self, library: int) -> int:
        """How many kernels the driver sees in a library."""
        return int(self.call("cuLibraryGetKernelCount", self._handle("CUlibrary", library)))

    def kernel(self, library: int, symbol: str) -> int:
        """The handle (CUkernel) of the kernel `symbol` in a library."""
        return int(self.call("cuLibraryGetKernel", self._handle("CUlibrary", library), symbol.encode()))

    def set_dynamic_smem(self, kernel: int, device: int, size: int) -> None:
        """Allows the kernel `size` bytes of dynamic shared memory on the device."""
        attribute = self.module.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        self.call("cuKernelSetAttribute", attribute, size, self._handle("CUkernel", kernel), self.call("cuDeviceGet", device))

    def finish_loading(self, kernel: int) -> None:
        """Loads the kernel into the current context now, so that no launch has to."""
        function = self.call("cuKernelGetFunction", self._handle("CUkernel", kernel))
        if getattr(self.module, "cuFuncLoad", None) is not None and self.version() >= 12040:
            self.call("cuFuncLoad", function)

    def _handle(self, kind: str, value: int) -> Any:
        return getattr(self.module, kind)(value)

    # -- launching ----------------------------------------------------------------------------------------------------------

    def tensor_map(self, dtype: str, base: int, dims: Sequence[int], strides_bytes: Sequence[int], box: Sequence[int], swizzle: int,
                   l2_promotion: int) -> bytes:
        """The 128 bytes of a tiled tensor map: `dims` and `box` in elements, innermost first; `strides_bytes` of dims 1.."""
        m = self.module
        rank = len(dims)
        memory = ctypes.create_string_buffer(TENSOR_MAP_BYTES + TENSOR_MAP_ALIGNMENT)
        place = -(-ctypes.addressof(memory) // TENSOR_MAP_ALIGNMENT) * TENSOR_MAP_ALIGNMENT
        status = self._tensor_map_encoder()(
            place, int(_member(m.CUtensorMapDataType, "CU_TENSOR_MAP_DATA_TYPE_", _TENSOR_MAP_DTYPES[dtype])), rank, base,
            (ctypes.c_uint64 * rank)(*dims), (ctypes.c_uint64 * (rank - 1))(*strides_bytes), (ctypes.c_uint32 * rank)(*box),
            (ctypes.c_uint32 * rank)(*[1] * rank), int(m.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE),
            int(_member(m.CUtensorMapSwizzle, "CU_TENSOR_MAP_SWIZZLE_", _SWIZZLE_BYTES[swizzle])),
            int(_member(m.CUtensorMapL2promotion, "CU_TENSOR_MAP_L2_PROMOTION_", _PROMOTION_BYTES[l2_promotion])),
            int(m.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE))
        self._checked("cuTensorMapEncodeTiled", (m.CUresult(status),), f"dims {list(dims)}, byte strides {list(strides_bytes)}")
        return ctypes.string_at(place, TENSOR_MAP_BYTES)

    def _tensor_map_encoder(self) -> Callable[..., int]:
        """The driver's own function: the bindings' one gives it memory that is not aligned to 64 bytes, as it demands."""
        if self._encoder is None:
            address = self.call("cuGetProcAddress", b"cuTensorMapEncodeTiled", _TENSOR_MAP_SINCE, 0)[0]
            self._encoder = _ENCODE_TILED(int(address))
        return self._encoder

    def launch(self, kernel: int, grid: Sequence[int], block: Sequence[int], cluster: Sequence[int], smem_bytes: int, stream: int,
               parameters: bytes, offsets: Sequence[int]) -> None:
        """Launches a kernel in the current context. `parameters` holds the values, `offsets` where each one begins."""
        buffer = ctypes.create_string_buffer(parameters, len(parameters))
        base = ctypes.addressof(buffer)
        pointers = (ctypes.c_void_p * len(offsets))(*[base + offset for offset in offsets])
        function = self._handle("CUfunction", kernel)
        if tuple(cluster) == (1, 1, 1):
            self.call("cuLaunchKernel", function, *grid, *block, smem_bytes, stream, ctypes.addressof(pointers), 0)
        else:
            self.call("cuLaunchKernelEx", self._config(grid, block, cluster, smem_bytes, stream), function,
                      ctypes.addressof(pointers), 0)

    def _config(self, grid: Sequence[int], block: Sequence[int], cluster: Sequence[int], smem_bytes: int, stream: int) -> Any:
        config, attribute = self.module.CUlaunchConfig(), self.module.CUlaunchAttribute()
        attribute.id = self.module.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        attribute.value.clusterDim.x, attribute.value.clusterDim.y, attribute.value.clusterDim.z = cluster
        config.gridDimX, config.gridDimY, config.gridDimZ = grid
        config.blockDimX, config.blockDimY, config.blockDimZ = block
        config.sharedMemBytes = smem_bytes
        config.hStream = self._handle("CUstream", stream)
        config.attrs = [attribute]
        config.numAttrs = 1
        return config

    # -- memory, for reports of checked kernels and the command line's own cases --------------------------------------------

    def allocate(self, size: int) -> int:
        """The address of `size` fresh bytes in the current context."""
        return int(self.call("cuMemAlloc", size))

    def free(self, address: int) -> None:
        """Frees what `allocate` gave."""
        self.call("cuMemFree", self._handle("CUdeviceptr", address))

    def upload(self, address: int, data: bytes) -> None:
        """Copies `data` to the device and waits."""
        self.call("cuMemcpyHtoD", self._handle("CUdeviceptr", address), data, len(data))

    def download(self, address: int, size: int) -> bytes:
        """Copies `size` bytes from the device and waits."""
        data = bytearray(size)
        self.call("cuMemcpyDtoH", data, self._handle("CUdeviceptr", address), size)
        return bytes(data)

    def clear(self, address: int, size: int, stream: int) -> None:
        """Enqueues zeros for `size` bytes, a multiple of 4."""
        self.call("cuMemsetD32Async", self._handle("CUdeviceptr", address), 0, size // 4, stream)

    def download_after(self, stream: int, address: int, size: int) -> bytes:
        """Copies `size` bytes from the device when all work of the stream is done, and waits; errors of that work surface here."""
        data = bytearray(size)
        self.call("cuMemcpyDtoHAsync", data, self._handle("CUdeviceptr", address), size, stream)
        self.call("cuStreamSynchronize", stream)
        return bytes(data)

    def synchronise(self) -> None:
        """Waits for all work of the current context; an error of an earlier launch surfaces here."""
        self.call("cuCtxSynchronize")


def _member(enumeration: Any, prefix: str, name: str) -> Any:
    return getattr(enumeration, prefix + name)


def _bindings() -> Any:
    try:
        return importlib.import_module("cuda.bindings.driver")
    except (ImportError, OSError, RuntimeError) as error:  # bindings that are not there, or that do not find what they need
        raise DriverMissingError(f"cuda.bindings cannot be imported ({error}); install cuda-python") from error


@lru_cache(maxsize=1)
def default() -> Driver:
    """The process's driver."""
    return Driver()
