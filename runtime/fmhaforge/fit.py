# SPDX-License-Identifier: Apache-2.0
"""Values of a launch that are computed from the arguments and must fit where they go: the grid, parameters, tensor maps.

What does not fit is said in terms of the arguments: the largest is named first, the others beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from . import expr, sentences

GRID_LIMITS = (2**31 - 1, 65535, 65535)
"""The most blocks in x, y and z that any device takes."""

MAP_EXTENT_LIMIT = 2**32 - 1
MAP_STRIDE_LIMIT = 2**40 - 1
"""The largest extent (elements) and stride (bytes) of a tensor map that the driver takes."""

INTEGER_LIMITS = {"i32": (-(2**31), 2**31 - 1), "i64": (expr.INT64_MIN, expr.INT64_MAX)}
"""Type of a parameter -> its least and its largest value."""

DEVICE_NAMES = frozenset({"sm_count"})
"""Names that are properties of the device and no arguments."""

GRID = "the launch's grid in %s"
COUNT = "the number of %s"
PARAMETER = "the kernel's parameter %s"
MAP_EXTENT = "extent %d of tensor map %s"
MAP_STRIDE = "byte stride %d of tensor map %s"
"""What a value is, in a message."""


class Misfit(Exception):
    """A value that does not fit. `given` are the arguments (ABI name, value) that it is computed from, in the order of the expression."""

    def __init__(self, given: Sequence[tuple[str, int]], sentence: str):
        super().__init__(given, sentence)
        self.given = tuple(given)
        self.sentence = sentence

    @property
    def argument(self) -> str:
        """The ABI name of the argument to blame: the one with the largest value."""
        return self._blamed()[0]

    def reason(self, rename: Callable[[str], str] = str) -> str:
        """What is wrong with the value of that argument; `rename` gives the name under which the caller knows an argument."""
        blamed = self._blamed()
        others = [f"{rename(name)} {value}" for name, value in self.given if (name, value) != blamed]
        joined = " and ".join(filter(None, (", ".join(others[:-1]), *others[-1:])))
        return f"{blamed[1]} {f'with {joined} ' if joined else ''}{self.sentence}"

    def _blamed(self) -> tuple[str, int]:
        return max(self.given, key=_value_of)


def _value_of(given: tuple[str, int]) -> int:
    return given[1]


class Fitted:
    """The expression `text`, whose value is `what` and must lie in least .. most. Calling it computes the value or raises Misfit.

    A number by itself is nobody's argument: the build checks it, not the launch.
    """

    def __init__(self, text: str, what: str, least: int, most: int):
        self.names = expr.names(text)
        self._text, self._what, self._least, self._most = text, what, least, most
        self._compute = expr.compile(text)

    def __call__(self, values: Mapping[str, int]) -> int:
        try:
            value = self._compute(values)
        except expr.RangeError:
            raise self._misfit(values, sentences.OVERFLOW % self._what) from None
        if not self.names:
            return value
        if value > self._most:
            raise self._misfit(values, sentences.TOO_LARGE % (self._what, value, self._most))
        if value < self._least:
            raise self._misfit(values, sentences.TOO_SMALL % (self._what, value, self._least))
        return value

    def _misfit(self, values: Mapping[str, int], sentence: str) -> Misfit:
        return Misfit([(name, values[name]) for name in blamable(self._text)], sentence)


def blamable(text: str) -> tuple[str, ...]:
    """The names that an expression's value is blamed on, in order: its arguments, or what else there is."""
    names = expr.appearing(text)
    return tuple(name for name in names if name not in DEVICE_NAMES) or names
