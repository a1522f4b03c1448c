# SPDX-License-Identifier: Apache-2.0
"""Semantic errors of the manifest: each is made in the sample of docs/manifest.md and found at its place."""

import re
from pathlib import Path

import pytest

from generator import manifest as m
from generator.families import FAMILY_RULES

ROOT = Path(__file__).resolve().parents[2]


def documented_mistakes():
    """(old, new, message) of every table row in docs/manifest.md that has a mistake and an error."""
    text = (ROOT / "docs" / "manifest.md").read_text(encoding="utf-8")
    pattern = re.compile(r"\| `([^`]+)` → (?:`([^`]*)`|``) \| ([^|\n]+) \|$", re.MULTILINE)
    return [(old, new, message.strip()) for old, new, message in pattern.findall(text)]


def error_of(text):
    with pytest.raises(m.ManifestError) as caught:
        m.parse(text.encode(), "variants.yaml")
    return caught.value


def test_the_sample_is_right(sample_text):
    assert len(m.parse(sample_text.encode()).rows()) == 8


def test_every_field_is_documented_with_a_mistake():
    text = (ROOT / "docs" / "manifest.md").read_text(encoding="utf-8")
    rows = [line.split(" → ")[0] for line in text.split("\n") if line.startswith("| ") and " → " in line]
    tiles = [(rule.name, field.name) for rule in FAMILY_RULES.values() for field in rule.fields]
    undocumented = [name for name in m.VARIANT_FIELDS if not any(row.startswith(f"| `{name}` |") for row in rows)]
    undocumented += [f"{family} {name}" for family, name in tiles
                     if not any(row.startswith(f"| {family} |") and f"`{name}`" in row for row in rows)]
    assert undocumented == []
    assert len(documented_mistakes()) == len(rows)


@pytest.mark.parametrize("old, new, message", documented_mistakes())
def test_documented_mistakes(sample_text, old, new, message):
    assert old in sample_text
    error = error_of(sample_text.replace(old, new, 1))
    assert message in f"{error.message}. {error.remedy}"
    assert error.remedy
    assert 1 <= error.line <= sample_text.count("\n") and error.column >= 1


def test_the_documented_message_is_exact(sample_text):
    text = (ROOT / "docs" / "manifest.md").read_text(encoding="utf-8")
    error = error_of(sample_text.replace("head_dim: 64", "head_dim: 60", 1))
    assert f"```\n{error}\n```" in text


# old, new, text that the error's place must point at, message
PLACES = [
    ("mask: causal", "maks: causal", "maks: causal", "unknown field 'maks' in a variant"),
    ("    mask: causal\n", "", "name: fmha_v2_d64\n", "field 'mask' is missing in a variant"),
    ("mask: causal", "mask: [causal]", "[causal]", "mask must be a string, not a list"),
    ("mask: causal", "mask: null", "null", "mask must be a string, not null"),
    ("mask: causal", "mask: bidirectional", "bidirectional", "operation llm does not go with mask 'bidirectional'"),
    ("head_dim: 64", "head_dim: 0", "0\n", "head_dim is 0, less than 1"),
    ("head_dim: 64", "head_dim: sixty", "sixty", "head_dim must be an integer, not a string"),
    ("head_dim: 64", "head_dim: true", "true", "head_dim must be an integer, not a boolean"),
    ("n: 64, warps", "n: 63, warps", "63, warps", "n is 63, which family ampere does not take"),
    ("n: 64, warps", "k: 64, warps", "k: 64", "a tile of family ampere has no field 'k'"),
    ("warps: 4}", "warps: 16}", "{m: 128", "m must be a multiple of"),
    ("warps: 4}", "warps: 1, column_groups: 2}", "{m: 128", "warps must be a multiple of column_groups"),
    ("tile: {m: 128, n: 64, warps: 4}", "tile: 128", "128\n", "tile must be a mapping, not an integer"),
    ("family: ampere", "family: hopper", "warps: 4", "a tile of family hopper has no field 'warps'"),
    ("sms: all", "sms: []", "[]", "sms of fmha_v2_d64 is empty"),
    ("sms: all", "sms: [80, 80]", "80]", "SM 80 stands twice in sms of fmha_v2_d64"),
    ("sms: all", "sms: [80, 86]", "86]", "SM 86 of sms of fmha_v2_d64 is no target"),
    ("sms: all", "sms: [80, sm_90]", "sm_90]", "an SM of sms of fmha_v2_d64 must be an integer, not a string"),
    ("sms: all", "sms: 80", "80\n    over", "sms of fmha_v2_d64 must be a list, not an integer"),
    ("all: [80, 90, 101, 110]", "all: [80, 120]", "120]", "SM 120 of SM set all is no target"),
    ("all: [80, 90, 101, 110]", "all: 80", "80\nvariants", "SM set all must be a list, not an integer"),
    ("sms: [90]", "sms: []", "[]", "an override of fmha_v2_d64 is empty"),
    ("        tile: {m: 192, n: 128, consumers: 3, consumer_registers: 160}\n",
     "        tile: {m: 192, n: 128, consumers: 3, consumer_registers: 160}\n      - {sms: [90], tile: {m: 64, n: 64, warps: 4}}\n",
     "[90], tile", "SM 90 is overridden twice in fmha_v2_d64"),
    ("        tile: {m: 192, n: 128, consumers: 3, consumer_registers: 160}\n",
     "        tile: {m: 192, n: 128, consumers: 3, consumer_registers: 160}\n      - {sms: [80]}\n",
     "{sms: [80]}", "the override changes nothing"),
    ("    overrides:\n", "    overrides: []\n    other:\n", "other:", "unknown field 'other'"),
    ("same_part: 110", "same_part: 90", "90}", "SM 101 says it is the same part as 90, but SM 90 does not say so"),
    ("same_part: 110", "same_part: 101", "101}", "same_part of SM 101 is 101, which is no other target"),
    ("same_part: 110", "same_part: 120", "120}", "same_part of SM 101 is 120, which is no other target"),
    ("ptx_target: sm_80, exact: false", "ptx_target: sm_90, exact: false", "{m: 128",
     "family ampere (sm_90) can't be built for SM 80, which is older"),
    ("select: {seqlen_q_at_most: 512, only_if: use_small_d64}", "select: {only_if: use_small_d64}", "{only_if",
     "field 'seqlen_q_at_most' is missing in select"),
    ("select: {seqlen_q_at_most: 512", "select: {seqlen_q_below: 512", "seqlen_q_below",
     "unknown field 'seqlen_q_below' in select"),
    ("name: fmha_v2_d64_small", "name: fmha_v2_d64", "fmha_v2_d64\n    operation: llm\n    head_dim: 64\n    mask: causal\n    "
     "kv_layout: dense\n    dtype: float16\n    abi_class: L14\n    family: ampere\n    tile: {m: 64",
     "variant fmha_v2_d64 is defined twice, first in line 13"),
    ("name: fmha_v2_d64_small", "name: " + "a" * 65, "aaaa", "can't be a variant's name"),
    ("schema_version: 1\n", "", "families:", "field 'schema_version' is missing in the manifest"),
]


