# SPDX-License-Identifier: Apache-2.0
"""Relations between integers, as data: the same list is checked in C and in Python, before any launch.

A check compares two expressions of `fmhaforge.expr`. Kinds: `at_most` (left <= right), `multiple` (left is a multiple of
right, right > 0) and `equal`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from fmhaforge import expr, sentences

KINDS = ("at_most", "multiple", "equal")


@dataclass(frozen=True)
class Check:
    """One relation. `name` is stable and machine-readable, `message` says what a person has to put right."""

    name: str
    kind: str
    left: str
    right: str
    message: str

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"check {self.name}: unknown kind {self.kind!r}; there are {', '.join(KINDS)}")
        expr.parse(self.left)
        expr.parse(self.right)

    def names(self) -> frozenset[str]:
        """The names that the check reads."""
        return expr.names(self.left) | expr.names(self.right)

    def failure(self, env: Mapping[str, int]) -> str | None:
        """None when the relation holds for the values in `env`, else a sentence with the values found."""
        try:
            left, right = expr.compile(self.left)(env), expr.compile(self.right)(env)
        except expr.RangeError:
            return sentences.RELATION_OVERFLOW % (self.message, self.left, self.right)
        if _holds(self.kind, left, right):
            return None
        return sentences.RELATION % (self.message, self.left, left, self.right, right)

    def to_json(self) -> dict[str, str]:
        """The check as plain JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, str]) -> "Check":
        """The inverse of `to_json`."""
        return cls(**value)


def _holds(kind: str, left: int, right: int) -> bool:
    if kind == "at_most":
        return left <= right
    if kind == "equal":
        return left == right
    return right > 0 and left % right == 0
