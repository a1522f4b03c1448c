# SPDX-License-Identifier: Apache-2.0
"""A CUDA driver in Python: the functions of `cuda.bindings.driver` that the runtime calls, over made-up devices.

It decides by its own rules what loads and launches (binary compatibility, shared memory, grid limits), so that the tests can
compare the runtime's answers with a driver's. Launches are recorded with their parameters.
"""

import ctypes
import json
import math
import struct
from dataclasses import dataclass, field

from cuda.bindings import driver as real
from fake_bundle import FAKE_MARK, ptx_kernels
from fmhaforge.driver import _ENCODE_TILED

TEGRA = {87, 101, 110}
OK = real.CUresult.CUDA_SUCCESS
MAP_WORD = struct.Struct("<Q")
"""What a tensor map consists of, 16 times: the number of the encoding that made it."""
SHARED_LIMIT = {80: 166912, 86: 101376, 87: 166912, 89: 101376, 90: 232448, 100: 232448, 101: 232448, 103: 232448, 110: 232448,
                120: 101376, 121: 101376, 75: 65536}


def loads_on(built, exact, device):
    """Whether a cubin of SM `built` holds code for `device`, by NVIDIA's binary compatibility."""
    if built == device or {built, device} == {101, 110} and not exact:
        return True
    same_major = built // 10 == device // 10
    return not exact and same_major and built % 10 < device % 10 and not {built, device} & TEGRA


def encodable(encoded):
    """Whether the driver takes these dims, strides and box for a tiled map of 2-byte elements without interleaving."""
    widest = {"NONE": 512, "32B": 32, "64B": 64, "128B": 128}[encoded["swizzle"].removeprefix("CU_TENSOR_MAP_SWIZZLE_")]
    return (encoded["address"] % 16 == 0 and all(1 <= extent <= 1 << 32 for extent in encoded["dims"])
            and all(stride % 16 == 0 and stride < 1 << 40 for stride in encoded["strides"])
            and all(1 <= extent <= 256 for extent in encoded["box"]) and 2 * encoded["box"][0] <= widest)


@dataclass
class Launched:
    symbol: str
    device: int
    grid: tuple
    block: tuple
    cluster: tuple
    smem_bytes: int
    stream: int
    params: list


@dataclass
class Library:
    kernels: dict
    handles: dict = field(default_factory=dict)