@pytest.mark.parametrize("old, new, at, message", PLACES, ids=[case[3][:50] for case in PLACES])
def test_the_place_of_an_error(sample_text, old, new, at, message):
    assert old in sample_text
    text = sample_text.replace(old, new, 1)
    error = error_of(text)
    assert message in error.message
    rest = "\n".join(text.split("\n")[error.line - 1:])[error.column - 1:]
    assert rest.startswith(at), f"points at {rest[:40]!r}"


@pytest.mark.parametrize("text, message", [
    ("[]", "the manifest must be a mapping, not a list"),
    ("word", "the manifest must be a mapping, not a string"),
    ("{}", "field 'schema_version' is missing"),
])
def test_not_a_manifest(text, message):
    assert message in error_of(text).message


THIRD = """
  - name: fmha_v2_d64_third
    operation: llm
    head_dim: 64
    mask: causal
    kv_layout: dense
    dtype: float16
    abi_class: L14
    family: ampere
    tile: {m: 32, n: 32, warps: 2}
    sms: [80]
"""


@pytest.mark.parametrize("select, message", [
    ("{seqlen_q_at_most: 512, only_if: use_small_d64}", "never takes effect on SM 80: fmha_v2_d64_small (line 27)"),
    ("{seqlen_q_at_most: 64, only_if: use_small_d64}", "never takes effect on SM 80"),
    ("{seqlen_q_at_most: 64}", None),
    ("{seqlen_q_at_most: 512}", None),
    ("{seqlen_q_at_most: 513, only_if: use_small_d64}", None),
])
def test_shadowed_selection_rules(sample_text, select, message):
    text = sample_text + THIRD + f"    select: {select}\n"
    if message is None:
        assert len(m.parse(text.encode()).variants) == 3
    else:
        error = error_of(text)
        assert message in error.message and "narrower" in error.remedy
        assert text.split("\n")[error.line - 1].strip() == "- name: fmha_v2_d64_third"


def test_an_unflagged_rule_shadows_a_flagged_one(sample_text):
    text = sample_text.replace("512, only_if: use_small_d64", "512") + THIRD
    assert "never takes effect" in error_of(text + "    select: {seqlen_q_at_most: 512, only_if: use_small_d64}\n").message


def test_a_rule_needs_a_variant_for_the_rest(sample_text):
    text = sample_text.replace("mask: causal", "mask: sliding_causal", 1)
    error = error_of(text)
    assert "fmha_v2_d64_small has a select rule, but no variant without one serves the other calls on SM 80" in error.message
    assert error.line == 27


def test_equal_variants_on_different_sms_are_no_conflict(sample_text):
    text = sample_text.replace("    sms: all\n    overrides", "    sms: [90]\n    overrides").replace(
        "    select: {seqlen_q_at_most: 512, only_if: use_small_d64}\n    sms: all", "    sms: [80, 101]")
    assert [(r.variant.name, r.sm) for r in m.parse(text.encode()).rows()] == [
        ("fmha_v2_d64", 90), ("fmha_v2_d64_small", 80), ("fmha_v2_d64_small", 101)]
