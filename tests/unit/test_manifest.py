# SPDX-License-Identifier: Apache-2.0
"""The project's manifest and what `rows` makes of it."""

import json
import pickle

import pytest

from generator import manifest as m
from generator.families import FAMILY_RULES, Tile, TileError
from generator.model import KernelSpec
from generator.operations import OPERATIONS

SMS = (80, 86, 87, 89, 90, 100, 101, 110, 120, 121)

# name, operation, head_dim, mask, kv_layout, abi_class: the table of the contract, independent of variants.yaml
CONTRACT = [
    ("fmha_v2_d64", "llm", 64, "causal", "dense", "L14"),
    ("fmha_v2_d64_small", "llm", 64, "causal", "dense", "L14"),
    ("fmha_v2_d128", "llm", 128, "causal", "dense", "L14"),
    ("fmha_v2_d256", "llm", 256, "causal", "dense", "L14"),
    ("fmha_v2_d512", "llm", 512, "causal", "dense", "L14"),
    ("fmha_v2_d64_sw", "llm", 64, "sliding_causal", "dense", "L14"),
    ("fmha_v2_d128_sw", "llm", 128, "sliding_causal", "dense", "L14"),
    ("fmha_v2_d256_sw", "llm", 256, "sliding_causal", "dense", "L14"),
    ("fmha_v2_d512_sw", "llm", 512, "sliding_causal", "dense", "L14"),
    ("fmha_v2_d64_paged", "paged", 64, "causal", "paged", "P11"),
    ("fmha_v2_d64_small_paged", "paged", 64, "causal", "paged", "P11"),
    ("fmha_v2_d128_paged", "paged", 128, "causal", "paged", "P11"),
    ("fmha_v2_d256_paged", "paged", 256, "causal", "paged", "P11"),
    ("fmha_v2_d512_paged", "paged", 512, "causal", "paged", "P11"),
    ("fmha_v2_d64_sw_paged", "paged", 64, "sliding_causal", "paged", "P11"),
    ("fmha_v2_d128_sw_paged", "paged", 128, "sliding_causal", "paged", "P11"),
    ("fmha_v2_d256_sw_paged", "paged", 256, "sliding_causal", "paged", "P11"),
    ("fmha_v2_d512_sw_paged", "paged", 512, "sliding_causal", "paged", "P11"),
    ("fmha_v2_d256_padding", "padding", 256, "padding", "dense", "N10"),
    ("fmha_v2_vit_d64", "vit", 64, "bidirectional", "packed", "V12"),
    ("fmha_v2_vit_d72", "vit", 72, "bidirectional", "packed", "V12"),
    ("fmha_v2_vit_d80", "vit", 80, "bidirectional", "packed", "V12"),
    ("fmha_v2_vit_d128", "vit", 128, "bidirectional", "packed", "V12"),
    ("fmha_v2_d256_bidirectional", "vision_block", 256, "vision_block", "dense", "B16"),
    ("fmha_v2_d512_bidirectional", "vision_block", 512, "vision_block", "dense", "B16"),
    ("fmha_v2_d64_paged_ragged", "paged_ragged", 64, "causal", "paged", "R12"),
    ("fmha_v2_d128_paged_ragged", "paged_ragged", 128, "causal", "paged", "R12"),
    ("fmha_v2_d256_paged_ragged", "paged_ragged", 256, "causal", "paged", "R12"),
    ("fmha_v2_d512_paged_ragged", "paged_ragged", 512, "causal", "paged", "R12"),
    ("fmha_v2_d64_sw_paged_ragged", "paged_ragged", 64, "sliding_causal", "paged", "R12"),
    ("fmha_v2_d128_sw_paged_ragged", "paged_ragged", 128, "sliding_causal", "paged", "R12"),
    ("fmha_v2_d256_sw_paged_ragged", "paged_ragged", 256, "sliding_causal", "paged", "R12"),
    ("fmha_v2_d512_sw_paged_ragged", "paged_ragged", 512, "sliding_causal", "paged", "R12"),
    ("fmha_v2_vit_d96", "vit", 96, "bidirectional", "packed", "V12"),
]


def complete(family, **given):
    """A tile of a family: the fields given and the defaults of the others."""
    return {field.name: given.get(field.name, field.default) for field in FAMILY_RULES[family].fields}


def released(manifest):
    return [variant for variant in manifest.variants if not variant.checked]


def test_the_variants_are_those_of_the_contract(manifest):
    found = [(v.name, v.operation, v.head_dim, v.mask, v.kv_layout, v.abi_class) for v in released(manifest)]
    assert found == CONTRACT
    assert {v.dtype for v in manifest.variants} == {"float16"}
    assert {v.sms for v in manifest.variants} == {SMS}