class FakeCuda:
    """`sms`: the SM of each device. Unknown names (enums, structs) come from the real bindings."""

    def __init__(self, *sms):
        self.sms = sms
        self.launches, self.calls, self.maps, self.cleared = [], [], [], []
        self.current = 0
        self.stack = []
        self.libraries, self.kernels, self.smem = {}, {}, {}
        self.memory, self.next_address = {}, 1 << 32
        self.context_ids, self.buffer_ids, self.next_id = {}, {}, 0
        self.streams, self.capturing = {}, set()
        self.fail = {}
        self.version = 13000
        self.next_handle = 1000

    def __getattr__(self, name):
        return getattr(real, name)

    def handle(self):
        self.next_handle += 16
        return self.next_handle

    def result(self, name, *values):
        """The result of a call, or the failure that a test has ordered for it (once)."""
        self.calls.append(name)
        failure = self.fail.pop(name, None)
        return (failure,) + tuple(0 for _ in values) if failure else (OK, *values)

    def error(self, name, status):
        self.calls.append(name)
        return status, 0

    # devices and contexts: context of device d is 100 + d, a foreign one of device d is 200 + d

    def cuInit(self, flags):
        return self.result("cuInit")

    def cuDriverGetVersion(self):
        return OK, self.version

    def cuDeviceGetCount(self):
        return OK, len(self.sms)

    def cuDeviceGet(self, ordinal):
        if not 0 <= ordinal < len(self.sms):
            return real.CUresult.CUDA_ERROR_INVALID_DEVICE, 0
        return OK, ordinal

    def cuDeviceGetName(self, size, device):
        return OK, f"Fake GPU {self.sms[device]}".encode() + b"\0" * 8

    def cuDeviceGetAttribute(self, attribute, device):
        sm = self.sms[int(device)]
        values = {"COMPUTE_CAPABILITY_MAJOR": sm // 10, "COMPUTE_CAPABILITY_MINOR": sm % 10, "MULTIPROCESSOR_COUNT": 132,
                  "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": SHARED_LIMIT[sm], "PAGEABLE_MEMORY_ACCESS": 0}
        return OK, values[attribute.name.removeprefix("CU_DEVICE_ATTRIBUTE_")]

    def cuCtxGetCurrent(self):
        return OK, self.current

    def cuCtxGetDevice(self):
        if not self.current:
            return real.CUresult.CUDA_ERROR_INVALID_CONTEXT, 0
        return OK, self.current % 100

    def unique(self):
        """A number that is never given again."""
        self.next_id += 1
        return self.next_id

    def cuCtxGetId(self, context):
        return OK, self.context_ids.setdefault(int(context), self.unique())

    def reuse_context(self, context, addresses=()):
        """Destroys a context and makes another one, for tests: with the same handle, and with other memory at the same addresses."""
        self.context_ids[context] = self.unique()
        for address in [address for address, (_, device) in self.memory.items() if device == context % 100]:
            self.buffer_ids[address] = self.unique()
            if address not in addresses:
                del self.memory[address]

    def cuDevicePrimaryCtxRetain(self, device):
        return self.result("cuDevicePrimaryCtxRetain", 100 + int(device))

    def cuCtxPushCurrent(self, context):
        self.stack.append(self.current)
        self.current = int(context)
        return (OK,)

    def cuCtxPopCurrent(self):
        popped, self.current = self.current, self.stack.pop()
        return OK, popped

    def cuCtxSynchronize(self):
        return self.result("cuCtxSynchronize")

    def cuStreamSynchronize(self, stream):
        return self.result("cuStreamSynchronize")

    # streams and memory

    def stream(self, device=0, context=None):
        """A new stream, for tests."""
        handle = self.handle()
        self.streams[handle] = context or 100 + device
        return handle

    def cuStreamIsCapturing(self, stream):
        return OK, 1 if int(stream) in self.capturing else 0

    def cuStreamGetCtx(self, stream):
        return (OK, self.streams[int(stream)]) if int(stream) in self.streams else (real.CUresult.CUDA_ERROR_INVALID_HANDLE, 0)

    def allocate(self, size, device=0):
        """The address of new device memory, for tests."""
        address = self.next_address
        self.next_address += (size + 511) // 256 * 256
        self.memory[address] = (size, device)
        self.buffer_ids[address] = self.unique()
        return address

    def cuMemAlloc(self, size):
        return self.result("cuMemAlloc", self.allocate(size, self.current % 100))

    def cuMemFree(self, address):
        del self.memory[int(address)]
        return self.result("cuMemFree")

    def cuMemsetD32Async(self, address, value, count, stream):
        self.cleared.append((int(address), value, count, int(stream)))
        return self.result("cuMemsetD32Async")

    def cuMemcpyDtoHAsync(self, data, address, size, stream):
        return self.result("cuMemcpyDtoHAsync")

    def _owner(self, pointer):
        for address, (size, device) in self.memory.items():
            if address <= int(pointer) < address + max(size, 1):
                return device
        return None

    def cuPointerGetAttribute(self, attribute, pointer):
        owner = self._owner(pointer)
        if owner is None:
            return real.CUresult.CUDA_ERROR_INVALID_VALUE, 0
        kind = attribute.name.removeprefix("CU_POINTER_ATTRIBUTE_")
        return OK, {"DEVICE_ORDINAL": owner, "MEMORY_TYPE": 2, "IS_MANAGED": 0, "BUFFER_ID": self.buffer_ids.get(int(pointer))}[kind]

    # libraries

    def cuLibraryLoadData(self, image, options, values, count, *rest):
        status, _ = self.result("cuLibraryLoadData", 0)
        if status != OK:
            return status, 0
        kernels = self._kernels_in(bytes(image))
        if kernels is None:
            return real.CUresult.CUDA_ERROR_NO_BINARY_FOR_GPU, 0
        handle = self.handle()
        self.libraries[handle] = Library(kernels)
        return OK, handle

    def _kernels_in(self, image):
        device = self.sms[self.current % 100]
        if image.startswith(b".version"):
            built = int("".join(c for c in image.split(b".target sm_")[1].decode().split("\n")[0] if c.isdigit()))
            return ptx_kernels(image) if built <= device else None
        content = json.loads(image.split(FAKE_MARK)[1])
        return content["kernels"] if loads_on(content["sm"], content["exact"], device) else {}

    def cuLibraryUnload(self, library):
        self.libraries.pop(int(library))
        return self.result("cuLibraryUnload")

    def cuLibraryGetKernelCount(self, library):
        return self.result("cuLibraryGetKernelCount", len(self.libraries[int(library)].kernels))

    def cuLibraryGetKernel(self, library, name):
        status, _ = self.result("cuLibraryGetKernel", 0)
        if status != OK:
            return status, 0
        found = self.libraries[int(library)]
        symbol = name.decode()
        if symbol not in found.kernels:
            return real.CUresult.CUDA_ERROR_NOT_FOUND, 0
        handle = found.handles.setdefault(symbol, self.handle())
        self.kernels[handle] = symbol, found.kernels[symbol]
        return OK, handle

    def cuKernelSetAttribute(self, attribute, value, kernel, device):
        if value > SHARED_LIMIT[self.sms[int(device)]]:
            return self.error("cuKernelSetAttribute", real.CUresult.CUDA_ERROR_INVALID_VALUE)[:1]
        self.smem[int(kernel), int(device)] = value
        return self.result("cuKernelSetAttribute")

    def cuKernelGetFunction(self, kernel):
        return self.result("cuKernelGetFunction", kernel)

    def cuFuncLoad(self, function):
        return self.result("cuFuncLoad")

    # launching

    def cuGetProcAddress(self, symbol, version, flags):
        assert (symbol, version, flags) == (b"cuTensorMapEncodeTiled", 12000, 0)
        self.encoder = _ENCODE_TILED(self._encode_tiled)
        return OK, ctypes.cast(self.encoder, ctypes.c_void_p).value, real.CUdriverProcAddressQueryResult.CU_GET_PROC_ADDRESS_SUCCESS

    def _encode_tiled(self, place, dtype, rank, address, dims, strides, box, element_strides, interleave, swizzle, promotion, fill):
        encoded = {
            "dtype": real.CUtensorMapDataType(dtype).name, "address": address, "dims": list((ctypes.c_uint64 * rank).from_address(dims)),
            "box": list((ctypes.c_uint32 * rank).from_address(box)), "swizzle": real.CUtensorMapSwizzle(swizzle).name,
            "strides": list((ctypes.c_uint64 * (rank - 1)).from_address(strides)), "promotion": real.CUtensorMapL2promotion(promotion).name,
            "rest": (list((ctypes.c_uint32 * rank).from_address(element_strides)), interleave, fill)}
        if place % 64 or not encodable(encoded):
            return int(real.CUresult.CUDA_ERROR_INVALID_VALUE)
        self.maps.append(encoded)
        ctypes.memmove(place, MAP_WORD.pack(len(self.maps)) * 16, 128)
        return int(self.result("cuTensorMapEncodeTiled")[0])

    def map_of(self, parameter):
        """What was encoded into the 128 bytes of a tensor map: base address, dims, byte strides, box and the rest."""
        number, = MAP_WORD.unpack_from(parameter)
        assert parameter == MAP_WORD.pack(number) * 16 and 1 <= number <= len(self.maps), "these bytes are no tensor map of this driver"
        return self.maps[number - 1]

    def cuLaunchKernel(self, function, gx, gy, gz, bx, by, bz, smem, stream, params, extra):
        return self._launch("cuLaunchKernel", function, (gx, gy, gz), (bx, by, bz), (1, 1, 1), smem, stream, params)

    def cuLaunchKernelEx(self, config, function, params, extra):
        cluster = config.attrs[0].value.clusterDim
        return self._launch("cuLaunchKernelEx", function, (config.gridDimX, config.gridDimY, config.gridDimZ),
                            (config.blockDimX, config.blockDimY, config.blockDimZ), (cluster.x, cluster.y, cluster.z),
                            config.sharedMemBytes, int(config.hStream), params)

    def _launch(self, name, function, grid, block, cluster, smem, stream, params):
        status, = self.result(name)
        symbol, sizes = self.kernels[int(function)]
        device = self.current % 100
        fits = all(1 <= n <= limit for n, limit in zip(grid, (2**31 - 1, 65535, 65535)))
        if status == OK and (not fits or smem > self.smem.get((int(function), device), 49152)):
            status = real.CUresult.CUDA_ERROR_INVALID_VALUE
        if status == OK:
            pointers = (ctypes.c_void_p * len(sizes)).from_address(params)
            values = [ctypes.string_at(pointer, size) for pointer, size in zip(pointers, sizes)]
            self.launches.append(Launched(symbol, device, grid, block, cluster, smem, int(stream), values))
        return (status,)


class FakeTensor:
    """Device memory with `__cuda_array_interface__`, as torch and cupy give it."""

    def __init__(self, cuda, shape, typestr="<f2", strides=None, device=0, read_only=False, offset=0):
        size = 4 if typestr.endswith("4") else int(typestr[2:])
        packed = [math.prod(shape[axis + 1:]) for axis in range(len(shape))]
        last = sum((extent - 1) * stride for extent, stride in zip(shape, strides or packed))
        self.shape = shape
        self.pointer = cuda.allocate((last + 1) * size + offset, device) + offset if math.prod(shape) else 0
        self.interface = {"shape": shape, "typestr": typestr, "data": (self.pointer, read_only), "version": 3,
                          "strides": None if strides is None else tuple(stride * size for stride in strides)}

    @property
    def __cuda_array_interface__(self):
        return self.interface
