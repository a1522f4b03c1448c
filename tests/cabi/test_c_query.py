# SPDX-License-Identifier: Apache-2.0
"""The C query gives the row, the failing field and the very sentence of the Python query, over a grid of problems."""

import ctypes
import random

import pytest

from c_build import build
from fmhaforge import clib
from fmhaforge.query import Query, select
from generator import edge_llm

SMS = (75, 80, 86, 87, 88, 89, 90, 100, 101, 103, 110, 120, 121)
HEAD_DIMS = (32, 64, 72, 80, 96, 128, 256, 512)
HEADS = ((1, 1), (8, 8), (32, 8), (6, 4), (0, 1), (4, 0), (-3, 1), (7, 7), (65536, 2), (1 << 30, 1 << 30))
SEQLENS = (None, 0, 1, 512, 513, 4096, -7, 1 << 23, 1 << 30, (1 << 31) - 1)


@pytest.fixture(scope="session")
def library(built):
    return clib.CLibrary(built.libraries.shared)


def ask_python(metadata, operation, mask, head_dim, sm, heads, seqlen_q, flags, checked):
    known = {"num_q_heads": heads[0], "num_kv_heads": heads[1]}
    if seqlen_q is not None:
        known[metadata.operations[operation].seqlen_q_argument] = seqlen_q
    return select(metadata, Query((operation,), head_dim, sm, mask=mask, known=known, flags=flags, checked=checked))


def compare(metadata, library, operation, mask, head_dim, sm, heads, seqlen_q, flags, checked=False):
    support = ask_python(metadata, operation, mask, head_dim, sm, heads, seqlen_q, flags, checked)
    problem = clib.problem(operation, mask, head_dim, sm, *heads, seqlen_q=clib.SEQLEN_UNKNOWN if seqlen_q is None else seqlen_q,
                           flags=flags, checked=checked)
    refusal = library.why_not(problem)
    asked = (operation, mask, head_dim, sm, heads, seqlen_q, flags, checked)
    if support:
        row = library.query(problem).contents
        wanted = support.rows[-1]
        assert (row.variant.decode(), row.sm) == (wanted.variant, wanted.sm), asked
        assert refusal.field == 0 and refusal.nearest.contents.index == row.index, asked
        return True
    field = support.field if support.field != metadata.operations[operation].seqlen_q_argument else "seqlen_q"
    assert (clib.FIELDS[refusal.field], refusal.reason.decode()) == (field, support.reason), asked
    with pytest.raises(clib.CLibraryError) as refused:
        library.query(problem)
    assert (refused.value.status, refused.value.reason) == ("UNSUPPORTED", support.reason), asked
    if support.nearest:
        nearest = refusal.nearest.contents
        assert (nearest.variant.decode(), nearest.sm) == (support.nearest[0].row.variant, support.nearest[0].row.sm), asked
    return False


def random_problem(metadata, rng):
    """The keys of a row, each replaced by something else now and then."""
    row = rng.choice(metadata.rows)
    keys = [(row.operation, metadata.operations), (row.mask, clib.MASKS), (row.head_dim, HEAD_DIMS), (row.sm, SMS), ((8, 2), HEADS),
            (512, SEQLENS)]
    picked = [rng.choice(list(others)) if rng.random() < 0.2 else key for key, others in keys]
    return (*picked, {"use_small_d64": rng.random() < 0.5})


def test_query_equals_python_on_random_problems(built, library):
    rng = random.Random(17)
    served = [compare(built.metadata, library, *random_problem(built.metadata, rng)) for _ in range(3000)]
    assert 300 < sum(served) < 2700


def test_query_equals_python_on_every_row(built, library):
    for row in built.metadata.rows:
        for flags in ({"use_small_d64": True}, {}):
            for seqlen_q in (None, 512, 513):
                assert compare(built.metadata, library, row.operation, row.mask, row.head_dim, row.sm, (8, 2), seqlen_q, flags)


