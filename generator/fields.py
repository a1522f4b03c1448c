# SPDX-License-Identifier: Apache-2.0
"""Reads the fields of a YAML mapping with typed results; every error carries the place and a remedy."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from generator.strict_yaml import Mapping, Mark, Node, Scalar, Sequence, kind

T = TypeVar("T")


def suggestion(name: str, known: Iterable[str]) -> str:
    """A remedy for a word that is not known: the nearest known one, and all of them."""
    import difflib  # here: it is needed for errors only

    known = list(known)
    near = difflib.get_close_matches(name, known, 1)
    return (f"Did you mean {near[0]!r}? " if near else "") + f"Known: {', '.join(known)}"


def mapping(node: Node, what: str) -> Mapping:
    """`node` if it is a mapping."""
    if not isinstance(node, Mapping):
        raise node.mark.error(f"{what} must be a mapping, not {kind(node)}", "Write it as {field: value, ...}")
    return node


def items(node: Node, what: str) -> tuple[Node, ...]:
    """The items of `node` if it is a list with at least one."""
    if not isinstance(node, Sequence):
        raise node.mark.error(f"{what} must be a list, not {kind(node)}", "Write it as [a, b, ...]")
    if not node.items:
        raise node.mark.error(f"{what} is empty", "Give at least one item")
    return node.items


def integer(node: Node, what: str, least: int = 1) -> int:
    """The value of `node` if it is an integer >= `least`."""
    if not isinstance(node, Scalar) or type(node.value) is not int:
        raise node.mark.error(f"{what} must be an integer, not {kind(node)}", "Write a decimal integer without quotes")
    if node.value < least:
        raise node.mark.error(f"{what} is {node.value}, less than {least}", f"Give an integer >= {least}")
    return node.value


def string(node: Node, what: str) -> str:
    """The value of `node` if it is a string."""
    if not isinstance(node, Scalar) or not isinstance(node.value, str):
        raise node.mark.error(f"{what} must be a string, not {kind(node)}", "Write a word, in quotes if it looks like a number")
    return node.value


def boolean(node: Node, what: str) -> bool:
    """The value of `node` if it is a boolean."""
    if not isinstance(node, Scalar) or not isinstance(node.value, bool):
        raise node.mark.error(f"{what} must be a boolean, not {kind(node)}", "Write true or false")
    return node.value


def choice(node: Node, what: str, known: Iterable[str]) -> str:
    """The value of `node` if it is one of the strings `known`."""
    value = string(node, what)
    known = tuple(known)
    if value not in known:
        raise node.mark.error(f"unknown {what} {value!r}", suggestion(value, known))
    return value


class Fields:
    """The fields of one mapping. `required` and `optional` are all the names that it may have."""

    def __init__(self, node: Node, what: str, required: tuple[str, ...], optional: tuple[str, ...] = ()):
        self._what = what
        self._mapping = mapping(node, what)
        self.mark: Mark = self._mapping.mark
        known = required + optional
        for name, mark in self._mapping.keys.items():
            if name not in known:
                raise mark.error(f"unknown field {name!r} in {what}", suggestion(name, known))
        for name in required:
            if name not in self._mapping.entries:
                raise self.mark.error(f"field {name!r} is missing in {what}", f"Add {name}: ...")

    def has(self, name: str) -> bool:
        """Whether the field is there."""
        return name in self._mapping.entries

    def node(self, name: str) -> Node:
        """The value of a field that is there."""
        return self._mapping.entries[name]

    def mark_of(self, name: str) -> Mark:
        """The place of a field's value, or of the mapping when the field is absent."""
        return self.node(name).mark if self.has(name) else self.mark

    def get(self, name: str, read: Callable[..., T], default: T | None = None, **arguments) -> T:
        """The field read by `read(node, name, **arguments)`, or `default` when it is absent."""
        if not self.has(name):
            return default  # type: ignore[return-value]
        return read(self.node(name), name, **arguments)
