# SPDX-License-Identifier: Apache-2.0
"""The contents of `metadata.json` as frozen dataclasses. This is the one place that reads the file's format."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from . import plan_check
from .checks import Check
from .dtypes import ITEM_BYTES
from .errors import SchemaError
from .fields import Fields
from .plan import SCALAR_BYTES, LaunchPlan, check_expressions
from .plan import read as read_plan

SCHEMA_VERSION = 1
"""The schema that this runtime reads."""


@dataclass(frozen=True)
class Argument:
    """One ABI argument of an operation: its type, element type and the limits that hold before any launch.

    `shape` holds the extents of a pointer's tensor as expressions, outermost first; it is empty for scalars.
    """

    name: str
    type: str
    dtype: str | None
    access: str | None
    shape: tuple[str, ...]
    alignment: int
    minimum: int | None
    maximum: int | None
    multiple_of: int


@dataclass(frozen=True)
class Operation:
    """An ABI class: the masks it serves, its arguments in C order and the relations between them."""

    name: str
    kv_layout: str
    masks: tuple[str, ...]
    seqlen_q_argument: str
    flags: tuple[str, ...]
    arguments: Mapping[str, Argument]
    checks: tuple[Check, ...]


@dataclass(frozen=True)
class Target:
    """A device generation: its SM and the most shared memory a block may opt into."""

    sm: int
    smem_limit: int


@dataclass(frozen=True)
class Select:
    """When a row is preferred: `seqlen_q <= seqlen_q_at_most`, and the flag `only_if`, if named, is true."""

    seqlen_q_at_most: int
    only_if: str | None


@dataclass(frozen=True)
class Row:
    """A variant built for an SM. `raw` is the row as it stands in the metadata."""

    variant: str
    sm: int
    operation: str
    mask: str
    head_dim: int
    kv_layout: str
    dtype: str
    family: str
    checked: bool
    select: Select | None
    cubin: str
    cubin_sha256: str
    cubin_bytes: int
    ptx: str
    ptx_sha256: str
    ptx_target: str
    arch: str
    symbol: str
    registers: int
    spill_bytes: int
    smem_bytes: int
    static_smem_bytes: int
    threads: int
    plan: LaunchPlan = field(repr=False)
    validated: bool
    raw: Mapping[str, Any] = field(repr=False, compare=False)

    @property
    def label(self) -> str:
        """The row in words, for messages: `fmha_v2_d64 for SM 90`."""
        return f"{self.variant} for SM {self.sm}"


@dataclass(frozen=True)
class Metadata:
    """A whole bundle, as data. `rows` keeps the manifest's order, which decides between rules that hold at once."""

    name: str
    version: str
    validated: bool
    operations: Mapping[str, Operation]
    targets: Mapping[int, Target]
    exact_families: frozenset[str]
    families: tuple[str, ...]
    arch_table: Mapping[int, tuple[int, ...]]
    rows: tuple[Row, ...]
    raw: Mapping[str, Any]


