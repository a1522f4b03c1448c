# SPDX-License-Identifier: Apache-2.0
"""The metadata of a bundle in the words of C: what the templates of the header and of the source show."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from fmhaforge.checks import Check
from fmhaforge.metadata import Argument, Metadata, Operation, Row
from fmhaforge.plan import LaunchPlan
from generator.cabi import numbers
from generator.cabi.plan_c import PlanCode, argument_limits, int64, integer, plan_code

_ELEMENT_TYPES = {"float16": "void", "int32": "int32_t"}
_SCALAR_TYPES = {"i32": "int32_t", "i64": "int64_t", "f32": "float"}
_FIELD_TYPES = {"ptr": "FF_TYPE_POINTER", "i32": "FF_TYPE_I32", "i64": "FF_TYPE_I64", "f32": "FF_TYPE_F32"}
_RELATIONS = {"at_most": "FF_RELATION_AT_MOST", "multiple": "FF_RELATION_MULTIPLE", "equal": "FF_RELATION_EQUAL"}
_HEADS = frozenset(("num_q_heads", "num_kv_heads"))
_SIZES = {"ptr": 8, "i32": 4, "i64": 8, "f32": 4}


@dataclass(frozen=True)
class ArgumentC:
    """A member of an argument struct."""

    name: str
    c_type: str
    comment: str


@dataclass(frozen=True)
class CheckC:
    """The limits of a member, as in ff_check."""

    name: str
    type: str
    minimum: str
    maximum: str
    multiple_of: int


@dataclass(frozen=True)
class RelationC:
    """A relation between members: `left_c` and `right_c` read int64_t locals called `names`."""

    kind: str
    left: str
    right: str
    message: str
    left_c: str
    right_c: str
    names: tuple[str, ...]


@dataclass(frozen=True)
class OperationC:
    """An operation with its argument struct."""

    name: str
    enumerator: str
    args_type: str
    doc: str
    seqlen_q_argument: str
    arguments: tuple[ArgumentC, ...]
    checks: tuple[CheckC, ...]
    relations: tuple[RelationC, ...]
    head_relations: tuple[RelationC, ...]


@dataclass(frozen=True)
class RowC:
    """What is known of an entry of the row table before there are cubins: numbers and enumerators as C text."""

    operation: str
    mask: str
    dtype: str
    head_dim: int
    sm: int
    exact: int
    checked: int
    seqlen_q_at_most: int
    only_if: int
    threads: int
    smem_bytes: int
    variant: str
    family: str
    kv_layout: str
    abi_class: str
    plan: int


@dataclass(frozen=True)
class VariantC:
    """A variant and its rows, which stand together in the row table."""

    name: str
    first_row: int
    row_count: int
    row: Row
    sms: tuple[int, ...]
    operation: OperationC


@dataclass(frozen=True)
class ArchC:
    """An entry of the architecture table."""

    sm: int
    smem_limit: int
    row_sms: tuple[int, ...]


@dataclass(frozen=True)
class Model:
    """Everything the templates need."""

    version: str
    operations: tuple[OperationC, ...]
    rows: tuple[RowC, ...]
    variants: tuple[VariantC, ...]
    archs: tuple[ArchC, ...]
    plans: tuple[PlanCode, ...]

    @property
    def max_params(self) -> int:
        """The most parameters of a kernel."""
        return max(plan.param_count for plan in self.plans)

    @property
    def max_param_bytes(self) -> int:
        """The largest parameter buffer, in bytes."""
        return max(plan.param_bytes for plan in self.plans)

    @property
    def max_arch_rows(self) -> int:
        """The most row SMs that serve one device SM."""
        return max(len(arch.row_sms) for arch in self.archs)


def make_model(metadata: Metadata) -> Model:
    """The model of a bundle's metadata. Raises KeyError when a word has no number in the ABI yet."""
    operations = tuple(_operation(metadata.operations[member.word], metadata.raw["operations"][member.word], member)
                       for member in numbers.OPERATIONS.members if member.word in metadata.operations)
    by_name = {operation.name: operation for operation in operations}
    plans = _plan_indices(metadata)
    return Model(
        metadata.version,
        operations,
        tuple(_row(row, metadata, plans) for row in metadata.rows),
        _variants(metadata, by_name),
        tuple(ArchC(sm, metadata.targets[sm].smem_limit, rows) for sm, rows in sorted(metadata.arch_table.items())),
        tuple(plan_code(plan, metadata.operations[operation], by_name[operation].args_type, used_by)
              for (plan, operation), (_, used_by) in plans.items()),
    )


def _operation(operation: Operation, raw: Mapping[str, Any], member: numbers.Member) -> OperationC:
    arguments = tuple(zip(operation.arguments.values(), raw["arguments"]))
    reserved = _reserved(tuple(operation.arguments.values()))
    return OperationC(
        operation.name, member.name, f"fmhaforge_{operation.name}_args", raw["doc"], operation.seqlen_q_argument,
        (*(_argument(argument, raw_argument["doc"], raw_argument["positive"]) for argument, raw_argument in arguments),
         *(argument for argument, _ in reserved)),
        (*(_check(argument, raw_argument["positive"]) for argument, raw_argument in arguments), *(check for _, check in reserved)),
        tuple(map(_relation, operation.checks)),
        tuple(_relation(check) for check in operation.checks if check.names() <= _HEADS),
    )