def test_small_variant_is_chosen_by_its_rule(library):
    def variant(seqlen_q, flags):
        return library.query(clib.problem("llm", "causal", 64, 90, seqlen_q=seqlen_q, flags=flags)).contents.variant
    assert variant(512, {"use_small_d64": True}) == b"fmha_v2_d64_small"
    assert variant(513, {"use_small_d64": True}) == b"fmha_v2_d64"
    assert variant(512, {}) == b"fmha_v2_d64"
    assert variant(clib.SEQLEN_UNKNOWN, {"use_small_d64": True}) == b"fmha_v2_d64"


def test_the_grid_limits_the_answer(built, library):
    """As much of it as a problem tells: the same answer as Python's, in the words of the problem."""
    assert not compare(built.metadata, library, "llm", "causal", 64, 86, (8, 2), 1 << 23, {})
    assert compare(built.metadata, library, "llm", "causal", 64, 86, (8, 2), (1 << 23) - 128, {})
    assert compare(built.metadata, library, "llm", "causal", 64, 90, (8, 2), 1 << 23, {})
    assert not compare(built.metadata, library, "paged_ragged", "causal", 128, 86, (8, 2), 1 << 30, {})
    refusal = library.why_not(clib.problem("llm", "causal", 64, 86, seqlen_q=1 << 23))
    assert refusal.reason == b"seqlen_q: 8388608 is too large: the launch's grid in y would be 65536, at most 65535 is possible; split the work"


def test_fewer_sms_and_checked_rows(tmp_path, manifest, zig):
    """A bundle of some SMs: devices are served by older minors, and refusals name what is there."""
    small = build(tmp_path, manifest, zig, sms=[80, 90, 101], variants=["fmha_v2_d64", "fmha_v2_d64_small", "fmha_v2_d128_sw"])
    library = clib.CLibrary(small.libraries.shared)
    assert library.query(clib.problem("llm", "causal", 64, 89)).contents.sm == 80
    assert library.query(clib.problem("llm", "causal", 64, 110)).contents.sm == 101
    rng = random.Random(23)
    served = [compare(small.metadata, library, *random_problem(small.metadata, rng), checked=rng.random() < 0.1) for _ in range(1000)]
    assert 20 < sum(served) < 980


def test_checked_rows_stay_out(tmp_path, manifest, zig):
    made = build(tmp_path, manifest, zig, sms=[90], variants=["fmha_v2_d64_paged*"], checked=True)
    assert {row.checked for row in made.metadata.rows} == {True, False}
    library = clib.CLibrary(made.libraries.shared)
    assert {row.variant.decode() for row in library.rows()} == {row.variant for row in made.metadata.rows if not row.checked}
    refusal = library.why_not(clib.problem("paged", "causal", 64, 90, checked=True))
    assert refusal.reason.startswith(b"checked True is not served (there is False); nearest: ")
    builder = edge_llm.Builder(made.document, made.bundle, tmp_path / "edge", zig)
    assert builder.variants((90,)) == tuple(dict.fromkeys(row.variant for row in made.metadata.rows if not row.checked))


def test_rules_without_a_general_variant(tmp_path, manifest, zig):
    def only_ruled(document):
        document["rows"] = [row for row in document["rows"] if row["select"]]
    small = build(tmp_path, manifest, zig, sms=[80], variants=["fmha_v2_d64", "fmha_v2_d64_small"], change=only_ruled)
    library = clib.CLibrary(small.libraries.shared)
    arguments = ("llm", "causal", 64, 80, (8, 2), 600, {"use_small_d64": True})
    assert not compare(small.metadata, library, *arguments)


def test_shared_memory_of_the_device_limits_the_answer(tmp_path, manifest, zig):
    def large(document):
        for row in document["rows"]:
            row["static_smem_bytes"] = 150000
    small = build(tmp_path, manifest, zig, sms=[80], variants=["fmha_v2_d64"], change=large)
    library = clib.CLibrary(small.libraries.shared)
    assert not compare(small.metadata, library, "llm", "causal", 64, 80, (8, 2), 600, {})
    assert not compare(small.metadata, library, "llm", "causal", 64, 86, (8, 2), 600, {})
    refusal = library.why_not(clib.problem("llm", "causal", 64, 86))
    assert clib.FIELDS[refusal.field] == "smem_bytes" and b"SM 86 gives at most 101376" in refusal.reason


