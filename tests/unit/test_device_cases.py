# SPDX-License-Identifier: Apache-2.0
"""The generator of random device cases: it reaches every edge that the issues name, and never leaves the contract."""

import json

import pytest

from tests.device import cases, subjects
from tests.device.backends import NumpyBackend
from tests.device.cases import PAGE, RATIOS, random_case
from tests.device.problem import compose
from tests.device.reference import UNLIMITED


@pytest.fixture(scope="module")
def everyone(manifest):
    """The subjects of SM 90, from the project's manifest by way of a metadata dictionary."""
    return subjects.subjects(metadata_of(manifest), 90)


def metadata_of(manifest):
    rows = [
        {
            "variant": row.variant.name, "sm": row.target.sm, "operation": row.variant.operation, "mask": row.variant.mask,
            "head_dim": row.variant.head_dim, "dtype": row.variant.dtype, "family": row.family.name, "tile": dict(row.tile),
            "checked": row.variant.checked, "ptx_sha256": row.spec.key(), "ptx_target": row.spec.ptx_target,
             "select": row.variant.to_json()["select"],
        }
        for row in manifest.rows(checked=True)
    ]
    return {"rows": rows, "families": {family.name: family.to_json() for family in manifest.families}}


def all_cases(subject, everyone):
    return [random_case(subject, number) for number in range(subjects.case_count(subject, everyone))]


def test_every_variant_of_the_manifest_is_a_subject(manifest, everyone):
    assert [subject.variant for subject in everyone if subject.sm == 90] == [variant.name for variant in manifest.variants if 90 in variant.sms]


def test_counts_reach_300_per_group(everyone):
    totals = {}
    for subject in everyone:
        key = (subject.operation, subject.head_dim if subject.operation == "llm" else None)
        totals[key] = totals.get(key, 0) + subjects.case_count(subject, everyone)
    assert min(totals.values()) >= 300
    assert min(subjects.case_count(subject, everyone) for subject in everyone) >= 150


