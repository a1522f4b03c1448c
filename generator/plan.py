# SPDX-License-Identifier: Apache-2.0
"""Launch plans: how a kernel is launched, as data. Rendered into C by the generator and interpreted by the runtime.

Grid, values and tensor maps are expressions of `fmhaforge.expr` over the integer arguments of the operation and `sm_count`.
Values of type `i32` must fit in 32 bits when they are evaluated; grid y and z are at most 65535, grid x at most 2^31 - 1.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from functools import lru_cache
from types import ModuleType

import generator  # noqa: F401 - makes fmhaforge importable
from fmhaforge import expr
from fmhaforge.plan import L2_PROMOTIONS, MAX_TENSOR_MAP_RANK, PARAM_TYPES, SWIZZLES, Count, LaunchPlan, Param, TensorMap
from generator.model import KernelSpec, Row
from generator.operations import OPERATIONS, Operation, FAULT_REPORT

MAX_PARAM_BYTES = 4096
MAX_THREADS = 1024
MAX_CLUSTER = 16
ELEMENT_BYTES = {"float16": 2, "int32": 4}
MAX_BOX_EXTENT = 256
MAX_COUNT = 2**31 - 1


class PlanError(ValueError):
    """A launch plan that can't be right: the reason names the place within the plan."""


def argument_params(operation: Operation, names: Iterable[str] | None = None) -> tuple[Param, ...]:
    """Parameters that hand the named arguments (default: all) to the kernel as they are, in the order given."""
    arguments = operation.arguments if names is None else tuple(operation.argument(name) for name in names)
    return tuple(Param(argument.name, argument.type, argument.name) for argument in arguments)


def plan_for(row: Row) -> LaunchPlan:
    """The checked launch plan of a row.

    Raises ManifestError, at the tile's place, when the row needs more shared memory than its SM has, and PlanError when the
    family's plan contradicts the operation.
    """
    plan = plan_for_spec(row.spec)
    limit = row.target.smem_limit
    if plan.smem_bytes > limit:
        raise row.build.mark.error(
            f"{row.variant.name} on SM {row.sm} needs {plan.smem_bytes} bytes of shared memory, the limit is {limit}",
            f"Make the tile smaller, or add an override for SM {row.sm}")
    return plan


@lru_cache(maxsize=None)
def plan_for_spec(spec: KernelSpec) -> LaunchPlan:
    """The checked launch plan of a kernel, made by `generator.plans.<family>.plan`."""
    plan = _family_module(spec.family).plan(spec)
    try:
        check_plan(plan, OPERATIONS[spec.operation])
    except PlanError as error:
        raise PlanError(f"plan of {spec.key()}: {error}") from None
    return plan


def _family_module(family: str) -> ModuleType:
    name = f"generator.plans.{family}"
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        raise PlanError(f"family {family} has no launch plans; add generator/plans/{family}.py") from None


# --- checks ------------------------------------------------------------------------------------------------------------


def check_plan(plan: LaunchPlan, operation: Operation) -> None:
    """Raises PlanError unless the plan can be rendered and launched for the operation."""
    _check_extents(plan)
    for axis, text in zip("xyz", plan.grid):
        _check_expression(text, operation, f"grid {axis}")
    for name in plan.empty_if_zero:
        if name not in operation.integer_names():
            raise PlanError(f"empty_if_zero: {name!r} is no integer argument of {operation.name}")
    for count in plan.counts:
        _check_count(count, operation)
    names = [param.name for param in plan.params]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise PlanError(f"parameter {min(twice)!r} stands twice")
    for param in plan.params:
        _check_param(param, operation)
    total = sum(plan.param_layout()[-1]) if plan.params else 0
    if total > MAX_PARAM_BYTES:
        raise PlanError(f"parameters take {total} bytes, more than {MAX_PARAM_BYTES}")