@pytest.mark.parametrize("change, status, words", [
    ({"size": 8}, "ABI_MISMATCH", "fmhaforge_problem.size is 8, this library needs 48"),
    ({"operation": 99}, "UNSUPPORTED", "operation 99 is not served (there are llm, "),
    ({"mask": 77}, "UNSUPPORTED", "mask 77 is not served (there are causal, sliding_causal); nearest: "),
    ({"dtype": 0}, "UNSUPPORTED", "dtype 0 is not served (there is float16)"),
])
def test_bad_problems(library, change, status, words):
    problem = clib.problem("llm", "causal", 64, 80)
    for name, value in change.items():
        setattr(problem, name, value)
    with pytest.raises(clib.CLibraryError) as refused:
        library.query(problem)
    assert refused.value.status == status and words in refused.value.reason


def test_find_row(built, library):
    for row in built.metadata.rows:
        found = library.find_row(row.variant, row.sm).contents
        assert (found.variant.decode(), found.sm, found.cubin_sha256.decode()) == (row.variant, row.sm, row.cubin_sha256)
    with pytest.raises(clib.CLibraryError, match="variant fmha_v9 is not in this library"):
        library.find_row("fmha_v9", 80)
    with pytest.raises(clib.CLibraryError, match="has no row that runs on SM 75"):
        library.find_row("fmha_v2_d64", 75)


def test_rows_are_the_metadata_rows(built, library):
    rows = library.rows()
    assert len(rows) == len(built.metadata.rows)
    for index, (found, row) in enumerate(zip(rows, built.metadata.rows)):
        assert found.index == index
        for name in ("head_dim", "sm", "threads", "registers", "smem_bytes", "static_smem_bytes", "cubin_bytes"):
            assert getattr(found, name) == getattr(row, name), name
        for name in ("variant", "family", "kv_layout", "cubin_sha256"):
            assert getattr(found, name).decode() == getattr(row, name), name


def test_scale_log2(library):
    import struct

    for scale in (1.0, 0.125, 0.37, 1 / 3):
        single = struct.unpack("f", struct.pack("f", scale))[0]
        wanted = struct.unpack("f", struct.pack("f", single * 1.4426950408889634))[0]
        assert library.scale_log2(scale) == wanted


def test_abi_version(library):
    assert library._dll.fmhaforge_get_table(1) and not library._dll.fmhaforge_get_table(2)
    assert "ABI version 2 is asked for" in library.last_reason()


@pytest.mark.parametrize("name", ["no such", "ü" * 400, "a" + "ü" * 400, "x" * 100000, ""])
def test_any_name_of_a_variant_gets_a_reason(library, name):
    with pytest.raises(clib.CLibraryError) as refused:
        library.find_row(name, 90)
    assert refused.value.status == "UNSUPPORTED" and refused.value.reason.startswith(f"variant {name} is not in this library"[:350])


@pytest.mark.parametrize("changes, size, status, words", [
    ({"size": 8}, 0, "ABI_MISMATCH", "fmhaforge_problem.size is 8"), (None, 0, "INVALID_ARGUMENT", "problem is null"),
    ({}, 16, "ABI_MISMATCH", "fmhaforge_refusal.size is 16")])
def test_a_refusal_is_written_also_when_it_cannot_be_told(library, changes, size, status, words):
    """Nothing that was in the caller's memory stays there to be taken for an answer, unless the struct is not ours."""
    before = b"Z" * ctypes.sizeof(clib.Refusal)
    refusal = clib.Refusal.from_buffer_copy(before)
    refusal.size = size or ctypes.sizeof(clib.Refusal)
    problem = clib.problem("llm", "causal", 64, 90)
    for name, value in (changes or {}).items():
        setattr(problem, name, value)
    found = library._dll.fmhaforge_why_not(None if changes is None else ctypes.byref(problem), ctypes.byref(refusal))
    assert clib.STATUSES[found] == status and words in library.last_reason()
    if size:
        assert bytes(refusal)[8:] == before[8:]
    else:
        assert (refusal.field, bool(refusal.nearest), refusal.reason.decode()) == (0, False, library.last_reason())
