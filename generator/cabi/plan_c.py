# SPDX-License-Identifier: Apache-2.0
"""A launch plan as C statements: the bodies of the functions `is_empty` and `fill` of ff_plan."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from fmhaforge import expr, fit
from fmhaforge.fit import blamable
from fmhaforge.launch import compiled
from fmhaforge.metadata import Operation
from fmhaforge.plan import LaunchPlan, Param, TensorMap
from generator import expr_c
from generator.cabi import intervals, numbers
from generator.cabi.intervals import Limits
from generator.operations import EXTRA_NAMES


@dataclass(frozen=True)
class PlanCode:
    """`empty` is a C condition, `lines` fill an ff_launch; both read the argument struct `a`.

    `names` are the members of `a` that `lines` want as int64_t locals. `known_lines` check what is known before there are arguments.
    """

    args_type: str
    used_by: str
    empty: str
    names: tuple[str, ...]
    lines: tuple[str, ...]
    known_lines: tuple[str, ...]
    param_count: int
    param_bytes: int


def plan_code(plan: LaunchPlan, operation: Operation, args_type: str, used_by: str) -> PlanCode:
    """The C code of `plan`; `used_by` is for a comment."""
    layout = compiled(plan)
    limits = _limits(plan, operation)
    lines = [line for count in _counts(plan) for line in count.check(limits)]
    lines += [line for axis, extent in enumerate(_grid(plan)) for line in extent.assign(f"launch->grid[{axis}]", limits)]
    for name in ("block", "cluster"):
        lines += [f"launch->{name}[{axis}] = {extent};" for axis, extent in enumerate(getattr(plan, name))]
    lines.append(f"launch->smem_bytes = {plan.smem_bytes};")
    for index, (param, offset) in enumerate(zip(plan.params, layout.offsets)):
        lines += _param(index, offset, param, limits)
    empty = " || ".join(f"a->{name} == 0" for name in plan.empty_if_zero) or "false"
    return PlanCode(args_type, used_by, empty, tuple(sorted(plan.integer_names() - set(EXTRA_NAMES))), tuple(lines),
                    tuple(_known(plan, operation, limits)), len(plan.params), layout.size)


def integer(text: str) -> str:
    """The C expression (int64_t) of an integer expression, over locals of the names that it uses and the flag `bad`."""
    return expr_c.render(text, status="&bad")


@dataclass(frozen=True)
class _Value:
    """The expression `text`, whose value is `what` and must lie in least .. most; see `fmhaforge.fit`."""

    text: str
    what: str
    least: int
    most: int

    def conditions(self, place: str, limits: Limits) -> str:
        """When the value at `place` does not fit: a C condition, without what cannot be; empty when it always fits."""
        found = intervals.of(self.text, limits)
        return " || ".join((["bad != 0"] if found.may_overflow else [])
                           + ([f"{place} < {int64(self.least)}"] if found.low < self.least else [])
                           + ([f"{place} > {int64(self.most)}"] if found.high > self.most else []))

    def check(self, limits: Limits, blamed: str = "NULL") -> Iterator[str]:
        """Statements that return with the reason when the value does not fit; none when it always fits."""
        if self.conditions("value", limits):
            yield from self.assign("value", limits, blamed)

    def assign(self, place: str, limits: Limits, blamed: str = "NULL") -> Iterator[str]:
        """Statements that put the value into the int64_t at `place`, and return with the reason when it does not fit.

        Raises ValueError for a number that never fits.
        """
        yield f"{place} = {integer(self.text)};"
        conditions = self.conditions(place, limits)
        if conditions:
            given = [f'{{"{name}", {name}}}' for name in blamable(self.text)]
            if not given:
                raise ValueError(f"{self.what} is {self.text}, which is not in {self.least} .. {self.most}")
            yield f"if ({conditions}) {{"
            yield f"    const ff_value given[] = {_braced(given)};"
            yield (f'    return ff_misfit("{self.what}", bad, {place}, {int64(self.least)}, {int64(self.most)}, given, {len(given)}, '
                   f"{blamed});")
            yield "}"


def _limits(plan: LaunchPlan, operation: Operation) -> Limits:
    """What the values can be when a launch is filled: checked, and not empty."""
    found = {}
    for argument in operation.arguments.values():
        if argument.type in fit.INTEGER_LIMITS:
            low, high = argument_limits(argument.type, argument.minimum, argument.maximum)
            found[argument.name] = max(low, 1) if argument.name in plan.empty_if_zero else low, high
    return {**{name: (0, fit.INTEGER_LIMITS["i32"][1]) for name in EXTRA_NAMES}, **found}


def _grid(plan: LaunchPlan) -> Iterator[_Value]:
    for axis, text, most in zip("xyz", plan.grid, fit.GRID_LIMITS):
        yield _Value(text, fit.GRID % axis, 1, most)


def _counts(plan: LaunchPlan) -> Iterator[_Value]:
    for count in plan.counts:
        yield _Value(count.value, fit.COUNT % count.things, 0, count.most)


def _known(plan: LaunchPlan, operation: Operation, limits: Limits) -> Iterator[str]:
    """Checks of the counts and the grid's extents that a problem tells all about; its length is called `known_seqlen_q` and may be unknown."""
    seqlen_q = operation.seqlen_q_argument
    checked = [size for size in (*_counts(plan), *_grid(plan)) if expr.names(size.text) <= {"num_q_heads", "num_kv_heads", seqlen_q}
               and size.conditions("value", limits)]
    if checked and seqlen_q in plan.empty_if_zero:
        yield from ("if (known_seqlen_q == 0) {", "    return FMHAFORGE_OK;", "}")
    for size in checked:
        lines = size.check(limits, "blamed")
        if seqlen_q in expr.names(size.text):
            yield from ("if (known_seqlen_q >= 0) {", f"    const int64_t {seqlen_q} = known_seqlen_q;", *("    " + line for line in lines), "}")
        else:
            yield from lines


