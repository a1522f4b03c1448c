# SPDX-License-Identifier: Apache-2.0
"""Requests from the outside: loosely typed values become a Query, and a Query that cannot mean anything is refused by the name of its field."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

from .dtypes import dtype_name, mask_name
from .errors import ArgumentError
from .metadata import Metadata, Operation
from .query import ROUTES, Query
from .scalars import flag, whole


def request(operations: tuple[str, ...], head_size: object, sm: object, dtype: object, mask: object, known: Mapping[str, object],
            **options: Any) -> Query:
    """A Query from loosely typed values; entries of `known` that are None are unknown. Raises ArgumentError naming the argument."""
    numbers = {name: whole(name, value) for name, value in known.items() if value is not None}
    return Query(operations, whole("head_size", head_size), whole("sm", sm), dtype_of(dtype), mask_of(mask), numbers, **options)


def dtype_of(value: object) -> str:
    """The name of an element type, see `dtypes.dtype_name`. Raises ArgumentError."""
    try:
        return dtype_name(value)
    except TypeError as error:
        raise ArgumentError("dtype", f"must be {error}") from None


def mask_of(value: object) -> str | None:
    """The name of a mask, None for any. Raises ArgumentError."""
    try:
        return None if value is None else mask_name(value)  # type: ignore[arg-type]
    except TypeError as error:
        raise ArgumentError("mask", f"must be {error}") from None


def checked(metadata: Metadata, query: object) -> Query:
    """A Query with values of the right types and names that exist. Raises ArgumentError naming the field.

    What a bundle may or may not serve (an operation, a mask, a head_dim) is no mistake here: that is for the answer to say.
    """
    if not isinstance(query, Query):
        raise ArgumentError("query", f"must be a fmhaforge.Query, not {query!r}")
    operations = query.operations
    if not operations or isinstance(operations, str) or not isinstance(operations, Collection) or not all(isinstance(name, str) for name in operations):
        raise ArgumentError("operations", f"must be a tuple of names, such as ('llm',), not {operations!r}")
    if query.route not in ROUTES:
        raise ArgumentError("route", f"{query.route!r} is unknown; use {' or '.join(ROUTES)}")
    asked = [metadata.operations[name] for name in query.operations if name in metadata.operations]
    return replace(
        query, operations=tuple(query.operations), head_dim=whole("head_dim", query.head_dim), sm=whole("sm", query.sm),
        dtype=dtype_of(query.dtype), mask=mask_of(query.mask), checked=flag("checked", query.checked), family=family_of(query.family),
        row_sm=None if query.row_sm is None else whole("row_sm", query.row_sm), known=_known(query.known, asked), flags=_flags(query.flags, asked))


def family_of(value: object) -> str | None:
    """The name of a kernel family, None for any. Raises ArgumentError."""
    if value is None or isinstance(value, str):
        return value
    raise ArgumentError("family", f"must be the name of a kernel family, not {value!r}")


def _known(values: Mapping[str, object], asked: Iterable[Operation]) -> dict[str, int]:
    names = {argument.name: None for operation in asked for argument in operation.arguments.values() if argument.type in ("i32", "i64")}
    return {name: whole(name, value) for name, value in _named("known", values, names)}


def _flags(values: Mapping[str, object], asked: Iterable[Operation]) -> dict[str, bool]:
    names = {name: None for operation in asked for name in operation.flags}
    return {name: flag(name, value) for name, value in _named("flags", values, names)}


def _named(field: str, values: object, names: Collection[str]) -> Iterable[tuple[str, object]]:
    """The items of a mapping whose keys are all among `names`, if there are any: with no operation there are none to compare with."""
    if not isinstance(values, Mapping):
        raise ArgumentError(field, f"must be a mapping of names to values, not {values!r}")
    for name in values:
        if names and name not in names:
            raise ArgumentError(field, f"{name!r} is no name of the operation; there are {', '.join(names)}")
    return values.items()
