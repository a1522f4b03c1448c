# SPDX-License-Identifier: Apache-2.0
"""Views of other libraries' device memory, without importing those libraries.

`view(name, value)` reads a tensor through `__cuda_array_interface__` (torch, cupy, numba) or DLPack (`__dlpack__`), or takes a
bare address. Nothing is copied and nothing is synchronised: the caller orders the streams and keeps the memory alive.
"""

from __future__ import annotations

import ctypes
import operator
from dataclasses import dataclass

from .dtypes import ITEM_BYTES
from .errors import ArgumentError, DeviceError, DtypeError, ShapeError, StrideError

DL_CPU = 1
DL_CUDA = 2
DL_CUDA_HOST = 3
DL_CUDA_MANAGED = 13
_DL_READ_ONLY = 1
_DL_KINDS = {0: "int", 1: "uint", 2: "float", 4: "bfloat", 6: "bool"}
_CAI_KINDS = {"i": "int", "u": "uint", "f": "float", "b": "bool"}


@dataclass(frozen=True)
class TensorView:
    """Device memory as an argument names it.

    `shape` and `strides` (in elements) are None for a bare address; `device` is the CUDA ordinal, or None where the source does
    not tell. `owner` keeps the exported description alive as long as the view.
    """

    pointer: int
    shape: tuple[int, ...] | None = None
    strides: tuple[int, ...] | None = None
    dtype: str | None = None
    device: int | None = None
    read_only: bool = False
    owner: object = None

    @property
    def is_bare(self) -> bool:
        """Whether this is a bare address without shape and type."""
        return self.shape is None


def contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Row-major strides in elements of a densely packed tensor."""
    strides, step = [], 1
    for extent in reversed(shape):
        strides.append(step)
        step *= max(extent, 1)
    return tuple(reversed(strides))


def view(name: str, value: object) -> TensorView:
    """The memory behind the argument `name`.

    Accepts anything with `__cuda_array_interface__` or `__dlpack__`, an integer address, or a `ctypes`/`cuda.bindings` pointer.
    Raises ArgumentError (or DtypeError, ShapeError, StrideError, DeviceError) naming the argument.
    """
    if isinstance(value, TensorView):
        return value
    if value is None:
        raise ArgumentError(name, "is None; give a device tensor or the address of device memory")
    if isinstance(value, int) and not isinstance(value, bool):
        return _bare(name, value)
    interface = _cuda_array_interface(name, value)
    if interface is not None:
        return _from_interface(name, value, interface)
    if hasattr(value, "__dlpack__") and hasattr(value, "__dlpack_device__"):
        return _from_dlpack(name, value)
    return _bare(name, _address(name, value))


def _bare(name: str, address: int) -> TensorView:
    if address == 0:
        raise ArgumentError(name, "is a null pointer; give the address of device memory")
    if not 0 < address < 1 << 64:
        raise ArgumentError(name, f"{address} is not an address")
    return TensorView(address)


def _address(name: str, value: object) -> int:
    if isinstance(value, ctypes.c_void_p):
        return value.value or 0
    if isinstance(value, bool):
        raise ArgumentError(name, f"{value} is no device tensor")
    if type(value).__name__ == "CUdeviceptr":
        return int(value)  # type: ignore[call-overload]
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise ArgumentError(name, f"a {type(value).__name__} is no device tensor; give an object with __cuda_array_interface__ "
                                  "or __dlpack__ (torch, cupy), or an address as an integer") from None


def _cuda_array_interface(name: str, value: object) -> dict | None:
    try:
        interface = getattr(value, "__cuda_array_interface__", None)
    except Exception as error:  # torch raises RuntimeError for tensors that require a gradient
        raise ArgumentError(name, f"gives no __cuda_array_interface__: {error}; for torch, use .detach()") from error
    if interface is not None and not isinstance(interface, dict):
        raise ArgumentError(name, "its __cuda_array_interface__ is no dict")
    return interface


def _from_interface(name: str, owner: object, interface: dict) -> TensorView:
    try:
        shape = tuple(operator.index(extent) for extent in interface["shape"])
        typestr = interface["typestr"]
        pointer, read_only = interface["data"]
        address = operator.index(pointer or 0)
        byte_strides = interface.get("strides")
        steps = None if byte_strides is None else tuple(operator.index(stride) for stride in byte_strides)
    except (KeyError, TypeError, ValueError) as error:
        raise ArgumentError(name, f"its __cuda_array_interface__ is malformed ({error!r})") from error
    if any(extent < 0 for extent in shape) or not 0 <= address < 1 << 64:
        raise ArgumentError(name, f"its __cuda_array_interface__ is malformed (shape {list(shape)}, address {address})")
    if interface.get("mask") is not None:
        raise ArgumentError(name, "is a masked array; give the plain array")
    dtype = _typestr_dtype(name, typestr)
    return TensorView(address, shape, _element_strides(name, shape, steps, ITEM_BYTES[dtype]), dtype,
                      None, bool(read_only), owner)


def _typestr_dtype(name: str, typestr: object) -> str:
    if not isinstance(typestr, str) or len(typestr) < 3 or typestr[1] not in _CAI_KINDS or typestr[0] not in "<|=":
        raise DtypeError(name, f"element type {typestr!r} is not served; use little-endian float16 (int32 for lengths)")
    kind, size = _CAI_KINDS[typestr[1]], typestr[2:]
    dtype = "bool" if kind == "bool" else f"{kind}{int(size) * 8}" if size.isdecimal() and len(size) < 4 else ""
    if dtype not in ITEM_BYTES:
        raise DtypeError(name, f"element type {typestr!r} is not served; use float16 (int32 for lengths)")
    return dtype


def _element_strides(name: str, shape: tuple[int, ...], strides: tuple[int, ...] | None, item_bytes: int) -> tuple[int, ...]:
    """The strides in elements; `strides` in bytes, None for a densely packed tensor."""
    if strides is None:
        return contiguous_strides(shape)
    if len(strides) != len(shape):
        raise ShapeError(name, f"has {len(shape)} extents but {len(strides)} strides")
    if any(stride % item_bytes for stride in strides):
        raise StrideError(name, f"byte strides {list(strides)} are not multiples of the element size {item_bytes}")
    return tuple(stride // item_bytes for stride in strides)


class _DLDevice(ctypes.Structure):
    _fields_ = [("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32)]


class _DLDataType(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class _DLTensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device", _DLDevice), ("ndim", ctypes.c_int32), ("dtype", _DLDataType),
                ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
                ("byte_offset", ctypes.c_uint64)]


class _DLManagedTensorVersioned(ctypes.Structure):
    _fields_ = [("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("manager_ctx", ctypes.c_void_p),
                ("deleter", ctypes.c_void_p), ("flags", ctypes.c_uint64), ("dl_tensor", _DLTensor)]


def _capsule_pointer(capsule: object, capsule_name: bytes) -> int | None:
    """The pointer inside a DLPack capsule of that name, or None. The capsule keeps ownership."""
    api = ctypes.pythonapi
    api.PyCapsule_IsValid.argtypes = [ctypes.py_object, ctypes.c_char_p]
    api.PyCapsule_IsValid.restype = ctypes.c_int
    api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
    api.PyCapsule_GetPointer.restype = ctypes.c_void_p
    if not api.PyCapsule_IsValid(capsule, capsule_name):
        return None
    return api.PyCapsule_GetPointer(capsule, capsule_name)


def _from_dlpack(name: str, value: object) -> TensorView:
    try:
        device_type = int(value.__dlpack_device__()[0])  # type: ignore[attr-defined]
    except Exception as error:
        raise ArgumentError(name, f"does not say by __dlpack_device__ where it lies: {error!r}") from error
    if device_type not in (DL_CUDA, DL_CUDA_MANAGED):
        where = "host memory" if device_type in (DL_CPU, DL_CUDA_HOST) else f"DLPack device type {device_type}"
        raise DeviceError(name, f"lies in {where}; move it to the CUDA device first")
    capsule = _export(name, value)
    read_only = False
    address = _capsule_pointer(capsule, b"dltensor_versioned")
    if address is not None:
        managed = _DLManagedTensorVersioned.from_address(address)
        if managed.major != 1:
            raise ArgumentError(name, f"exports DLPack version {managed.major}.{managed.minor}; version 1 is read")
        read_only = bool(managed.flags & _DL_READ_ONLY)
        tensor = managed.dl_tensor
    else:
        address = _capsule_pointer(capsule, b"dltensor")
        if address is None:
            raise ArgumentError(name, "its __dlpack__ gives no unused DLPack capsule")
        tensor = _DLTensor.from_address(address)
    return _from_dltensor(name, tensor, read_only, (value, capsule))


def _export(name: str, value: object) -> object:
    try:
        try:
            return value.__dlpack__(stream=-1, max_version=(1, 0))  # type: ignore[attr-defined]
        except TypeError:  # a producer of DLPack before version 1
            return value.__dlpack__(stream=-1)  # type: ignore[attr-defined]
    except Exception as error:
        raise ArgumentError(name, f"cannot be exported by DLPack: {error}") from error


def _from_dltensor(name: str, tensor: _DLTensor, read_only: bool, owner: object) -> TensorView:
    shape = tuple(tensor.shape[i] for i in range(tensor.ndim))
    strides = tuple(tensor.strides[i] for i in range(tensor.ndim)) if tensor.strides else contiguous_strides(shape)
    kind = _DL_KINDS.get(tensor.dtype.code)
    dtype = "bool" if kind == "bool" else f"{kind}{tensor.dtype.bits}"
    if dtype not in ITEM_BYTES or tensor.dtype.lanes != 1:
        raise DtypeError(name, f"DLPack element type (code {tensor.dtype.code}, {tensor.dtype.bits} bits, {tensor.dtype.lanes} "
                               "lanes) is not served; use float16 (int32 for lengths)")
    return TensorView((tensor.data or 0) + tensor.byte_offset, shape, strides, dtype, tensor.device.device_id, read_only, owner)
