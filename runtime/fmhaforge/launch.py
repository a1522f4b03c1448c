# SPDX-License-Identifier: Apache-2.0
"""The launch plan of a row, compiled once into Python closures: argument values in, grid and parameter bytes out."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Union

from . import expr
from .driver import Driver
from .errors import ArgumentError
from .names import public_name
from .plan import TENSOR_MAP_BYTES, LaunchPlan, Param, TensorMap

GRID_LIMITS = (2**31 - 1, 65535, 65535)
"""The most blocks in x, y and z that any device takes."""

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
        self._grid = tuple(expr.compile(text) for text in plan.grid)
        self._grid_names = tuple(expr.names(text) for text in plan.grid)
        self._makers = tuple(_maker(param) for param in plan.params)

    def is_empty(self, values: Values) -> bool:
        """Whether there is nothing to launch for these values."""
        return any(values[name] == 0 for name in self.plan.empty_if_zero)

    def grid_problem(self, values: Values) -> tuple[str, str] | None:
        """(the expression, what is wrong) for the first grid extent that no device takes; extents with unknown names are left out.

        `values` may hold just the integers that are known.
        """
        for axis, text, names, compute, limit in zip("xyz", self.plan.grid, self._grid_names, self._grid, GRID_LIMITS):
            if not names <= values.keys():
                continue
            try:
                extent = compute(values)  # type: ignore[arg-type]
            except expr.ExprError as error:
                return text, str(error)
            if extent > limit:
                return text, f"the grid would have {extent} blocks in {axis}; a launch takes at most {limit}"
        return None

    def bind(self, values: Values) -> BoundPlan:
        """The plan for these integers; what a launch still adds are the pointers and the scale.

        Raises ArgumentError when the values do not fit the plan.
        """
        try:
            problem = self.grid_problem(values)
            if problem:
                raise ArgumentError(public_name(problem[0]), f"{problem[1]}; split the work")
            grid = tuple(compute(values) for compute in self._grid)  # type: ignore[arg-type]
            return BoundPlan(grid, self._struct, tuple(make(values) for make in self._makers))  # type: ignore[arg-type]
        except expr.ExprError as error:
            raise ArgumentError(error.text, error.reason) from error

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
        """The parameter bytes for the pointers and floats in `values`. Raises ArgumentError when a value does not fit."""
        try:
            return self._struct.pack(*[parameter(values, driver) if callable(parameter) else parameter for parameter in self._parameters])
        except (struct.error, OverflowError) as error:
            raise ArgumentError("launch parameters", f"a value does not fit its type ({error}); split the work") from error


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
        return _tensor_map(param.map)
    if param.type in ("ptr", "f32"):
        return _later(param.value or "")
    return expr.compile(param.value or "")  # type: ignore[return-value]


def _later(name: str) -> Callable[[Values], Parameter]:
    def look_up(values: Values, driver: Driver) -> object:
        return values[name]

    def make(values: Values) -> Parameter:
        return look_up
    return make


def _tensor_map(spec: TensorMap) -> Callable[[Values], Parameter]:
    dims = tuple(expr.compile(text) for text in spec.dims)
    strides = tuple(expr.compile(text) for text in spec.strides_bytes)

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
