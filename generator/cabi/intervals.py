# SPDX-License-Identifier: Apache-2.0
"""What an integer expression can come to when its arguments lie within their limits, so that C checks nothing that cannot be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fmhaforge import expr

Limits = Mapping[str, "tuple[int, int]"]
"""Name -> its least and its largest value."""


@dataclass(frozen=True)
class Interval:
    """The least and the largest value; `may_overflow`: whether a step on the way may not fit in 64 bits, or may divide by 0 or less."""

    low: int
    high: int
    may_overflow: bool = False


def of(text: str, limits: Limits) -> Interval:
    """The interval of an expression. Raises KeyError for a name without limits, ExprError when it cannot be read."""
    return _of(expr.parse(text), limits)


def _of(node: expr.Node, limits: Limits) -> Interval:
    if isinstance(node, expr.Number):
        return Interval(node.value, node.value)
    if isinstance(node, expr.Name):
        return Interval(*limits[node.name])
    if isinstance(node, expr.Binary):
        return _clipped(*_combined(node.op, _of(node.left, limits), _of(node.right, limits)))
    left, right = node.arguments
    return _clipped(*_combined(node.function, _of(left, limits), _of(right, limits)))


def _combined(symbol: str, a: Interval, b: Interval) -> tuple[int, int, bool]:
    unsafe = a.may_overflow or b.may_overflow
    if symbol == "+":
        return a.low + b.low, a.high + b.high, unsafe
    if symbol == "-":
        return a.low - b.high, a.high - b.low, unsafe
    if symbol in ("min", "max"):
        pick = min if symbol == "min" else max
        return pick(a.low, b.low), pick(a.high, b.high), unsafe
    if symbol == "*":
        corners = [x * y for x in (a.low, a.high) for y in (b.low, b.high)]
        return min(corners), max(corners), unsafe
    divisors = (max(b.low, 1), max(b.high, 1))
    corners = [expr.ceil_div(x, y) for x in (a.low, a.high) for y in divisors]
    return min(corners), max(corners), unsafe or b.low < 1


def _clipped(low: int, high: int, unsafe: bool) -> Interval:
    """Values beyond 64 bits are errors, so none is found there."""
    beyond = low < expr.INT64_MIN or high > expr.INT64_MAX
    return Interval(max(low, expr.INT64_MIN), min(high, expr.INT64_MAX), unsafe or beyond)
