# SPDX-License-Identifier: Apache-2.0
"""Expressions of launch plans as C: calls of checked 64-bit helpers, so that C and Python agree on every value and error.

`HELPERS` is the C source of the helpers (C11 and C++17, GCC or Clang; needs <stdint.h>). Each takes a status first: an `int *`
that is set to 1 when a value does not fit in 64 bits or a divisor is <= 0; the value is then meaningless and must not be used.
"""

from __future__ import annotations

from collections.abc import Callable

from fmhaforge import expr

PREFIX = "fmhaforge_expr_"

_CHECKED = """\
static inline int64_t {prefix}{name}(int *status, int64_t a, int64_t b)
{{
    int64_t result = 0;
    *status |= __builtin_{name}_overflow(a, b, &result);
    return result;
}}

"""

_REST = """\
static inline int64_t {prefix}ceil_div(int *status, int64_t a, int64_t b)
{{
    if (b <= 0) {{
        *status = 1;
        return 0;
    }}
    return a / b + (a % b > 0 ? 1 : 0);
}}

static inline int64_t {prefix}min(int *status, int64_t a, int64_t b)
{{
    (void)status;
    return a < b ? a : b;
}}

static inline int64_t {prefix}max(int *status, int64_t a, int64_t b)
{{
    (void)status;
    return a > b ? a : b;
}}
"""

_OPERATORS = {"+": "add", "-": "sub", "*": "mul"}

HELPERS = "".join(_CHECKED.format(prefix=PREFIX, name=name) for name in _OPERATORS.values()) + _REST.format(prefix=PREFIX)


def render(text: str, variable: Callable[[str], str] = str, status: str = "&status") -> str:
    """The C expression (type int64_t) for `text`.

    `variable` gives the C expression of a name, which is cast to int64_t; `status` is the C expression of the status pointer.
    Raises ExprError when `text` can't be read.
    """
    return _render(expr.parse(text), variable, status)


def _render(node: expr.Node, variable: Callable[[str], str], status: str) -> str:
    if isinstance(node, expr.Number):
        return f"INT64_C({node.value})"
    if isinstance(node, expr.Name):
        return f"(int64_t){variable(node.name)}"
    if isinstance(node, expr.Binary):
        function, operands = _OPERATORS[node.op], (node.left, node.right)
    else:
        function, operands = node.function, node.arguments
    arguments = ", ".join(_render(operand, variable, status) for operand in operands)
    return f"{PREFIX}{function}({status}, {arguments})"
