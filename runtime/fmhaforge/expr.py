# SPDX-License-Identifier: Apache-2.0
"""The language of launch plans: integer expressions over the arguments of an operation.

Grammar (whitespace is free between tokens)::

    sum     = product { ("+" | "-") product }
    product = atom { "*" atom }
    atom    = integer | name | function "(" sum { "," sum } ")" | "(" sum ")"

Functions: `ceil_div(a, b)`, `min(a, b)`, `max(a, b)`. Every intermediate value is a signed 64-bit integer; a value that does
not fit is an error, never a wrap-around. `ceil_div` is the mathematical ceiling and wants a divisor > 0. The same syntax tree
is rendered to C by the generator, so both sides mean the same.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Union

INT64_MIN = -(1 << 63)
INT64_MAX = (1 << 63) - 1

FUNCTIONS = {"ceil_div": 2, "min": 2, "max": 2}
"""Function name -> number of arguments."""

MAX_DEPTH = 32
"""Deepest nesting of parentheses and calls that is read."""

MAX_LENGTH = 512
"""Most characters that an expression may have."""

_TOKEN = re.compile(r"\s*(?:(?P<int>[0-9]+)|(?P<name>[A-Za-z_][A-Za-z0-9_]*)|(?P<op>[-+*(),]))")


class ExprError(ValueError):
    """An expression that cannot be read or evaluated. `text` is the expression, `reason` says what and where."""

    def __init__(self, text: str, reason: str):
        super().__init__(text, reason)
        self.text = text
        self.reason = reason

    def __str__(self) -> str:
        return f"expression {self.text!r}: {self.reason}"


class RangeError(ExprError):
    """A value that does not fit in 64 bits, or a division by a number <= 0."""


@dataclass(frozen=True)
class Number:
    """An integer literal."""

    value: int


@dataclass(frozen=True)
class Name:
    """An argument of the operation, or `sm_count`."""

    name: str


@dataclass(frozen=True)
class Binary:
    """`left op right` with op one of `+ - *`."""

    op: str
    left: "Node"
    right: "Node"


@dataclass(frozen=True)
class Call:
    """A function of two arguments."""

    function: str
    arguments: tuple["Node", ...]


Node = Union[Number, Name, Binary, Call]


@dataclass(frozen=True)
class _Token:
    kind: str  # "int", "name", "op" or "end"
    text: str
    column: int


def _tokens(text: str) -> Iterator[_Token]:
    position = 0
    end = len(text.rstrip())
    while position < end:
        match = _TOKEN.match(text, position)
        if match is None:
            at = position + len(text[position:]) - len(text[position:].lstrip())
            raise ExprError(text, f"character {text[at]!r} at column {at + 1} is not part of the language; "
                                  "use names, integers, + - *, ceil_div, min, max and parentheses")
        kind = match.lastgroup or ""
        yield _Token(kind, match.group(kind), match.start(kind) + 1)
        position = match.end()
    yield _Token("end", "the end", end + 1)


class _Parser:
    """Recursive descent over one token of look-ahead."""

    def __init__(self, text: str):
        self._text = text
        self._tokens = _tokens(text)
        self._token = next(self._tokens)
        self._depth = 0

    def parse(self) -> Node:
        node = self._sum()
        if self._token.kind != "end":
            raise self._unexpected("an operator or the end")
        return node

    def _unexpected(self, wanted: str) -> ExprError:
        return ExprError(self._text, f"expected {wanted} at column {self._token.column}, found {self._token.text}")

    def _advance(self) -> _Token:
        token = self._token
        if token.kind != "end":
            self._token = next(self._tokens)
        return token

    def _at(self, *symbols: str) -> bool:
        return self._token.kind == "op" and self._token.text in symbols

    def _expect(self, symbol: str) -> None:
        if not self._at(symbol):
            raise self._unexpected(repr(symbol))
        self._advance()

    def _sum(self) -> Node:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise ExprError(self._text, f"nested deeper than {MAX_DEPTH} levels; simplify it")
        node = self._product()
        while self._at("+", "-"):
            sign = self._advance().text
            node = Binary(sign, node, self._product())
        self._depth -= 1
        return node

    def _product(self) -> Node:
        node = self._atom()
        while self._at("*"):
            self._advance()
            node = Binary("*", node, self._atom())
        return node

    def _atom(self) -> Node:
        token = self._token
        if token.kind == "int":
            self._advance()
            value = int(token.text) if len(token.text) < 20 else INT64_MAX + 1
            if value > INT64_MAX:
                raise ExprError(self._text, f"integer at column {token.column} does not fit in 64 bits")
            return Number(value)
        if token.kind == "name":
            self._advance()
            return self._call(token) if self._at("(") else self._name(token)
        if self._at("("):
            self._advance()
            node = self._sum()
            self._expect(")")
            return node
        raise self._unexpected("a name, an integer or '('")

    def _name(self, token: _Token) -> Node:
        if token.text in FUNCTIONS:
            raise ExprError(self._text, f"function {token.text} at column {token.column} needs its arguments in parentheses")
        return Name(token.text)

    def _call(self, token: _Token) -> Node:
        if token.text not in FUNCTIONS:
            raise ExprError(self._text, f"unknown function {token.text} at column {token.column}; "
                                        f"there are {', '.join(sorted(FUNCTIONS))}")
        self._advance()
        arguments = [self._sum()]
        while self._at(","):
            self._advance()
            arguments.append(self._sum())
        self._expect(")")
        wanted = FUNCTIONS[token.text]
        if len(arguments) != wanted:
            raise ExprError(self._text, f"{token.text} at column {token.column} takes {wanted} arguments, found {len(arguments)}")
        return Call(token.text, tuple(arguments))


@lru_cache(maxsize=4096)
def parse(text: str) -> Node:
    """The syntax tree of `text`. Raises ExprError with the column when it cannot be read."""
    if not isinstance(text, str):
        raise ExprError(repr(text), f"must be a string, not {type(text).__name__}")
    if len(text) > MAX_LENGTH:
        raise ExprError(text[:40] + "...", f"longer than {MAX_LENGTH} characters; simplify it")
    return _Parser(text).parse()


def appearing(text: str) -> tuple[str, ...]:
    """The names that `text` refers to, in the order in which they first appear."""
    found: dict[str, None] = {}
    pending: list[Node] = [parse(text)]
    while pending:
        node = pending.pop()
        if isinstance(node, Name):
            found[node.name] = None
        elif isinstance(node, Binary):
            pending += (node.right, node.left)
        elif isinstance(node, Call):
            pending += reversed(node.arguments)
    return tuple(found)


def names(text: str) -> frozenset[str]:
    """The names that `text` refers to."""
    return frozenset(appearing(text))


def ceil_div(a: int, b: int) -> int:
    """The smallest integer >= a / b. `b` must be > 0 (ZeroDivisionError otherwise)."""
    if b <= 0:
        raise ZeroDivisionError(f"ceil_div by {b}; the divisor must be > 0")
    return -(-a // b)


_OPERATORS: dict[str, Callable[[int, int], int]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "ceil_div": ceil_div,
    "min": min,
    "max": max,
}


@lru_cache(maxsize=4096)
def compile(text: str) -> Callable[[Mapping[str, int]], int]:  # noqa: A001 - the word of the domain
    """A function from values by name to the value of `text`, a 64-bit integer.

    Compiling raises ExprError for bad syntax; calling raises ExprError for a missing name, a value that is no integer, an
    overflow of 64 bits in any intermediate value, or a division by a number <= 0 (both RangeError).
    """
    return _closure(parse(text), text)


def _closure(node: Node, text: str) -> Callable[[Mapping[str, int]], int]:
    if isinstance(node, Number):
        return _constant(node.value)
    if isinstance(node, Name):
        return _lookup(node.name, text)
    if isinstance(node, Binary):
        return _apply(node.op, _closure(node.left, text), _closure(node.right, text), text)
    left, right = node.arguments
    return _apply(node.function, _closure(left, text), _closure(right, text), text)


def _constant(value: int) -> Callable[[Mapping[str, int]], int]:
    def constant(env: Mapping[str, int]) -> int:
        return value
    return constant


def _lookup(name: str, text: str) -> Callable[[Mapping[str, int]], int]:
    def lookup(env: Mapping[str, int]) -> int:
        try:
            value = env[name]
        except KeyError:
            raise ExprError(text, f"no value for {name}; known are {', '.join(sorted(env)) or 'none'}") from None
        if type(value) is not int:
            raise ExprError(text, f"{name} is {value!r}, not an integer")
        return _fitting(value, name, text)
    return lookup


def _apply(symbol: str, left: Callable, right: Callable, text: str) -> Callable[[Mapping[str, int]], int]:
    function = _OPERATORS[symbol]

    def apply(env: Mapping[str, int]) -> int:
        a, b = left(env), right(env)
        try:
            return _fitting(function(a, b), symbol, text)
        except ZeroDivisionError as error:
            raise RangeError(text, str(error)) from None
    return apply


def _fitting(value: int, what: str, text: str) -> int:
    if INT64_MIN <= value <= INT64_MAX:
        return value
    raise RangeError(text, f"the value of {what} does not fit in 64 bits ({value})")