def test_the_targets(manifest):
    limits = {t.sm: t.smem_limit for t in manifest.targets}
    assert limits == {80: 166912, 87: 166912, 86: 101376, 89: 101376, 120: 101376, 121: 101376,
                      90: 232448, 100: 232448, 101: 232448, 110: 232448}
    assert {t.sm for t in manifest.targets if t.platform == "tegra"} == {87, 101, 110}
    assert {t.sm for t in manifest.targets if t.assembler == "cuda13"} == {110}
    assert {t.sm: t.same_part for t in manifest.targets if t.same_part} == {101: 110, 110: 101}


def test_the_selection_rules(manifest):
    rules = {v.name: v.select for v in released(manifest) if v.select}
    assert rules == {"fmha_v2_d64_small": m.Select(512, "use_small_d64"), "fmha_v2_d64_small_paged": m.Select(512, None)}


def test_rows_are_sorted_and_complete(manifest):
    rows = manifest.rows()
    assert len(rows) == 340
    assert [(row.variant.name, row.sm) for row in rows] == [(v[0], sm) for v in CONTRACT for sm in SMS]
    assert len({row.kernel_key for row in rows}) == len({row.spec for row in rows}) == len({row.spec.key() for row in rows})


def test_rows_in_part(manifest):
    rows = manifest.rows(sms=[90, "87"], variants=["fmha_v2_d64*", "*vit_d72"])
    names = [name for name, *_ in CONTRACT if name.startswith("fmha_v2_d64") or name == "fmha_v2_vit_d72"]
    assert [(row.variant.name, row.sm) for row in rows] == [(name, sm) for name in names for sm in (87, 90)]
    assert [row.variant.name for row in manifest.rows(sms=[80], variants="fmha_v2_d128")] == ["fmha_v2_d128"]
    assert len(manifest.rows(sms=[80], variants=["fmha_v2_d64_s[mw]*", "fmha_v2_d64_small"])) == 5


@pytest.mark.parametrize("arguments, parts", [
    ({"sms": [75]}, ["SM 75 is no target", "80, 86, 87, 89, 90, 100, 101, 110, 120, 121"]),
    ({"sms": ["sm_90"]}, ["'sm_90' is not an SM number", "90 or 121"]),
    ({"sms": [True]}, ["True is not an SM number"]),
    ({"sms": []}, ["list of SMs is empty", "80, 86"]),
    ({"variants": []}, ["list of variants is empty", "fmha_v2_d64,"]),
    ({"variants": ["fmha_v2_d64", "fmha_v3*"]}, ["'fmha_v3*' matches no variant", "fmha_v2_vit_d96"]),
    ({"variants": ["FMHA_V2_D64"]}, ["matches no variant"]),
])
def test_rows_that_do_not_exist(manifest, arguments, parts):
    with pytest.raises(m.RowsError) as caught:
        manifest.rows(**arguments)
    for part in parts:
        assert part in str(caught.value)


def test_no_row_left_is_an_error(sample_text):
    only_80 = m.parse(sample_text.replace("sms: all\n    checked: false", "sms: [80]").encode())
    with pytest.raises(m.RowsError, match="fmha_v2_d64_small is built for SM 110; widen"):
        only_80.rows(sms=[110], variants=["*_small"])


def test_checked_variants_only_when_asked_for(sample_text):
    checked = m.parse(sample_text.replace("checked: false", "checked: true").replace(
        "    select: {seqlen_q_at_most: 512, only_if: use_small_d64}\n", "").encode())
    assert {row.variant.name for row in checked.rows()} == {"fmha_v2_d64"}
    assert {row.variant.name for row in checked.rows(checked=True)} == {"fmha_v2_d64", "fmha_v2_d64_small"}
    assert [row.spec.checked for row in checked.rows(sms=[80], checked=True)] == [False, True]
    with pytest.raises(m.RowsError, match="matches checked variants only"):
        checked.rows(variants=["*_small"])


def test_overrides_and_exact_families(sample_text):
    sample = m.parse(sample_text.encode())
    rows = {row.sm: row for row in sample.rows(variants=["fmha_v2_d64"])}
    assert {sm: row.family.name for sm, row in rows.items()} == {80: "ampere", 90: "hopper", 101: "ampere", 110: "ampere"}
    assert {sm: row.cubin_arch for sm, row in rows.items()} == {80: "sm_80", 90: "sm_90a", 101: "sm_101", 110: "sm_110"}
    assert {sm: row.spec.ptx_target for sm, row in rows.items()} == {80: "sm_80", 90: "sm_90a", 101: "sm_80", 110: "sm_80"}
    assert dict(rows[90].tile) == complete("hopper", m=192, n=128, consumers=3, consumer_registers=160)
    assert dict(rows[80].tile) == complete("ampere", m=128, n=64, warps=4)
    assert None not in [*rows[90].tile.values(), *rows[80].tile.values()]
    assert rows[80].spec == rows[110].spec != rows[90].spec