def _check_extents(plan: LaunchPlan) -> None:
    for what, extents, most in (("block", plan.block, MAX_THREADS), ("cluster", plan.cluster, MAX_CLUSTER)):
        if len(extents) != 3 or any(type(extent) is not int or extent < 1 for extent in extents):
            raise PlanError(f"{what} {extents} must be three integers >= 1")
        product = extents[0] * extents[1] * extents[2]
        if product > most:
            raise PlanError(f"{what} {extents} has {product} members, more than {most}")
    if plan.threads % 32:
        raise PlanError(f"block {plan.block} is not made of whole warps")
    if len(plan.grid) != 3:
        raise PlanError(f"grid {plan.grid} must be three expressions")
    if type(plan.smem_bytes) is not int or plan.smem_bytes < 0:
        raise PlanError(f"smem_bytes {plan.smem_bytes!r} must be an integer >= 0")


def _check_expression(text: str, operation: Operation, where: str) -> None:
    try:
        names = expr.names(text)
    except expr.ExprError as error:
        raise PlanError(f"{where}: {error}") from None
    unknown = names - operation.integer_names()
    if unknown:
        raise PlanError(f"{where}: {min(unknown)!r} is no integer argument of {operation.name}; "
                        f"there are {', '.join(sorted(operation.integer_names()))}")


def _check_count(count: Count, operation: Operation) -> None:
    where = f"count of {count.things!r}"
    _check_expression(count.value, operation, where)
    if not expr.names(count.value):
        raise PlanError(f"{where}: {count.value} is the same for every launch; leave it out")
    if type(count.most) is not int or not 1 <= count.most <= MAX_COUNT:
        raise PlanError(f"{where}: most {count.most!r} is not in 1..{MAX_COUNT}")


def _check_param(param: Param, operation: Operation) -> None:
    where = f"parameter {param.name!r}"
    if param.type not in PARAM_TYPES:
        raise PlanError(f"{where}: unknown type {param.type!r}; there are {', '.join(PARAM_TYPES)}")
    if (param.map is None) == (param.type == "tensormap") or (param.value is None) != (param.type == "tensormap"):
        raise PlanError(f"{where}: a tensormap has a map and no value, every other type a value and no map")
    if param.map is not None:
        _check_map(param.map, operation, where)
    elif param.type in ("i32", "i64"):
        _check_expression(param.value, operation, where)
    else:
        _check_bare_name(param.value, param.type, operation, where)


def _check_bare_name(name: str, type_: str, operation: Operation, where: str) -> None:
    fitting = [argument.name for argument in operation.arguments if argument.type == type_]
    fitting += [FAULT_REPORT] if type_ == "ptr" else []
    if name not in fitting:
        raise PlanError(f"{where}: {name!r} is no {type_} argument of {operation.name}; there are {', '.join(fitting)}")


def _check_map(tensor_map: TensorMap, operation: Operation, where: str) -> None:
    _check_bare_name(tensor_map.base, "ptr", operation, where)
    if operation.argument(tensor_map.base).dtype != tensor_map.dtype:
        raise PlanError(f"{where}: dtype {tensor_map.dtype!r} is not that of {tensor_map.base}")
    rank = len(tensor_map.dims)
    if not 1 <= rank <= MAX_TENSOR_MAP_RANK or len(tensor_map.box) != rank or len(tensor_map.strides_bytes) != rank - 1:
        raise PlanError(f"{where}: rank {rank} needs as many box extents and one stride less, and is at most {MAX_TENSOR_MAP_RANK}")
    for text in (*tensor_map.dims, *tensor_map.strides_bytes):
        _check_expression(text, operation, where)
    for extent in tensor_map.box:
        if type(extent) is not int or not 1 <= extent <= MAX_BOX_EXTENT:
            raise PlanError(f"{where}: box extent {extent!r} is not in 1..{MAX_BOX_EXTENT}")
    if tensor_map.swizzle not in SWIZZLES or tensor_map.l2_promotion not in L2_PROMOTIONS:
        raise PlanError(f"{where}: swizzle is one of {SWIZZLES}, l2_promotion one of {L2_PROMOTIONS}")
    row_bytes = tensor_map.box[0] * ELEMENT_BYTES[tensor_map.dtype]
    if row_bytes % 16 or (tensor_map.swizzle and row_bytes > tensor_map.swizzle):
        raise PlanError(f"{where}: innermost box of {row_bytes} bytes must be a multiple of 16 and at most the swizzle of "
                        f"{tensor_map.swizzle}")
