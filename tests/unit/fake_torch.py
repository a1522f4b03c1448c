# SPDX-License-Identifier: Apache-2.0
"""As much of torch as the examples of the documentation use, over the memory of a `FakeGpu`."""

from types import SimpleNamespace

import numpy


class FakeTorchTensor:
    """A tensor in the fake device's memory; `values` is a numpy array over the very bytes."""

    def __init__(self, values, address):
        self.values = values
        self.address = address

    @property
    def __cuda_array_interface__(self):
        return {"shape": self.values.shape, "typestr": self.values.dtype.str, "data": (self.address, False), "strides": self.values.strides,
                "version": 3}

    def __getitem__(self, place):
        part = self.values[place]
        return FakeTorchTensor(part, self.address + part.__array_interface__["data"][0] - self.values.__array_interface__["data"][0])


class FakeTorch:
    """To be put into `sys.modules` as torch. What `empty` and `empty_like` give is NaN, and is kept in `outputs`."""

    float16, int32 = numpy.dtype("f2"), numpy.dtype("i4")

    def __init__(self, gpu):
        self._gpu = gpu
        self._random = numpy.random.default_rng(0)
        self.outputs = []
        self.cuda = SimpleNamespace(current_stream=lambda: SimpleNamespace(cuda_stream=0))

    def randn(self, *shape, dtype, device):
        """Normal values."""
        return self._put(self._random.standard_normal(shape), dtype, device)

    def tensor(self, values, dtype, device):
        """The values of nested lists."""
        return self._put(numpy.array(values), dtype, device)

    def empty(self, *shape, dtype, device):
        """An output that has not been written."""
        self.outputs.append(self._put(numpy.full(shape, numpy.nan), dtype, device))
        return self.outputs[-1]

    def empty_like(self, tensor):
        """An output like another tensor."""
        return self.empty(*tensor.values.shape, dtype=tensor.values.dtype, device="cuda")

    def _put(self, values, dtype, device):
        assert device == "cuda"
        address = self._gpu.allocate(values.size * dtype.itemsize)
        self._gpu.bytes[address] = bytearray(values.astype(dtype).tobytes())
        return FakeTorchTensor(numpy.frombuffer(self._gpu.bytes[address], dtype).reshape(values.shape), address)
