# SPDX-License-Identifier: Apache-2.0
"""A launch plan as C statements: the bodies of the functions `is_empty` and `fill` of ff_plan."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from fmhaforge import expr
from fmhaforge.launch import compiled
from fmhaforge.metadata import Operation
from fmhaforge.plan import LaunchPlan, Param, TensorMap
from generator import expr_c
from generator.cabi import numbers
from generator.operations import EXTRA_NAMES


@dataclass(frozen=True)
class PlanCode:
    """`empty` is a C condition, `lines` fill an ff_launch; both read the argument struct `a`.

    `names` are the members of `a` that `lines` want as int64_t locals.
    """

    args_type: str
    used_by: str
    empty: str
    names: tuple[str, ...]
    lines: tuple[str, ...]
    param_count: int
    param_bytes: int


def plan_code(plan: LaunchPlan, operation: Operation, args_type: str, used_by: str) -> PlanCode:
    """The C code of `plan`; `used_by` is for a comment."""
    layout = compiled(plan)
    lines = [line for axis, text in enumerate(plan.grid) for line in _grid(axis, text)]
    for name in ("block", "cluster"):
        lines += [f"launch->{name}[{axis}] = {extent};" for axis, extent in enumerate(getattr(plan, name))]
    lines.append(f"launch->smem_bytes = {plan.smem_bytes};")
    for index, (param, offset) in enumerate(zip(plan.params, layout.offsets)):
        lines += _param(index, offset, param, operation)
    empty = " || ".join(f"a->{name} == 0" for name in plan.empty_if_zero) or "false"
    return PlanCode(args_type, used_by, empty, tuple(sorted(plan.integer_names() - set(EXTRA_NAMES))), tuple(lines), len(plan.params), layout.size)


def integer(text: str) -> str:
    """The C expression (int64_t) of an integer expression, over locals of the names that it uses and the flag `bad`."""
    return expr_c.render(text, status="&bad")


def _grid(axis: int, text: str) -> Iterator[str]:
    yield f"launch->grid[{axis}] = {integer(text)};"
    yield from _fail_unless_ok(f"grid {'xyz'[axis]}", _is_compound(text), text)


def _param(index: int, offset: int, param: Param, operation: Operation) -> Iterator[str]:
    at = f"launch, {index}, {offset}"
    if param.map is not None:
        yield from _tensor_map(at, param.name, param.map)
    elif param.type in ("ptr", "f32"):
        yield f"ff_put_{param.type}({at}, a->{param.value});"
    elif param.type == "i64":
        yield f"ff_put_i64({at}, {integer(param.value)});"
        yield from _fail_unless_ok(f"parameter {param.name}", _is_compound(param.value), param.value)
    else:
        yield f"ff_put_i32({at}, {integer(param.value)}, &bad);"
        yield from _fail_unless_ok(f"parameter {param.name}", not _is_int32(param.value, operation), param.value)


def _tensor_map(at: str, name: str, spec: TensorMap) -> Iterator[str]:
    rank = len(spec.dims)
    shape = (rank, numbers.TENSOR_MAP_DTYPES[spec.dtype], numbers.TENSOR_MAP_SWIZZLES[spec.swizzle],
             numbers.TENSOR_MAP_L2_PROMOTIONS[spec.l2_promotion])
    yield "{"
    yield f"    static const ff_tensor_map_shape shape = {{{', '.join(map(str, shape))}, {_braced(spec.box)}}};"
    yield f"    const int64_t dims[] = {_braced(map(integer, spec.dims))};"
    yield f"    const int64_t strides[] = {_braced((*map(integer, spec.strides_bytes), 0))};"
    texts = (*spec.dims, *spec.strides_bytes)
    yield from _fail_unless_ok(f"tensor map {name}", any(map(_is_compound, texts)), ", ".join(texts), indent="    ")
    yield f'    fmhaforge_status result = ff_put_tensor_map(driver, {at}, "{name}", a->{spec.base}, &shape, dims, strides);'
    yield "    if (result != FMHAFORGE_OK) {"
    yield "        return result;"
    yield "    }"
    yield "}"


def _braced(values: Iterable[object]) -> str:
    return "{" + ", ".join(map(str, values)) + "}"


def _fail_unless_ok(what: str, can_fail: bool, text: str, indent: str = "") -> Iterator[str]:
    if can_fail:
        yield indent + "if (bad != 0) {"
        yield indent + f'    return ff_plan_error("{what}", "{text}");'
        yield indent + "}"


def _is_compound(text: str) -> bool:
    """Whether evaluating `text` can overflow: a number or a bare name can't."""
    return isinstance(expr.parse(text), (expr.Binary, expr.Call))


def _is_int32(text: str, operation: Operation) -> bool:
    """Whether `text` is an argument that is an int32 by itself."""
    argument = operation.arguments.get(text)
    return argument is not None and argument.type == "i32"