def parse(data: bytes, path: object) -> Metadata:
    """Reads the bytes of `metadata.json`; `path` is used in messages. Raises SchemaError naming the field."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:  # no UTF-8, no JSON, or a number of thousands of digits
        raise SchemaError(path, f"is not JSON ({error}); rebuild the bundle or fetch it again") from error
    fields = Fields(path, "", document)
    version = fields.get("schema_version", int)
    if version != SCHEMA_VERSION:
        remedy = "upgrade fmhaforge" if version > SCHEMA_VERSION else "rebuild the bundle"
        raise SchemaError(path, f"has schema version {version}, this runtime reads {SCHEMA_VERSION}; {remedy}")
    families = fields.named("families", lambda _, family: family.get("exact", bool))
    metadata = Metadata(
        name=fields.get("name", str),
        version=fields.get("version", str),
        validated=fields.get("validated", bool),
        operations=fields.named("operations", _operation),
        targets={target.sm: target for target in map(_target, fields.children("targets"))},
        exact_families=frozenset(name for name, exact in families.items() if exact),
        families=tuple(families),
        arch_table=_arch_table(fields.child("arch_table")),
        rows=tuple(map(_row, fields.children("rows"))),
        raw=document,
    )
    _check_references(metadata, fields)
    return metadata


def _operation(name: str, fields: Fields) -> Operation:
    arguments = map(_argument, fields.children("arguments"))
    return Operation(
        name, fields.get("kv_layout", str), fields.items("masks", str), fields.get("seqlen_q_argument", str),
        fields.items("flags", str), {argument.name: argument for argument in arguments},
        tuple(map(_check, fields.children("checks"))))


def _argument(fields: Fields) -> Argument:
    return Argument(
        fields.get("name", str), fields.get("type", str), fields.optional("dtype", str), fields.optional("access", str),
        _shape(fields), fields.at_least("alignment", 1), fields.optional("minimum", int), fields.optional("maximum", int),
        fields.at_least("multiple_of", 1))


def _shape(fields: Fields) -> tuple[str, ...]:
    text = fields.optional("shape", str)
    if text is None:
        return ()
    if not (text.startswith("[") and text.endswith("]")):
        raise fields.error("shape", f"must look like [batch, 2], not {text!r}")
    extents = tuple(extent.strip() for extent in text[1:-1].split(","))
    return check_expressions(fields, "shape", extents)


def _check(fields: Fields) -> Check:
    values = {key: fields.get(key, str) for key in ("name", "kind", "left", "right", "message")}
    try:
        return Check.from_json(values)
    except ValueError as error:
        raise fields.error("kind", str(error)) from error


def _target(fields: Fields) -> Target:
    return Target(fields.at_least("sm", 0), fields.at_least("smem_limit", 0))


def _arch_table(fields: Fields) -> dict[int, tuple[int, ...]]:
    try:
        return {int(sm): fields.items(sm, int) for sm in fields.values}
    except ValueError as error:
        raise SchemaError(fields.path, f"{fields.where} has a key that is no SM number ({error}); rebuild the bundle") from error


def _select(fields: Fields) -> Select:
    return Select(fields.get("seqlen_q_at_most", int), fields.optional("only_if", str))


def _row(fields: Fields) -> Row:
    texts = ("variant", "operation", "mask", "kv_layout", "dtype", "family", "cubin_sha256", "ptx_sha256", "ptx_target", "arch")
    numbers = ("sm", "head_dim", "cubin_bytes", "registers", "spill_bytes", "smem_bytes", "static_smem_bytes", "threads")
    return Row(
        **{key: fields.get(key, str) for key in texts},
        **{key: _path(fields, key) for key in ("cubin", "ptx")},
        symbol=_plain(fields, "symbol"),
        **{key: fields.at_least(key, 0) for key in numbers},
        **{key: fields.get(key, bool) for key in ("checked", "validated")},
        select=_select(fields.child("select")) if fields.values.get("select") is not None else None,
        plan=read_plan(fields.child("plan")),
        raw=fields.values,
    )


def _plain(fields: Fields, key: str) -> str:
    text = fields.get(key, str)
    if not (text.isascii() and text.isprintable()):
        raise fields.error(key, f"must be printable ASCII, not {text!r}")
    return text


def _path(fields: Fields, key: str) -> str:
    """The path of a file of the bundle."""
    text = _plain(fields, key)
    path = PurePosixPath(text)
    if path.is_absolute() or ".." in path.parts:
        raise fields.error(key, f"is {text}, which leads out of the bundle")
    return text


def _check_references(metadata: Metadata, fields: Fields) -> None:
    """What a row names must exist, so that nothing fails later with a KeyError."""
    for name, operation in metadata.operations.items():
        _check_operation(name, operation, fields)
    seen = set()
    for index, row in enumerate(metadata.rows):
        where = f"rows[{index}]"
        if row.operation not in metadata.operations:
            raise fields.error(f"{where}.operation", f"is {row.operation!r}, which is not among the operations")
        if row.family not in metadata.families:
            raise fields.error(f"{where}.family", f"is {row.family!r}, which is not among the families")
        if (row.variant, row.sm) in seen:
            raise fields.error(where, f"repeats {row.label}")
        seen.add((row.variant, row.sm))
        if row.select is not None and row.select.only_if not in (None, *metadata.operations[row.operation].flags):
            raise fields.error(f"{where}.select.only_if", f"is {row.select.only_if!r}, which is no flag of {row.operation}")
        for field_name, reason in plan_check.problems(row, metadata.operations[row.operation]):
            raise fields.error(f"{where}.plan.{field_name}".rstrip("."), reason)
    missing = set(metadata.arch_table) - set(metadata.targets)
    if missing:
        raise fields.error("arch_table", f"serves SM {min(missing)}, which is not among the targets")


def _check_operation(name: str, operation: Operation, fields: Fields) -> None:
    """What an operation says of its arguments is said of arguments that it has."""
    where = f"operations.{name}"
    if operation.seqlen_q_argument not in operation.arguments:
        raise fields.error(f"{where}.seqlen_q_argument", f"is {operation.seqlen_q_argument!r}, which is no argument of it")
    for argument in operation.arguments.values():
        if argument.type not in SCALAR_BYTES:
            raise fields.error(f"{where}.arguments", f"{argument.name} has type {argument.type!r}; there are {', '.join(SCALAR_BYTES)}")
        if argument.type == "ptr" and argument.dtype not in ITEM_BYTES:
            raise fields.error(f"{where}.arguments", f"{argument.name} has element type {argument.dtype!r}, which this runtime does not know")
        if argument.type == "ptr" and argument.alignment % ITEM_BYTES[argument.dtype or ""]:
            raise fields.error(f"{where}.arguments", f"{argument.name} is aligned to {argument.alignment} bytes, but its elements are {argument.dtype}")
    for check in operation.checks:
        unknown = sorted(check.names() - set(operation.arguments))
        if unknown:
            raise fields.error(f"{where}.checks", f"{check.name} names {unknown[0]!r}, which is no argument of it")
        others = sorted(name for name in check.names() if operation.arguments[name].type not in ("i32", "i64"))
        if others:
            raise fields.error(f"{where}.checks", f"{check.name} names {others[0]!r}, which is no integer")
