# SPDX-License-Identifier: Apache-2.0
"""The launch plan of a row, compiled once into Python closures: argument values in, grid and parameter bytes out."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from . import expr
from .driver import TENSOR_MAP_BYTES, Driver
from .errors import ArgumentError
from .metadata import Param, Plan, TensorMap
from .names import public_name

GRID_LIMITS = (2**31 - 1, 65535, 65535)
"""The most blocks in x, y and z that any device takes."""

_FORMATS = {"ptr": ("Q", 8, 8), "i64": ("q", 8, 8), "i32": ("i", 4, 4), "f32": ("f", 4, 4),
            "tensormap": (f"{TENSOR_MAP_BYTES}s", TENSOR_MAP_BYTES, 64)}

Values = Mapping[str, "int | float"]


@dataclass(frozen=True)
class Launch:
    """What one launch needs besides the kernel and the stream."""

    grid: tuple[int, int, int]
    parameters: bytes


class CompiledPlan:
    """A plan that can be evaluated. Argument values come by the names of the operation, and `sm_count` for the device."""

    def __init__(self, plan: Plan):
        self.plan = plan
        self.offsets, self.size, self._struct = _layout(plan.params)
        self._grid = tuple(expr.compile(text) for text in plan.grid)
        self._grid_names = tuple(expr.names(text) for text in plan.grid)
        self._values = tuple(_value(param) for param in plan.params)

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

    def evaluate(self, values: Values, driver: Driver) -> Launch:
        """The grid and the parameter bytes. Raises ArgumentError when the values do not fit the plan."""
        try:
            problem = self.grid_problem(values)
            if problem:
                raise ArgumentError(public_name(problem[0]), f"{problem[1]}; split the work")
            grid = tuple(compute(values) for compute in self._grid)  # type: ignore[arg-type]
            packed = self._struct.pack(*[value(values, driver) for value in self._values])
        except expr.ExprError as error:
            raise ArgumentError(error.text, error.reason) from error
        except (struct.error, OverflowError) as error:
            raise ArgumentError("launch parameters", f"a value does not fit its type ({error}); split the work") from error
        return Launch(grid, packed)  # type: ignore[arg-type]


@lru_cache(maxsize=4096)
def compiled(plan: Plan) -> CompiledPlan:
    """The compiled form of `plan`; equal plans share one."""
    return CompiledPlan(plan)


def _layout(params: tuple[Param, ...]) -> tuple[tuple[int, ...], int, struct.Struct]:
    """Byte offsets, total size and packing format of the parameter buffer, each value at its natural alignment."""
    offsets, pieces, end = [], ["<"], 0
    for param in params:
        code, size, alignment = _FORMATS[param.type]
        start = -(-end // alignment) * alignment
        if start > end:
            pieces.append(f"{start - end}x")
        pieces.append(code)
        offsets.append(start)
        end = start + size
    return tuple(offsets), end, struct.Struct("".join(pieces))


def _value(param: Param) -> Callable[[Values, Driver], object]:
    if param.map is not None:
        return _tensor_map(param.name, param.map)
    if param.type in ("ptr", "f32"):
        return _lookup(param.value or "")
    return _integer(param.value or "")


def _lookup(name: str) -> Callable[[Values, Driver], object]:
    def lookup(values: Values, driver: Driver) -> object:
        return values[name]
    return lookup


def _integer(text: str) -> Callable[[Values, Driver], int]:
    compute = expr.compile(text)

    def integer(values: Values, driver: Driver) -> int:
        return compute(values)  # type: ignore[arg-type]
    return integer


def _tensor_map(name: str, spec: TensorMap) -> Callable[[Values, Driver], bytes]:
    dims = tuple(expr.compile(text) for text in spec.dims)
    strides = tuple(expr.compile(text) for text in spec.strides_bytes)

    def encode(values: Values, driver: Driver) -> bytes:
        return driver.tensor_map(
            spec.dtype, int(values[spec.base]), [compute(values) for compute in dims],  # type: ignore[arg-type]
            [compute(values) for compute in strides], spec.box, spec.swizzle, spec.l2_promotion)  # type: ignore[arg-type]
    return encode
