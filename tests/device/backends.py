# SPDX-License-Identifier: Apache-2.0
"""The few array operations that differ between numpy (no device) and torch (device memory)."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = Any


class NumpyBackend:
    """Arrays in host memory."""

    xp = np

    def pattern(self, elements: int, bits: list[int]) -> Array:
        """Flat float16 array that repeats the 16-bit patterns `bits`."""
        period = np.array(bits, np.uint16).view(np.float16)
        return np.resize(period, elements) if elements else np.empty(0, np.float16)

    def strided(self, flat: Array, shape: tuple[int, ...], strides: tuple[int, ...], offset: int) -> Array:
        """A view of `flat`; `strides` and `offset` in elements."""
        size = flat.itemsize
        return np.lib.stride_tricks.as_strided(flat[offset:], shape, tuple(size * stride for stride in strides))

    def random_source(self, seed: int) -> Any:
        """A generator for `normal`."""
        return np.random.default_rng(seed)

    def normal(self, source: Any, shape: tuple[int, ...]) -> Array:
        """Standard normal float16 values."""
        return source.standard_normal(shape, np.float32).astype(np.float16)

    def integers(self, values: Any) -> Array:
        """int32 array from nested lists."""
        return np.array(values, np.int32)

    def arange(self, count: int) -> Array:
        """int64 0 .. count - 1."""
        return np.arange(count, dtype=np.int64)

    def zeros(self, shape: tuple[int, ...], kind: str) -> Array:
        """Zeros of kind `bool` or `float64`."""
        return np.zeros(shape, {"bool": np.bool_, "float64": np.float64}[kind])

    def bits(self, values: Array) -> Array:
        """The 16-bit patterns of a float16 array, as int16."""
        return values.view(np.int16)

    def double(self, values: Array) -> Array:
        """float64 copy."""
        return np.asarray(values, np.float64)

    def long(self, values: Array) -> Array:
        """int64 copy."""
        return np.asarray(values, np.int64)

    def scalars(self, values: list[Array]) -> list[float]:
        """Python numbers of zero-dimensional arrays, in one transfer."""
        return [float(value) for value in values]

    def stream(self) -> int:
        """The handle of the stream that launches go to."""
        return 0

    def synchronise(self) -> None:
        """Waits for all work; raises if the device is lost."""


class TorchBackend:
    """Tensors on a CUDA device (or the host, for `device="cpu"`)."""

    def __init__(self, device: str = "cuda"):
        import torch

        self.xp = torch
        self.device = device

    def pattern(self, elements: int, bits: list[int]) -> Array:
        """As `NumpyBackend.pattern`."""
        signed = [bit - (1 << 16) if bit >= 1 << 15 else bit for bit in bits]
        period = self.xp.tensor(signed, dtype=self.xp.int16, device=self.device).view(self.xp.float16)
        return period.repeat(-(-elements // len(bits)))[:elements]

    def strided(self, flat: Array, shape: tuple[int, ...], strides: tuple[int, ...], offset: int) -> Array:
        """As `NumpyBackend.strided`."""
        return self.xp.as_strided(flat, shape, strides, offset)

    def random_source(self, seed: int) -> Any:
        """As `NumpyBackend.random_source`."""
        return self.xp.Generator(self.device).manual_seed(seed)

    def normal(self, source: Any, shape: tuple[int, ...]) -> Array:
        """As `NumpyBackend.normal`."""
        return self.xp.randn(shape, generator=source, dtype=self.xp.float16, device=self.device)

    def integers(self, values: Any) -> Array:
        """As `NumpyBackend.integers`."""
        return self.xp.tensor(values, dtype=self.xp.int32, device=self.device)

    def arange(self, count: int) -> Array:
        """As `NumpyBackend.arange`."""
        return self.xp.arange(count, dtype=self.xp.int64, device=self.device)

    def zeros(self, shape: tuple[int, ...], kind: str) -> Array:
        """As `NumpyBackend.zeros`."""
        return self.xp.zeros(shape, dtype=getattr(self.xp, kind), device=self.device)

    def bits(self, values: Array) -> Array:
        """As `NumpyBackend.bits`."""
        return values.view(self.xp.int16)

    def double(self, values: Array) -> Array:
        """As `NumpyBackend.double`."""
        return values.to(self.xp.float64)

    def long(self, values: Array) -> Array:
        """As `NumpyBackend.long`."""
        return values.to(self.xp.int64)

    def scalars(self, values: list[Array]) -> list[float]:
        """As `NumpyBackend.scalars`."""
        return self.xp.stack([value.to(self.xp.float64) for value in values]).tolist()

    def stream(self) -> int:
        """As `NumpyBackend.stream`."""
        return self.xp.cuda.current_stream().cuda_stream

    def synchronise(self) -> None:
        """As `NumpyBackend.synchronise`."""
        self.xp.cuda.synchronize()
