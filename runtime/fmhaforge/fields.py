# SPDX-License-Identifier: Apache-2.0
"""Reading typed fields out of parsed JSON, with errors that name the place."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

from .errors import SchemaError

T = TypeVar("T")

_WORDS = {str: "a string", int: "an integer", bool: "true or false", list: "a list", dict: "an object", float: "a number"}


class Fields:
    """One JSON object of a file, such as `rows[3].plan` of `metadata.json`. Unknown keys are left alone."""

    def __init__(self, path: object, where: str, value: object):
        self.path = path
        self.where = where
        if not isinstance(value, dict):
            raise SchemaError(path, f"{where or 'the document'} must be an object, not {type(value).__name__}")
        self.values: dict[str, Any] = value

    def place(self, key: str) -> str:
        """The dotted name of a field, for messages."""
        return f"{self.where}.{key}" if self.where else key

    def error(self, key: str, reason: str) -> SchemaError:
        """An error about the field `key`."""
        return SchemaError(self.path, f"{self.place(key)} {reason}; rebuild the bundle or fetch it again")

    def get(self, key: str, kind: type[T]) -> T:
        """The field `key`, which must be of type `kind` exactly."""
        if key not in self.values:
            raise self.error(key, "is missing")
        value = self.values[key]
        if type(value) is not kind:
            raise self.error(key, f"must be {_WORDS[kind]}, not {value!r}")
        return value

    def at_least(self, key: str, minimum: int) -> int:
        """The integer `key`, which must be at least `minimum`."""
        value = self.get(key, int)
        if value < minimum:
            raise self.error(key, f"must be at least {minimum}, not {value}")
        return value

    def one_of(self, key: str, kind: type[T], known: Collection[T]) -> T:
        """The field `key`, whose value must be one of `known`."""
        value = self.get(key, kind)
        if value not in known:
            raise self.error(key, f"must be one of {', '.join(map(str, known))}, not {value!r}")
        return value

    def optional(self, key: str, kind: type[T]) -> T | None:
        """The field `key`, or None when it is absent or null."""
        return None if self.values.get(key) is None else self.get(key, kind)

    def items(self, key: str, kind: type[T]) -> tuple[T, ...]:
        """The list `key` whose items are all of type `kind`."""
        values = self.get(key, list)
        for index, value in enumerate(values):
            if type(value) is not kind:
                raise self.error(f"{key}[{index}]", f"must be {_WORDS[kind]}, not {value!r}")
        return tuple(values)

    def triple(self, key: str, kind: type[T]) -> tuple[T, T, T]:
        """The list `key` of exactly three items."""
        values = self.items(key, kind)
        if len(values) != 3:
            raise self.error(key, f"must have 3 items, not {len(values)}")
        return values[0], values[1], values[2]

    def child(self, key: str) -> Fields:
        """The object `key`."""
        return Fields(self.path, self.place(key), self.get(key, dict))

    def children(self, key: str) -> tuple[Fields, ...]:
        """The objects in the list `key`."""
        return tuple(Fields(self.path, f"{self.place(key)}[{index}]", value) for index, value in enumerate(self.get(key, list)))

    def named(self, key: str, read: Callable[[str, Fields], T]) -> Mapping[str, T]:
        """The objects in the object `key`, each read by `read(name, fields)`."""
        return {name: read(name, Fields(self.path, f"{self.place(key)}.{name}", value))
                for name, value in self.get(key, dict).items()}
