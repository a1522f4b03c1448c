# SPDX-License-Identifier: Apache-2.0
"""The launch plan of a row, compiled once into Python closures: argument values in, grid and parameter bytes out."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Union

from . import fit
from .driver import Driver
from .errors import ArgumentError
from .fit import Fitted, Misfit
from .names import public_name
from .plan import TENSOR_MAP_BYTES, LaunchPlan, Param, TensorMap

_FORMATS = {"ptr": "Q", "i64": "q", "i32": "i", "f32": "f", "tensormap": f"{TENSOR_MAP_BYTES}s"}
"""Type of a parameter -> how `struct` packs it."""

_KEPT_MAPS = 64
"""Encoded tensor maps that are kept for each parameter, by base address."""

Values = Mapping[str, "int | float"]

Parameter = Union[int, Callable[[Values, Driver], object]]
"""A parameter that is known, or how to get it from the pointers and floats of a launch."""


@dataclass(frozen=True)
class Launch:
    """What one launch needs besides the kernel and the stream."""

    grid: tuple[int, int, int]
    parameters: bytes


class CompiledPlan:
    """A plan that can be evaluated. Argument values come by the names of the operation, and `sm_count` for the device."""

    def __init__(self, plan: LaunchPlan):
        self.plan = plan
        self.offsets, self.size, self._struct = _layout(plan)
        self._grid = tuple(Fitted(text, fit.GRID % axis, 1, most) for axis, text, most in zip("xyz", plan.grid, fit.GRID_LIMITS))
        self._counts = tuple(Fitted(count.value, fit.COUNT % count.things, 0, count.most) for count in plan.counts)
        self._makers = tuple(_maker(param) for param in plan.params)

    def is_empty(self, values: Values) -> bool:
        """Whether there is nothing to launch for these values, which may be just those that are known."""
        return any(values.get(name) == 0 for name in self.plan.empty_if_zero)

    def size_problem(self, known: Mapping[str, int]) -> tuple[str, str] | None:
        """(argument, what is wrong) for the first count or grid extent that is too large; those with unknown names are left out."""
        if self.is_empty(known):
            return None
        try:
            for size in (*self._counts, *self._grid):
                if size.names <= known.keys():
                    size(known)
        except Misfit as error:
            return error.argument, error.reason()
        return None

    def bind(self, values: Values, rename: Callable[[str], str] = public_name) -> BoundPlan:
        """The plan for these integers; what a launch still adds are the pointers and the scale.

        Raises ArgumentError when the values do not fit the plan; `rename` gives the names of arguments in its message.
        """
        try:
            for count in self._counts:
                count(values)  # type: ignore[arg-type]
            grid = tuple(extent(values) for extent in self._grid)  # type: ignore[arg-type]
            return BoundPlan(grid, self._struct, tuple(make(values) for make in self._makers))  # type: ignore[arg-type]
        except Misfit as error:
            raise ArgumentError(rename(error.argument), error.reason(rename)) from error

    def evaluate(self, values: Values, driver: Driver) -> Launch:
        """The grid and the parameter bytes. Raises ArgumentError when the values do not fit the plan."""
        bound = self.bind(values)
        return Launch(bound.grid, bound.pack(values, driver))


class BoundPlan:
    """A plan whose integers are known: `grid`, and parameters that lack the pointers and floats only."""

    def __init__(self, grid: tuple[int, int, int], layout: struct.Struct, parameters: tuple[Parameter, ...]):
        self.grid = grid
        self._struct = layout
        self._parameters = parameters

    def pack(self, values: Values, driver: Driver) -> bytes:
        """The parameter bytes for the pointers and floats in `values`."""
        return self._struct.pack(*[parameter(values, driver) if callable(parameter) else parameter for parameter in self._parameters])


@lru_cache(maxsize=4096)
def compiled(plan: LaunchPlan) -> CompiledPlan:
    """The compiled form of `plan`; equal plans share one."""
    return CompiledPlan(plan)


def _layout(plan: LaunchPlan) -> tuple[tuple[int, ...], int, struct.Struct]:
    """Byte offsets, total size and packing format of the parameter buffer."""
    offsets, pieces, end = [], ["<"], 0
    for param, (start, size) in zip(plan.params, plan.param_layout()):
        pieces += (f"{start - end}x", _FORMATS[param.type])
        offsets.append(start)
        end = start + size
    return tuple(offsets), end, struct.Struct("".join(pieces))


def _maker(param: Param) -> Callable[[Values], Parameter]:
    """A function from the integers to the parameter: its value, or a function that looks up what is known at the launch."""
    if param.map is not None:
        return _tensor_map(param.name, param.map)
    if param.type in ("ptr", "f32"):
        return _later(param.value or "")
    return Fitted(param.value or "", fit.PARAMETER % param.name, *fit.INTEGER_LIMITS[param.type])  # type: ignore[return-value]


def _later(name: str) -> Callable[[Values], Parameter]:
    def look_up(values: Values, driver: Driver) -> object:
        return values[name]

    def make(values: Values) -> Parameter:
        return look_up
    return make


def _tensor_map(name: str, spec: TensorMap) -> Callable[[Values], Parameter]:
    dims = tuple(Fitted(text, fit.MAP_EXTENT % (axis, name), 1, fit.MAP_EXTENT_LIMIT) for axis, text in enumerate(spec.dims))
    strides = tuple(Fitted(text, fit.MAP_STRIDE % (axis, name), 0, fit.MAP_STRIDE_LIMIT) for axis, text in enumerate(spec.strides_bytes, 1))

    def make(values: Values) -> Parameter:
        extents = tuple(compute(values) for compute in dims)  # type: ignore[arg-type]
        steps = tuple(compute(values) for compute in strides)  # type: ignore[arg-type]
        encoded: dict[int, bytes] = {}

        def encode(values: Values, driver: Driver) -> bytes:
            base = int(values[spec.base])
            found = encoded.get(base)
            if found is None:
                if len(encoded) >= _KEPT_MAPS:
                    encoded.clear()
                found = encoded[base] = driver.tensor_map(spec.dtype, base, extents, steps, spec.box, spec.swizzle, spec.l2_promotion)
            return found
        return encode
    return make