def test_cases_meet_every_edge(everyone):
    for subject in everyone:
        made = all_cases(subject, everyone)
        m, n = subject.tile_m, subject.tile_n
        assert {case.num_q_heads // case.num_kv_heads for case in made} == set(RATIOS), subject.variant
        q_lens = {length for case in made for length in case.q_lens}
        assert {1, m - 1, m, m + 1, 2 * m - 1, 2 * m, 2 * m + 1} <= q_lens, subject.variant
        assert min(case.scale for case in made) == 0.05 and max(case.scale for case in made) == 2.0
        assert {case.poison for case in made} == set(cases.POISONS)
        assert any(case.row_gap for case in made) and any(not case.row_gap and not case.batch_gap for case in made)
        assert any(len(set(case.kv_lens)) > 2 for case in made), subject.variant
        if subject.own_q_lengths:
            assert 0 in q_lens, subject.variant
        if subject.operation != "vit":
            pairs = [pair for case in made for pair in zip(case.q_lens, case.kv_lens)]
            assert {0, 1} <= {kv_len for _, kv_len in pairs}
            differences = {kv_len - q_len for q_len, kv_len in pairs}
            assert {-1, 0, n - 1, n, n + 1} <= differences, subject.variant
            assert min(differences) < -1 and max(differences) > 2 * n
        if subject.sliding:
            windows = {case.window for case in made}
            assert {0, 1, n - 1, n, n + 1} <= windows, subject.variant
            assert any(case.window >= max(case.kv_lens) for case in made)
        if subject.mask == "vision_block":
            assert -1 in {case.window for case in made}
            assert {case.intervals for case in made} == {"owned", "arbitrary", "none", "whole", "mixed"}


def test_cases_stay_inside_the_contract(everyone):
    for subject in everyone:
        for case in all_cases(subject, everyone):
            assert case.num_q_heads % case.num_kv_heads == 0 and 1 <= case.num_q_heads <= 32
            assert case.seqlen_q >= max(case.q_lens) and case.seqlen_kv >= max(case.kv_lens), case.id
            assert len(case.q_lens) == len(case.kv_lens) >= 1
            if not subject.own_q_lengths:
                assert set(case.q_lens) == {case.seqlen_q}
            if subject.operation == "vit":
                assert case.q_lens == case.kv_lens
            if subject.paged:
                assert case.seqlen_kv == case.max_pages * PAGE > 0
            assert (case.window is None) == (not subject.sliding)


def test_cases_select_their_variant(everyone):
    by_name = {subject.name: subject for subject in everyone}
    small = all_cases(by_name["fmha_v2_d64_small"], everyone)
    assert all(case.seqlen_q <= 512 and case.subject.use_small_d64 for case in small)
    assert any(case.seqlen_q == 512 for case in small)
    assert not by_name["fmha_v2_d64"].use_small_d64
    assert all(case.seqlen_q <= 512 for case in all_cases(by_name["fmha_v2_d64_small_paged"], everyone))
    large = all_cases(by_name["fmha_v2_d64_paged"], everyone)
    assert min(case.seqlen_q for case in large) == 513


def test_cases_stay_affordable(everyone):
    for subject in everyone:
        for case in all_cases(subject, everyone):
            scores = sum(q_len * kv_len for q_len, kv_len in zip(case.q_lens, case.kv_lens)) * case.num_q_heads
            assert scores <= cases.SCORE_BUDGET or case.batch == 1, case.id
            assert scores <= 5 * cases.SCORE_BUDGET, case.id


def test_a_case_is_a_function_of_its_id(everyone):
    for subject in everyone:
        assert random_case(subject, 17) == random_case(subject, 17)
        assert random_case(subject, 17) != random_case(subject, 18)
    seeds = [random_case(subject, number).seed for subject in everyone for number in range(20)]
    assert len(set(seeds)) == len(seeds) and all(0 <= seed < 1 << 63 for seed in seeds)


def test_page_tables_are_scrambled_shared_and_independent(everyone):
    made = [case for subject in everyone if subject.paged for case in all_cases(subject, everyone)[:60]]
    shared = derived = dead_entries = 0
    for case in made:
        table = cases.page_table(case)
        assert len(table.used) % 2 == 0 and len(table.entries) == case.batch
        assert 0 in table.used, "a pool always holds dead pages"
        live = []
        for kv_len, planes in zip(case.kv_lens, table.entries):
            assert [len(plane) for plane in planes] == [case.max_pages] * 2
            count = -(-kv_len // PAGE)
            for plane in planes:
                live += plane[:count]
                dead_entries += any(entry < 0 or entry >= len(table.used) for entry in plane[count:])
                for i, page in enumerate(plane[:count]):
                    assert table.used[page] >= min(PAGE, kv_len - i * PAGE)
            derived += count > 1 and len({v - k for k, v in zip(planes[0][:count], planes[1][:count])}) == 1
        shared += len(set(live)) < len(live)
    assert shared > len(made) // 4 and dead_entries > len(made) // 4 and derived < len(made) // 10


def test_intervals_are_arbitrary(everyone):
    vision = [subject for subject in everyone if subject.mask == "vision_block"]
    empty = overlapping = owned = extreme = 0
    for case in (case for subject in vision for case in all_cases(subject, everyone)[:60]):
        begins, ends = cases.vision_intervals(case)
        assert [len(line) for line in begins] == [case.seqlen_q] * case.batch == [len(line) for line in ends]
        for line in zip(begins, ends):
            pairs = list(zip(*line))
            empty += any(begin > end for begin, end in pairs)
            owned += any(begin == end == -1 for begin, end in pairs) and any(0 <= begin < end for begin, end in pairs)
            extreme += any(end == cases.INT32_MAX for _, end in pairs)
            overlapping += any(a[0] < b[0] <= a[1] < b[1] for a, b in zip(pairs, pairs[1:]))
    assert min(empty, overlapping, owned, extreme) > 20


def test_random_cases_compose(everyone):
    """Every kind of case becomes arrays whose valid part is finite."""
    backend = NumpyBackend()
    for subject in everyone:
        case = min(all_cases(subject, everyone)[:30], key=_elements)
        problem = compose(case, backend, guard=8)
        for index, q_len in enumerate(case.q_lens):
            start = sum(case.q_lens[:index])
            rows = problem.q.view[start : start + q_len] if subject.packed else problem.q.view[index, :q_len]
            assert abs(rows).max(initial=0) < 8, case.id
        assert case.window is None or case.window <= UNLIMITED


def _elements(case):
    return case.batch * (case.seqlen_q * case.num_q_heads + case.seqlen_kv * case.num_kv_heads)


def test_routes_follow_the_family(manifest):
    metadata = metadata_of(manifest)
    metadata["families"]["ampere"]["exact"] = True
    assert {subject.routes for subject in subjects.subjects(metadata, 80)} == {("cubin",)}
    own = [subject for subject in subjects.subjects(metadata_of(manifest), 80) if subject.sm == 80]
    assert {subject.routes for subject in own} == {("cubin", "driver-ptx")}


def test_patterns_choose_subjects(manifest):
    metadata = metadata_of(manifest)
    names = [subject.variant for subject in subjects.subjects(metadata, 90, "fmha_v2_d128*", "*")]
    assert "fmha_v2_d128" in names and all(name.startswith("fmha_v2_d128") for name in names)
    assert subjects.subjects(metadata, 90, "*", "no_such_family") == ()
    assert subjects.subjects(metadata, 75) == ()


def test_ptx_of_other_sms_is_tested_by_way_of_the_driver(manifest):
    """A tile that only SM 86 has is PTX of its own, and this device's driver can assemble it."""
    metadata = metadata_of(manifest)
    own = subjects.subjects(metadata, 90)
    for row in metadata["rows"]:
        if row["variant"] == "fmha_v2_d128" and row["sm"] in (86, 89):
            row["ptx_sha256"], row["tile"] = "another", {"m": 32, "n": 16}
    both = subjects.subjects(metadata, 90)
    (other,) = set(both) - set(own)
    assert set(own) < set(both)
    assert (other.variant, other.sm, other.tile_m, other.routes) == ("fmha_v2_d128", 86, 32, ("driver-ptx",))
    assert other.name == "fmha_v2_d128-sm86" and random_case(other, 3).id == "fmha_v2_d128-sm86/3"
    assert [subjects.case_count(one, both) for one in own] == [subjects.case_count(one, own) for one in own]


def test_metadata_is_read_from_the_bundle(tmp_path):
    (tmp_path / "metadata.json").write_text(json.dumps({"rows": []}), encoding="utf-8")
    assert subjects.read_metadata(tmp_path) == {"rows": []}