def test_an_override_may_keep_the_family(sample_text):
    start = sample_text.index("        family: hopper\n")
    end = sample_text.index("  - name: fmha_v2_d64_small")
    changed = sample_text[:start] + "        tile: {m: 64, n: 32, warps: 4}\n" + sample_text[end:]
    rows = {row.sm: row for row in m.parse(changed.encode()).rows(variants=["fmha_v2_d64"])}
    assert rows[90].family.name == "ampere"
    assert (rows[90].tile.n, rows[80].tile.n) == (32, 64)


def test_places_take_no_part_in_equality(sample_text):
    assert m.parse(sample_text.encode(), "a.yaml") == m.parse(("# moved\n\n" + sample_text).encode(), "b.yaml")
    assert m.parse(sample_text.encode()) != m.parse(sample_text.replace("warps: 4", "warps: 2").encode())


def test_load_reads_the_file_and_names_it(tmp_path, sample_text):
    path = tmp_path / "my variants.yaml"
    path.write_text(sample_text, encoding="utf-8")
    assert m.load(path) == m.parse(sample_text.encode())
    path.write_text(sample_text.replace("head_dim: 64", "head_dim: 60"), encoding="utf-8")
    with pytest.raises(m.ManifestError) as caught:
        m.load(path)
    assert caught.value.path == str(path)
    with pytest.raises(FileNotFoundError):
        m.load(tmp_path / "absent.yaml")


def test_kernel_spec_round_trip(manifest):
    for row in manifest.rows(sms=[90]):
        text = json.dumps(row.spec.to_json())
        copy = KernelSpec.from_json(json.loads(text))
        assert copy == row.spec and hash(copy) == hash(row.spec) and copy.key() == row.spec.key()
        assert pickle.loads(pickle.dumps(row.spec)) == row.spec


def test_kernel_spec_key_is_stable():
    """Part of file names and caches: it may change only when a field of the spec does."""
    spec = KernelSpec("ampere", "llm", 64, "causal", "dense", "float16", Tile({"m": 128, "n": 64, "warps": 4}), False, "sm_80")
    assert spec.key() == "ampere-llm-d64-causal-4e12b861ff6b"
    assert KernelSpec.from_json({**spec.to_json(), "checked": True}).key() != spec.key()
    with pytest.raises(TileError, match="n is 65, which family ampere does not take"):
        KernelSpec.from_json({**spec.to_json(), "tile": {"m": 128, "n": 65, "warps": 4}})


def test_variant_to_json_holds_the_manifest_fields(manifest, sample_text):
    sample = m.parse(sample_text.encode())
    assert sample.variant("fmha_v2_d64").to_json() == {
        "abi_class": "L14", "checked": False, "dtype": "float16", "family": "ampere", "head_dim": 64, "kv_layout": "dense",
        "mask": "causal", "name": "fmha_v2_d64", "operation": "llm", "select": None, "sms": [80, 90, 101, 110],
        "tile": complete("ampere", m=128, n=64, warps=4),
        "overrides": [{"sms": [90], "family": "hopper",
                       "tile": complete("hopper", m=192, n=128, consumers=3, consumer_registers=160)}]}
    assert sample.variant("fmha_v2_d64_small").to_json()["select"] == {"only_if": "use_small_d64", "seqlen_q_at_most": 512}
    assert [family.to_json() for family in sample.families] == [{"exact": False, "ptx_target": "sm_80"},
                                                                {"exact": True, "ptx_target": "sm_90a"}]
    assert sample.target(101).to_json() == {"assembler": "cuda12", "platform": "tegra", "same_part": 110, "sm": 101,
                                            "smem_limit": 232448}
    with pytest.raises(m.RowsError, match="no variant 'fmha'.*fmha_v2_d64"):
        manifest.variant("fmha")
    json.dumps([variant.to_json() for variant in manifest.variants])


def test_operation_and_variant_agree(manifest):
    for variant in manifest.variants:
        operation = OPERATIONS[variant.operation]
        assert variant.abi_class == operation.abi_class
        assert variant.kv_layout == operation.kv_layout
        assert variant.mask in operation.masks


def test_a_tile_is_an_immutable_mapping():
    tile = Tile({"m": 128, "n": 64})
    assert (tile.m, tile["n"], list(tile), len(tile), str(tile)) == (128, 64, ["m", "n"], 2, "m=128, n=64")
    assert tile == Tile({"n": 64, "m": 128}) and hash(tile) == hash(Tile({"n": 64, "m": 128}))
    assert tile != Tile({"m": 128, "n": 32})
    assert pickle.loads(pickle.dumps(tile)) == tile
    with pytest.raises(AttributeError, match="can't be changed"):
        tile.m = 64
    with pytest.raises(TypeError):
        tile["m"] = 64
    with pytest.raises(AttributeError, match="tile has no field 'warps'; it has m, n"):
        tile.warps
