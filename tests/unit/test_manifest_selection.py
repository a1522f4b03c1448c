# SPDX-License-Identifier: Apache-2.0
"""Which variant serves a call, for the rules of the project's manifest."""

import pytest

from generator.model import Select
from generator.selection import choose, holds


def candidates(manifest, operation, head_dim, mask):
    return [v for v in manifest.variants if (v.operation, v.head_dim, v.mask, v.checked) == (operation, head_dim, mask, False)]


@pytest.mark.parametrize("operation, head_dim, mask, seqlen_q, flags, name", [
    ("llm", 64, "causal", 1, ["use_small_d64"], "fmha_v2_d64_small"),
    ("llm", 64, "causal", 512, ["use_small_d64"], "fmha_v2_d64_small"),
    ("llm", 64, "causal", 513, ["use_small_d64"], "fmha_v2_d64"),
    ("llm", 64, "causal", 512, [], "fmha_v2_d64"),
    ("llm", 64, "sliding_causal", 1, ["use_small_d64"], "fmha_v2_d64_sw"),
    ("llm", 128, "causal", 1, ["use_small_d64"], "fmha_v2_d128"),
    ("paged", 64, "causal", 512, [], "fmha_v2_d64_small_paged"),
    ("paged", 64, "causal", 513, [], "fmha_v2_d64_paged"),
    ("paged", 64, "sliding_causal", 1, [], "fmha_v2_d64_sw_paged"),
    ("paged_ragged", 64, "causal", 1, [], "fmha_v2_d64_paged_ragged"),
    ("vit", 96, "bidirectional", 1, [], "fmha_v2_vit_d96"),
    ("vision_block", 512, "vision_block", 9999, [], "fmha_v2_d512_bidirectional"),
])
def test_the_contract(manifest, operation, head_dim, mask, seqlen_q, flags, name):
    found = candidates(manifest, operation, head_dim, mask)
    assert choose(found, seqlen_q, flags).name == name
    assert choose(reversed(found), seqlen_q, flags).name == name, "the order matters between rules only"


def test_no_candidate_is_none(manifest):
    assert choose([], 1) is None
    small = [variant for variant in manifest.variants if variant.name == "fmha_v2_d64_small_paged"]
    assert choose(small, 512).name == "fmha_v2_d64_small_paged"
    assert choose(small, 513) is None


@pytest.mark.parametrize("select, seqlen_q, flags, expected", [
    (None, 10**9, [], True), (Select(64), 64, [], True), (Select(64), 65, [], False), (Select(0), 0, [], True),
    (Select(64, "f"), 64, ["f"], True), (Select(64, "f"), 64, ["g"], False), (Select(64, "f"), 65, ["f"], False),
])
def test_holds(select, seqlen_q, flags, expected):
    assert holds(select, seqlen_q, flags) is expected


def test_every_key_of_the_manifest_has_one_variant_for_the_rest(manifest):
    groups = {}
    for row in manifest.rows(checked=True):
        groups.setdefault((row.variant.selection_key(), row.sm), []).append(row.variant)
    assert len([key for key, _ in groups if key[-1] is False]) == 320
    for group in groups.values():
        assert sum(variant.select is None for variant in group) == 1
