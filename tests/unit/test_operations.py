# SPDX-License-Identifier: Apache-2.0
"""The ABI arguments of every operation, against the table of docs/architecture.md, and their limits."""

import json
import re
from pathlib import Path

import pytest

from fmhaforge import expr
from fmhaforge.checks import Check
from generator.operations import EXTRA_NAMES, OPERATIONS

ROOT = Path(__file__).resolve().parents[2]
TYPES = ("ptr", "i32", "i64", "f32")


def documented():
    """operation -> type -> names, from the table of docs/architecture.md with its `as ...` abbreviations."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    table = {}
    for name in OPERATIONS:
        line = re.search(rf"^\| {name} \| (.*) \|$", text, re.MULTILINE)
        cells = [cell.strip().replace(",", "") for cell in line.group(1).split("|")]
        table[name] = {type_: _names(cell, table, type_) for type_, cell in zip(TYPES, cells)}
    return table


def _names(cell, table, type_):
    reference = re.match(r"as (\w+) ?", cell)
    before = table[reference.group(1)][type_] if reference else []
    return before + (cell[reference.end():] if reference else cell).split()


def test_arguments_are_those_of_the_documentation():
    wanted = documented()
    for operation in OPERATIONS.values():
        found = {type_: [a.name for a in operation.arguments if a.type == type_] for type_ in TYPES}
        assert found == wanted[operation.name], operation.name
        assert [a.type for a in operation.arguments] == sorted((a.type for a in operation.arguments), key=TYPES.index)
        assert len(set(operation.names())) == len(operation.arguments)


def test_the_classes():
    assert {o.name: (o.abi_class, o.kv_layout, o.masks, o.seqlen_q_argument, o.flags) for o in OPERATIONS.values()} == {
        "llm": ("L14", "dense", ("causal", "sliding_causal"), "seqlen_q", ("use_small_d64",)),
        "paged": ("P11", "paged", ("causal", "sliding_causal"), "seqlen_q", ()),
        "paged_ragged": ("R12", "paged", ("causal", "sliding_causal"), "max_seqlen_q", ()),
        "padding": ("N10", "dense", ("padding",), "seqlen_q", ()),
        "vision_block": ("B16", "dense", ("vision_block",), "seqlen_q", ()),
        "vit": ("V12", "packed", ("bidirectional",), "max_seqlen", ()),
    }


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=list(OPERATIONS))
def test_limits(operation):
    known = operation.integer_names() | {"head_dim"}
    assert operation.seqlen_q_argument in operation.names()
    for argument in operation.arguments:
        assert argument.doc
        if argument.type == "ptr":
            halves = argument.name in ("q", "k", "v", "o", "kv_pool")
            assert (argument.dtype, argument.alignment) == (("float16", 16) if halves else ("int32", 4))
            assert argument.access == ("out" if argument.name == "o" else "in")
            for extent in argument.shape.strip("[]").split(","):
                assert expr.names(extent) <= known, f"{argument.name}: extent {extent}"
        elif argument.type == "f32":
            assert argument.positive and argument.maximum == 94549  # 65536 x log2(e), rounded up
        else:
            assert argument.minimum <= 2 and argument.maximum >= 1 << 20
            wide = argument.type == "i64"
            assert argument.maximum < 1 << (63 if wide else 31)
            if wide and not argument.name.startswith(("page_list", "block")):
                assert argument.multiple_of == 8, "rows start at 16 bytes"


def minimum(operation, name):
    return OPERATIONS[operation].argument(name).minimum


def test_named_limits():
    assert {minimum(o, n) for o in OPERATIONS for n in ("num_q_heads", "num_kv_heads")} == {1}
    assert {minimum(o, OPERATIONS[o].seqlen_q_argument) for o in OPERATIONS} == {0}
    assert {minimum(o, "batch") for o in OPERATIONS} == {0}
    assert minimum("llm", "seqlen_kv") == 0
    assert minimum("paged", "max_pages") == 1
    pages = OPERATIONS["paged_ragged"].argument("num_flat_pages")
    assert (pages.minimum, pages.multiple_of) == (2, 2)
    window = OPERATIONS["llm"].argument("window_size_left")
    assert (window.minimum, window.maximum) == (-1, 1 << 30)


@pytest.mark.parametrize("heads, fails", [((8, 8), False), ((8, 1), False), ((14, 2), False), ((24, 3), False),
                                          ((8, 3), True), ((2, 4), True), ((1, 0), True)])
def test_heads_must_be_divisible(heads, fails):
    for operation in OPERATIONS.values():
        (check,) = [check for check in operation.checks if check.name == "heads_divisible"]
        failure = check.failure({"num_q_heads": heads[0], "num_kv_heads": heads[1]})
        if fails:
            assert failure == (f"num_q_heads must be a multiple of num_kv_heads (num_q_heads is {heads[0]}, "
                               f"num_kv_heads is {heads[1]})")
        else:
            assert failure is None


def test_checks_read_integer_arguments_only():
    for operation in OPERATIONS.values():
        for check in operation.checks:
            assert check.names() <= operation.integer_names()
            assert Check.from_json(json.loads(json.dumps(check.to_json()))) == check


@pytest.mark.parametrize("kind, left, right, holds", [
    ("at_most", "a", "3", True), ("at_most", "a", "2", False), ("equal", "a + 1", "4", True), ("equal", "a", "4", False),
    ("multiple", "6", "a", True), ("multiple", "7", "a", False), ("multiple", "6", "a - 3", False), ("multiple", "0", "a", True),
])
def test_check_kinds(kind, left, right, holds):
    assert (Check("x", kind, left, right, "wrong").failure({"a": 3}) is None) is holds


def test_a_check_that_can_not_be_read_is_refused():
    with pytest.raises(ValueError, match="check x: unknown kind 'less'; there are at_most, multiple, equal"):
        Check("x", "less", "a", "b", "wrong")
    with pytest.raises(expr.ExprError):
        Check("x", "equal", "a b", "b", "wrong")


def test_names():
    operation = OPERATIONS["vit"]
    assert operation.integer_names() == {"batch", "total_seqlen", "max_seqlen", "num_q_heads", "num_kv_heads", "q_stride_seq",
                                         "k_stride_seq", "v_stride_seq", "o_stride_seq", *EXTRA_NAMES}
    assert operation.argument("scale_log2").type == "f32"
    with pytest.raises(KeyError, match="operation vit has no argument 'seqlen_q'; it has q, k, v, o, cu_seqlens"):
        operation.argument("seqlen_q")


def test_to_json():
    values = json.loads(json.dumps({name: operation.to_json() for name, operation in OPERATIONS.items()}))
    assert set(values["llm"]) == {"abi_class", "arguments", "checks", "doc", "flags", "kv_layout", "masks", "seqlen_q_argument"}
    assert [argument["name"] for argument in values["llm"]["arguments"]] == list(OPERATIONS["llm"].names())
    assert values["llm"]["arguments"][0] == {
        "name": "q", "type": "ptr", "doc": "queries", "dtype": "float16", "access": "in", "alignment": 16, "minimum": None,
        "maximum": None, "multiple_of": 1, "positive": False, "shape": "[batch, seqlen_q, num_q_heads, head_dim]"}
