# SPDX-License-Identifier: Apache-2.0
"""Random expressions with their values, worked out without the parser under test."""

from fmhaforge.expr import INT64_MAX, INT64_MIN

VALUES = (0, 1, -1, 5, 127, 129, 1 << 30, -(1 << 40), INT64_MAX, INT64_MIN)
"""Values for the names a, b and c of a random expression."""


def random_expression(rng, depth):
    """A random expression and a Python function of (a, b, c) that was not made by the parser."""
    choice = rng.randrange(3 if depth == 0 else 9)
    if choice == 0:
        value = rng.choice([0, 1, 2, 3, 64, 128, 1 << 31, INT64_MAX])
        return str(value), lambda env: value
    if choice < 3:
        name = rng.choice("abc")
        return name, lambda env: env[name]
    left, f = random_expression(rng, depth - 1)
    right, g = random_expression(rng, depth - 1)
    if choice < 6:
        symbol, apply = [("+", lambda x, y: x + y), ("-", lambda x, y: x - y), ("*", lambda x, y: x * y)][choice - 3]
        return f"({left}) {symbol} ({right})", lambda env: bounded(apply(f(env), g(env)))
    name, apply = [("min", min), ("max", max), ("ceil_div", divide_up)][choice - 6]
    return f"{name}({left}, {right})", lambda env: bounded(apply(f(env), g(env)))


def divide_up(x, y):
    if y <= 0:
        raise OverflowError
    return x // y + (x % y != 0)


def bounded(value):
    if not INT64_MIN <= value <= INT64_MAX:
        raise OverflowError
    return value
