# SPDX-License-Identifier: Apache-2.0
"""Launch plans as data, as they stand in the metadata: the build makes and writes them, the runtime and the C side read them.

Grid, values and tensor maps are expressions of `fmhaforge.expr` over the integer arguments of the operation and `sm_count`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar

from . import expr
from .fields import Fields

Texts = TypeVar("Texts", bound="tuple[str, ...]")

TENSOR_MAP_BYTES = 128
TENSOR_MAP_ALIGNMENT = 64
MAX_TENSOR_MAP_RANK = 5
TENSOR_MAP_DTYPES = ("float16", "int32")
SWIZZLES = (0, 32, 64, 128)
L2_PROMOTIONS = (0, 64, 128, 256)
"""Bytes."""

SCALAR_BYTES = {"ptr": 8, "i64": 8, "i32": 4, "f32": 4}
"""Type of a parameter -> bytes, also its alignment. Tensor maps are the only other type."""

PARAM_TYPES = (*SCALAR_BYTES, "tensormap")


@dataclass(frozen=True)
class TensorMap:
    """A TMA descriptor, filled at launch. `dims` in elements, innermost first; `strides_bytes` of dims 1..; `box` in elements."""

    base: str
    dtype: str
    dims: tuple[str, ...]
    strides_bytes: tuple[str, ...]
    box: tuple[int, ...]
    swizzle: int = 128
    l2_promotion: int = 128

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {"base": self.base, "box": list(self.box), "dims": list(self.dims), "dtype": self.dtype,
                "l2_promotion": self.l2_promotion, "strides_bytes": list(self.strides_bytes), "swizzle": self.swizzle}


@dataclass(frozen=True)
class Param:
    """A parameter of the kernel: `type` is `ptr`, `i32`, `i64`, `f32` (then `value` is set) or `tensormap` (then `map` is set)."""

    name: str
    type: str
    value: str | None = None
    map: TensorMap | None = None

    @property
    def size(self) -> int:
        """Bytes in the parameter buffer."""
        return TENSOR_MAP_BYTES if self.type == "tensormap" else SCALAR_BYTES[self.type]

    @property
    def alignment(self) -> int:
        """Alignment in bytes in the parameter buffer."""
        return TENSOR_MAP_ALIGNMENT if self.type == "tensormap" else SCALAR_BYTES[self.type]

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values; only the one of `value` and `map` that is set."""
        content = {"map": self.map.to_json()} if self.map is not None else {"value": self.value}
        return {"name": self.name, "type": self.type, **content}


@dataclass(frozen=True)
class Count:
    """How many `things` (a plural, for messages) a kernel counts in 32 bits: `value` is the expression, `most` what it can count."""

    things: str
    value: str
    most: int

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {"most": self.most, "things": self.things, "value": self.value}


@dataclass(frozen=True)
class LaunchPlan:
    """Everything that a launch needs besides the arguments. `smem_bytes` is dynamic shared memory."""

    grid: tuple[str, str, str]
    block: tuple[int, int, int]
    smem_bytes: int
    params: tuple[Param, ...]
    empty_if_zero: tuple[str, ...]
    cluster: tuple[int, int, int] = (1, 1, 1)
    counts: tuple[Count, ...] = ()

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.block[0] * self.block[1] * self.block[2]

    def param_layout(self) -> tuple[tuple[int, int], ...]:
        """(offset, size) in bytes of each parameter in the parameter buffer, with natural alignment."""
        layout = []
        end = 0
        for param in self.params:
            offset = expr.ceil_div(end, param.alignment) * param.alignment
            end = offset + param.size
            layout.append((offset, param.size))
        return tuple(layout)

    def integer_names(self) -> frozenset[str]:
        """The names that the plan's integer expressions read."""
        return _integer_names(self)

    def names(self) -> frozenset[str]:
        """Every name that the plan refers to."""
        bare = {param.map.base if param.map is not None else param.value or "" for param in self.params
                if param.map is not None or param.type in ("ptr", "f32")}
        return self.integer_names() | bare | frozenset(self.empty_if_zero)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values, as they stand in the metadata of a bundle."""
        return {
            "block": list(self.block),
            "cluster": list(self.cluster),
            "counts": [count.to_json() for count in self.counts],
            "empty_if_zero": list(self.empty_if_zero),
            "grid": list(self.grid),
            "params": [param.to_json() for param in self.params],
            "smem_bytes": self.smem_bytes,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "LaunchPlan":
        """The inverse of `to_json`. Raises SchemaError naming the field when `value` is no plan."""
        return read(Fields("launch plan", "", value))


@lru_cache(maxsize=4096)
def _integer_names(plan: LaunchPlan) -> frozenset[str]:
    texts = [*plan.grid, *(count.value for count in plan.counts)]
    for param in plan.params:
        if param.map is not None:
            texts += (*param.map.dims, *param.map.strides_bytes)
        elif param.type in ("i32", "i64"):
            texts.append(param.value or "")
    return frozenset().union(*map(expr.names, texts))


# -- reading ----------------------------------------------------------------------------------------------------------------


def read(fields: Fields) -> LaunchPlan:
    """The plan in an object of the metadata. Raises SchemaError naming the field."""
    return LaunchPlan(
        check_expressions(fields, "grid", fields.triple("grid", str)), fields.triple("block", int), fields.get("smem_bytes", int),
        tuple(map(_param, fields.children("params"))), fields.items("empty_if_zero", str), fields.triple("cluster", int),
        tuple(map(_count, fields.children("counts"))) if "counts" in fields.values else ())


def _count(fields: Fields) -> Count:
    return Count(fields.get("things", str), *check_expressions(fields, "value", (fields.get("value", str),)), fields.at_least("most", 1))


def _param(fields: Fields) -> Param:
    name, kind = fields.get("name", str), fields.one_of("type", str, PARAM_TYPES)
    if kind == "tensormap":
        return Param(name, kind, None, _tensor_map(fields.child("map")))
    return Param(name, kind, *check_expressions(fields, "value", (fields.get("value", str),)))


def _tensor_map(fields: Fields) -> TensorMap:
    dims, strides = (check_expressions(fields, key, fields.items(key, str)) for key in ("dims", "strides_bytes"))
    box = fields.items("box", int)
    if not 1 <= len(dims) <= MAX_TENSOR_MAP_RANK or len(box) != len(dims) or len(strides) != len(dims) - 1:
        raise fields.error("dims", f"has {len(dims)} extents; there are 1 to {MAX_TENSOR_MAP_RANK}, as many of box and one stride less")
    return TensorMap(fields.get("base", str), fields.one_of("dtype", str, TENSOR_MAP_DTYPES), dims, strides, box,
                     fields.one_of("swizzle", int, SWIZZLES), fields.one_of("l2_promotion", int, L2_PROMOTIONS))


def check_expressions(fields: Fields, key: str, texts: Texts) -> Texts:
    """`texts`, which are the value of the field `key`. Raises SchemaError naming it when one is no expression."""
    for text in texts:
        try:
            expr.parse(text)
        except expr.ExprError as error:
            raise fields.error(key, f"cannot be read: {error}") from error
    return texts
