# SPDX-License-Identifier: Apache-2.0
"""Expressions of launch plans as C, from the same syntax tree that the runtime evaluates.

The C functions are those of `generator/csrc`: `ff_add`, `ff_sub`, `ff_mul` and `ff_ceil_div` take a `bool*` last, which they set
when a value does not fit in 64 bits or a divisor is <= 0; `ff_min` and `ff_max` can't fail.
"""

from __future__ import annotations

from fmhaforge import expr

_FUNCTIONS = {"+": "ff_add", "-": "ff_sub", "*": "ff_mul", "ceil_div": "ff_ceil_div", "min": "ff_min", "max": "ff_max"}
_CANNOT_FAIL = ("min", "max")


def render(text: str, variable: str = "{}", bad: str = "&bad") -> str:
    """The C expression (type int64_t) for `text`.

    `variable` is the format of a name (`args->{}`), which is cast to int64_t; `bad` is the C expression of the `bool*`. Raises
    ExprError when `text` can't be read.
    """
    return _render(expr.parse(text), variable, bad)


def _render(node: expr.Node, variable: str, bad: str) -> str:
    if isinstance(node, expr.Number):
        return f"INT64_C({node.value})"
    if isinstance(node, expr.Name):
        return f"(int64_t){variable.format(node.name)}"
    if isinstance(node, expr.Binary):
        symbol, operands = node.op, (node.left, node.right)
    else:
        symbol, operands = node.function, node.arguments
    arguments = [_render(operand, variable, bad) for operand in operands]
    if symbol not in _CANNOT_FAIL:
        arguments.append(bad)
    return f"{_FUNCTIONS[symbol]}({', '.join(arguments)})"