def _param(index: int, offset: int, param: Param, limits: Limits) -> Iterator[str]:
    at = f"launch, {index}, {offset}"
    if param.map is not None:
        yield from _tensor_map(at, param.name, param.map, limits)
    elif param.type in ("ptr", "f32"):
        yield f"ff_put_{param.type}({at}, a->{param.value});"
    else:
        value = _Value(param.value or "", fit.PARAMETER % param.name, *fit.INTEGER_LIMITS[param.type])
        cast = "(int32_t)" if param.type == "i32" else ""
        if value.conditions("value", limits):
            yield from value.assign("value", limits)
            yield f"ff_put_{param.type}({at}, {cast}value);"
        else:
            yield f"ff_put_{param.type}({at}, {cast}{integer(value.text)});"


def _tensor_map(at: str, name: str, spec: TensorMap, limits: Limits) -> Iterator[str]:
    rank = len(spec.dims)
    shape = (rank, numbers.TENSOR_MAP_DTYPES[spec.dtype], numbers.TENSOR_MAP_SWIZZLES[spec.swizzle],
             numbers.TENSOR_MAP_L2_PROMOTIONS[spec.l2_promotion])
    dims = [_Value(text, fit.MAP_EXTENT % (axis, name), 1, fit.MAP_EXTENT_LIMIT) for axis, text in enumerate(spec.dims)]
    strides = [_Value(text, fit.MAP_STRIDE % (axis, name), 0, fit.MAP_STRIDE_LIMIT) for axis, text in enumerate(spec.strides_bytes, 1)]
    yield "{"
    yield f"    static const ff_tensor_map_shape shape = {{{', '.join(map(str, shape))}, {_braced(spec.box)}}};"
    yield f"    int64_t dims[{rank}];"
    yield f"    int64_t strides[{rank}] = {{0}};"
    for array, values in (("dims", dims), ("strides", strides)):
        for index, value in enumerate(values):
            yield from ("    " + line for line in value.assign(f"{array}[{index}]", limits))
    yield f'    fmhaforge_status result = ff_put_tensor_map(driver, {at}, "{name}", a->{spec.base}, &shape, dims, strides);'
    yield "    if (result != FMHAFORGE_OK) {"
    yield "        return result;"
    yield "    }"
    yield "}"


def _braced(values: Iterable[object]) -> str:
    return "{" + ", ".join(map(str, values)) + "}"


def argument_limits(type_: str, minimum: int | None, maximum: int | None) -> tuple[int, int]:
    """The least and the largest value that an integer argument can have."""
    least, most = fit.INTEGER_LIMITS[type_]
    return least if minimum is None else minimum, most if maximum is None else maximum


def int64(value: int) -> str:
    """A C constant of type int64_t."""
    return "INT64_MIN" if value == expr.INT64_MIN else f"INT64_C({value})"