def _reserved(arguments: tuple[Argument, ...]) -> tuple[tuple[ArgumentC, CheckC], ...]:
    """A member that must be 0 in place of the padding at the struct's end, if there is any.

    A member that a later version adds would lie in the padding: the size would not tell of it, and callers of today leave anything there.
    """
    end = 0
    for argument in arguments:
        size = _SIZES[argument.type]
        end = -(-end // size) * size + size
    if end % 8 == 0:
        return ()
    return ((ArgumentC("reserved", "int32_t", "0; the place of a member that a later version may add"),
             CheckC("reserved", _FIELD_TYPES["i32"], int64(0), int64(0), 1)),)


def _argument(argument: Argument, doc: str, positive: bool) -> ArgumentC:
    comment = "; ".join((doc, *_limits_in_words(argument, positive)))
    if argument.type != "ptr":
        return ArgumentC(argument.name, _SCALAR_TYPES[argument.type], comment)
    const = "" if argument.access == "out" else "const "
    element = _ELEMENT_TYPES[argument.dtype or ""]
    return ArgumentC(argument.name, f"{const}{element}*", f"{argument.dtype} [{', '.join(argument.shape)}], {comment}")


def _limits_in_words(argument: Argument, positive: bool) -> Iterator[str]:
    """The limits that the member's type does not tell of, and a caller may break."""
    if argument.type == "ptr":
        yield f"aligned to {argument.alignment} bytes"
        return
    if argument.type == "f32":
        yield f"finite{' and > 0' if positive else ''}"
    least, most = (None, None) if argument.type == "f32" else argument_limits(argument.type, None, None)
    if argument.minimum not in (None, least, 0):
        yield f"at least {argument.minimum}"
    if argument.maximum not in (None, most):
        yield f"at most {argument.maximum}"
    if argument.multiple_of > 1:
        yield f"a multiple of {argument.multiple_of}"


def _check(argument: Argument, positive: bool) -> CheckC:
    if argument.type == "ptr":
        return CheckC(argument.name, _FIELD_TYPES["ptr"], "0", "0", argument.alignment)
    if argument.type == "f32":
        return CheckC(argument.name, _FIELD_TYPES["f32"], str(int(positive)), int64(argument.maximum or 0), 1)
    minimum, maximum = argument_limits(argument.type, argument.minimum, argument.maximum)
    return CheckC(argument.name, _FIELD_TYPES[argument.type], int64(minimum), int64(maximum), argument.multiple_of)


def _relation(check: Check) -> RelationC:
    return RelationC(_RELATIONS[check.kind], check.left, check.right, check.message, integer(check.left), integer(check.right),
                     tuple(sorted(check.names())))


def _plan_indices(metadata: Metadata) -> dict[tuple[LaunchPlan, str], tuple[int, str]]:
    """(plan, operation) -> (index, the variants that use it); equal plans share one function."""
    users: dict[tuple[LaunchPlan, str], dict[str, None]] = {}
    for row in metadata.rows:
        users.setdefault((row.plan, row.operation), {})[row.variant] = None
    return {key: (index, ", ".join(variants)) for index, (key, variants) in enumerate(users.items())}


def _row(row: Row, metadata: Metadata, plans: Mapping[tuple[LaunchPlan, str], tuple[int, str]]) -> RowC:
    rule = row.select
    return RowC(
        numbers.OPERATIONS.by_word(row.operation).name, numbers.MASKS.by_word(row.mask).name, numbers.DTYPES.by_word(row.dtype).name,
        row.head_dim, row.sm, int(row.family in metadata.exact_families), int(row.checked),
        -1 if rule is None else rule.seqlen_q_at_most,
        0 if rule is None or rule.only_if is None else numbers.FLAGS.by_word(rule.only_if).value,
        row.threads, row.smem_bytes, row.variant, row.family, row.kv_layout, row.raw["abi_class"], plans[row.plan, row.operation][0])


def _variants(metadata: Metadata, operations: Mapping[str, OperationC]) -> tuple[VariantC, ...]:
    """Variants sorted by name, for the binary search."""
    rows: dict[str, list[int]] = {}
    for index, row in enumerate(metadata.rows):
        rows.setdefault(row.variant, []).append(index)
    found = []
    for name in sorted(rows):
        indices = rows[name]
        if indices != list(range(indices[0], indices[0] + len(indices))):
            raise ValueError(f"the rows of {name} do not stand together in the metadata; sort rows by variant and SM")
        row = metadata.rows[indices[0]]
        sms = tuple(metadata.rows[index].sm for index in indices)
        found.append(VariantC(name, indices[0], len(indices), row, sms, operations[row.operation]))
    return tuple(found)
