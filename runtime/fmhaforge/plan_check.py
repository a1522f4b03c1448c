# SPDX-License-Identifier: Apache-2.0
"""Whether a launch plan can be launched: it agrees with its row, uses each argument as what it is, and its numbers fit where they go."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING

from . import expr, fit
from .dtypes import INT_MAX
from .fault_codes import FAULT_REPORT
from .plan import LaunchPlan, Param, TensorMap

if TYPE_CHECKING:
    from .metadata import Operation, Row

MAX_THREADS = 1024
MAX_CLUSTER = 16
MAX_BOX = 256
"""The most threads of a block, blocks of a cluster and elements of a tensor map's box that any device takes."""

Problem = tuple[str, str]
"""The field of the plan (empty for all of it), and what is wrong with it."""


def problems(row: Row, operation: Operation) -> Iterator[Problem]:
    """What is wrong with the plan of a row."""
    plan = row.plan
    if plan.smem_bytes != row.smem_bytes:
        yield "smem_bytes", f"is {plan.smem_bytes}, the row says {row.smem_bytes}"
    if plan.threads != row.threads:
        yield "block", f"has {plan.threads} threads, the row says {row.threads}"
    types = tuple((argument.name, argument.type) for argument in operation.arguments.values())
    yield from _by_itself(plan, operation.name, types + (((FAULT_REPORT, "ptr"),) if row.checked else ()))


@lru_cache(maxsize=4096)
def _by_itself(plan: LaunchPlan, operation: str, types: tuple[tuple[str, str], ...]) -> tuple[Problem, ...]:
    """What is wrong with a plan for arguments of these names and types. Many rows share one plan."""
    return tuple(_problems(plan, operation, dict(types)))


def _problems(plan: LaunchPlan, operation: str, types: Mapping[str, str]) -> Iterator[Problem]:
    if min(plan.block) < 1 or plan.threads > MAX_THREADS:
        yield "block", f"is {list(plan.block)}; there are 1 to {MAX_THREADS} threads"
    if min(plan.cluster) < 1 or math.prod(plan.cluster) > MAX_CLUSTER:
        yield "cluster", f"is {list(plan.cluster)}; there are 1 to {MAX_CLUSTER} blocks"
    if not 0 <= plan.smem_bytes <= INT_MAX:
        yield "smem_bytes", f"is {plan.smem_bytes}, which is no size"
    yield from _names(plan, operation, types)
    for text, most in zip(plan.grid, fit.GRID_LIMITS):
        yield from _constant("grid", text, 1, most)
    for index, param in enumerate(plan.params):
        yield from _numbers(f"params[{index}]", param)


def _names(plan: LaunchPlan, operation: str, types: Mapping[str, str]) -> Iterator[Problem]:
    used = [(name, ("i32", "i64")) for name in sorted(plan.integer_names() - fit.DEVICE_NAMES | set(plan.empty_if_zero))]
    for param in plan.params:
        if param.map is not None:
            used.append((param.map.base, ("ptr",)))
        elif param.type in ("ptr", "f32"):
            used.append((param.value or "", (param.type,)))
    for name, wanted in used:
        if name not in types:
            yield "", f"names {name!r}, which is no argument of {operation}"
        elif types[name] not in wanted:
            yield "", f"uses {name!r} as {' or '.join(wanted)}, but it is {types[name]}"


def _numbers(field: str, param: Param) -> Iterator[Problem]:
    if param.map is not None:
        yield from _map_numbers(f"{field}.map", param.map)
    elif param.type in fit.INTEGER_LIMITS:
        yield from _constant(f"{field}.value", param.value or "", *fit.INTEGER_LIMITS[param.type])


def _map_numbers(field: str, spec: TensorMap) -> Iterator[Problem]:
    if not all(1 <= extent <= MAX_BOX for extent in spec.box):
        yield f"{field}.box", f"is {list(spec.box)}; extents are 1 to {MAX_BOX}"
    for text in spec.dims:
        yield from _constant(f"{field}.dims", text, 1, fit.MAP_EXTENT_LIMIT)
    for text in spec.strides_bytes:
        yield from _constant(f"{field}.strides_bytes", text, 0, fit.MAP_STRIDE_LIMIT)


def _constant(field: str, text: str, least: int, most: int) -> Iterator[Problem]:
    """An expression without names is nobody's argument: no launch examines it."""
    if expr.names(text):
        return
    try:
        value = expr.compile(text)({})
    except expr.ExprError as error:
        yield field, f"cannot be computed: {error}"
        return
    if not least <= value <= most:
        yield field, f"is {value}, which is not in {least} .. {most}"
