# SPDX-License-Identifier: Apache-2.0
"""Reading tensors through DLPack and __cuda_array_interface__."""

import ctypes

import pytest
from fmhaforge import ArgumentError, DeviceError, DtypeError, ShapeError, StrideError
from fmhaforge.tensors import DL_CPU, DL_CUDA, DL_CUDA_MANAGED, _DLManagedTensorVersioned, _DLTensor, contiguous_strides, view

HALF, INT32, BFLOAT = (2, 16), (0, 32), (4, 16)


class Managed(ctypes.Structure):
    """DLManagedTensor, of DLPack before version 1."""

    _fields_ = [("dl_tensor", _DLTensor), ("manager_ctx", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


class Exporter:
    """A tensor that exports itself by DLPack, in the old or the versioned form."""

    def __init__(self, pointer=1 << 20, shape=(2, 3), strides=None, dtype=HALF, device=(DL_CUDA, 1), versioned=True, flags=0,
                 offset=0, lanes=1, major=1):
        self.device, self.versioned = device, versioned
        self.shape = (ctypes.c_int64 * len(shape))(*shape)
        self.strides = (ctypes.c_int64 * len(shape))(*strides) if strides else None
        self.managed = _DLManagedTensorVersioned(major=major, flags=flags) if versioned else Managed()
        tensor = self.managed.dl_tensor
        tensor.data, tensor.byte_offset, tensor.ndim = pointer, offset, len(shape)
        tensor.device.device_type, tensor.device.device_id = device
        (tensor.dtype.code, tensor.dtype.bits), tensor.dtype.lanes = dtype, lanes
        tensor.shape = self.shape
        tensor.strides = self.strides
        self.streams = []

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, **options):
        if not self.versioned and "max_version" in options:
            raise TypeError("unexpected keyword argument 'max_version'")
        self.streams.append(options["stream"])
        new = ctypes.pythonapi.PyCapsule_New
        new.argtypes, new.restype = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p], ctypes.py_object
        self.name = b"dltensor_versioned" if self.versioned else b"dltensor"
        return new(ctypes.addressof(self.managed), self.name, None)


@pytest.mark.parametrize("versioned", [True, False])
def test_dlpack(versioned):
    source = Exporter(strides=(8, 1), offset=32, versioned=versioned)
    seen = view("q", source)
    assert (seen.pointer, seen.shape, seen.strides, seen.dtype) == ((1 << 20) + 32, (2, 3), (8, 1), "float16")
    assert (seen.device, seen.read_only) == (1, False)
    assert source.streams == [-1]


def test_dlpack_without_strides_is_packed():
    assert view("q", Exporter(shape=(4, 5, 6))).strides == (30, 6, 1)


def test_dlpack_read_only_flag():
    assert view("o", Exporter(flags=1)).read_only


@pytest.mark.parametrize("dtype, name", [(HALF, "float16"), (INT32, "int32"), (BFLOAT, "bfloat16"), ((2, 64), "float64")])
def test_dlpack_types(dtype, name):
    assert view("q", Exporter(dtype=dtype)).dtype == name


def test_managed_memory_is_device_memory():
    assert view("q", Exporter(device=(DL_CUDA_MANAGED, 0))).device == 0


@pytest.mark.parametrize("source, kind, word", [
    (Exporter(device=(DL_CPU, 0)), DeviceError, "host memory"), (Exporter(device=(10, 0)), DeviceError, "type 10"),
    (Exporter(lanes=4), DtypeError, "4 lanes"), (Exporter(dtype=(9, 8)), DtypeError, "code 9"),
    (Exporter(major=2), ArgumentError, "version 2")])
def test_dlpack_that_cannot_be_used(source, kind, word):
    with pytest.raises(kind, match=word) as error:
        view("q", source)
    assert error.value.argument == "q"


def test_numpy_arrays_are_host_memory():
    numpy = pytest.importorskip("numpy")
    with pytest.raises(DeviceError, match="host memory"):
        view("k", numpy.zeros(4, numpy.float16))


def test_an_exporter_that_fails_is_quoted():
    class Broken:
        def __dlpack_device__(self):
            return DL_CUDA, 0

        def __dlpack__(self, **options):
            raise BufferError("conjugate bit is set")
    with pytest.raises(ArgumentError, match="conjugate bit is set"):
        view("q", Broken())


@pytest.mark.parametrize("answer", [None, (), ("cuda", 0), lambda: 1 / 0])
def test_an_exporter_that_does_not_know_its_device(answer):
    class Lost:
        def __dlpack_device__(self):
            return answer() if callable(answer) else answer

        def __dlpack__(self, **options):
            raise AssertionError("nothing to export")
    with pytest.raises(ArgumentError, match="does not say by __dlpack_device__ where it lies") as error:
        view("q", Lost())
    assert error.value.argument == "q"


def interface(**change):
    good = {"shape": (2, 3), "typestr": "<f2", "data": (1 << 20, False), "version": 3}
    return type("Array", (), {"__cuda_array_interface__": {**good, **change}})()


def test_cuda_array_interface():
    seen = view("q", interface(strides=(32, 2)))
    assert (seen.pointer, seen.shape, seen.strides, seen.dtype, seen.device) == (1 << 20, (2, 3), (16, 1), "float16", None)
    assert view("q", interface()).strides == contiguous_strides((2, 3)) == (3, 1)
    assert view("q", interface(data=(1 << 20, True))).read_only


@pytest.mark.parametrize("change, kind", [
    ({"strides": (3, 1)}, StrideError), ({"strides": (2,)}, ShapeError), ({"typestr": ">f2"}, DtypeError),
    ({"typestr": "<V2"}, DtypeError), ({"typestr": "<f16"}, DtypeError), ({"mask": object()}, ArgumentError), ({"shape": 3}, ArgumentError),
    ({"data": None}, ArgumentError), ({"data": ("x", False)}, ArgumentError), ({"data": (1.5, False)}, ArgumentError),
    ({"data": (-16, False)}, ArgumentError), ({"data": (1 << 64, False)}, ArgumentError), ({"shape": (2, -3)}, ArgumentError),
    ({"strides": (None, 2)}, ArgumentError), ({"strides": 2}, ArgumentError), ({"typestr": "<f"}, DtypeError), ({"typestr": "<fx"}, DtypeError),
    ({"typestr": "<f-2"}, DtypeError), ({"typestr": "<f²"}, DtypeError), ({"typestr": "<f" + "9" * 5000}, DtypeError)])
def test_bad_interfaces(change, kind):
    with pytest.raises(ArgumentError) as error:
        view("v", interface(**change))
    assert type(error.value) is kind and error.value.argument == "v"


def test_an_interface_that_raises_is_quoted():
    class NeedsGrad:
        @property
        def __cuda_array_interface__(self):
            raise RuntimeError("requires grad")
    with pytest.raises(ArgumentError, match="requires grad.*detach"):
        view("q", NeedsGrad())


def test_addresses():
    numpy = pytest.importorskip("numpy")
    for address in (4096, numpy.uint64(4096), ctypes.c_void_p(4096)):
        assert view("q", address).pointer == 4096 and view("q", address).is_bare
    from cuda.bindings.driver import CUdeviceptr
    assert view("q", CUdeviceptr(4096)).pointer == 4096
    for bad in (0, -1, True, 1 << 64, 1.5, "4096", None, ctypes.c_void_p(None)):
        with pytest.raises(ArgumentError):
            view("q", bad)
