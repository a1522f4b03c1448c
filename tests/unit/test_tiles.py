# SPDX-License-Identifier: Apache-2.0
"""Tiles chosen by measurement: candidates, winners, and the manifest's text with other tiles in it."""

import pytest

from bench import tiles
from generator import manifest as manifests
from generator.families import FAMILY_RULES
from generator.plan import plan_for

TILE = {"m": 128, "n": 128, "consumers": 2, "producer_registers": 40, "consumer_registers": 232}
SPLIT = {"m": 64, "n": 32, "consumers": 2, "columns": 2, "producer_registers": 40, "consumer_registers": 232}
ROOT = tiles.Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def text():
    return (ROOT / "variants.yaml").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def changed(text):
    return tiles.with_tiles(text, 90, "hopper", {"fmha_v2_d128": TILE, "fmha_v2_d512_paged": SPLIT})


def _builds(text):
    parsed = manifests.parse(text.encode())
    return {(row.variant.name, row.sm): (row.family.name, dict(row.tile)) for row in parsed.rows()}


def test_only_the_named_rows_change(text, changed):
    before, after = _builds(text), _builds(changed)
    assert before.keys() == after.keys()
    assert {key for key in after if before[key] != after[key]} <= {("fmha_v2_d128", 90), ("fmha_v2_d512_paged", 90)}
    rule = FAMILY_RULES["hopper"]
    assert after["fmha_v2_d128", 90] == ("hopper", dict(rule.tile(TILE, 128)))
    assert after["fmha_v2_d512_paged", 90] == ("hopper", dict(rule.tile(SPLIT, 512)))


def test_comments_and_other_entries_stay(text, changed):
    kept = [line for line in text.splitlines() if "#" in line]
    assert [line for line in changed.splitlines() if "#" in line] == kept
    assert max(map(len, changed.splitlines())) <= max(map(len, text.splitlines()))
    gone = set(text.splitlines()) - set(changed.splitlines())
    assert all(line.lstrip().startswith("overrides: [{sms: [90],") for line in gone)


def test_an_entry_without_overrides_gets_them_in_a_line_of_its_own():
    entry = "  - {name: a, operation: llm,\n     sms: all}\n"
    assert tiles.with_tiles(entry, 90, "hopper", {"a": {"m": 128, "n": 64, "consumers": 2}}) == (
        "  - {name: a, operation: llm,\n     sms: all,\n     overrides: [{sms: [90], family: hopper, tile: {m: 128, n: 64, consumers: 2}}]}\n")


def test_applying_twice_changes_nothing_more(changed):
    assert tiles.with_tiles(changed, 90, "hopper", {"fmha_v2_d128": TILE, "fmha_v2_d512_paged": SPLIT}) == changed


def test_an_unknown_variant_is_refused(text):
    with pytest.raises(tiles.TilesError, match="no entry for fmha_v2_d999"):
        tiles.with_tiles(text, 90, "hopper", {"fmha_v2_d999": TILE})


@pytest.mark.parametrize("name", ("tile_candidates.yaml", "ampere_tiles.yaml"))
def test_every_candidate_fits_its_variant(text, manifest, name):
    candidates = tiles.read_candidates(ROOT / "bench" / name, manifest)
    for number in range(candidates.rounds):
        chosen = candidates.of_round(number)
        parsed = manifests.parse(tiles.with_tiles(text, candidates.sm, candidates.family, chosen).encode())
        for row in parsed.rows(sms=[candidates.sm], variants=sorted(chosen)):
            assert plan_for(row).smem_bytes <= row.target.smem_limit


@pytest.mark.parametrize("entry, message", (
    ("{variants: [fmha_v2_d999], tiles: []}", "matches no variant"),
    ("{variants: [fmha_v2_d128, fmha_v2_d12*], tiles: []}", "has candidates already"),
    ("{variants: [fmha_v2_d128], tiles: [{m: 128, n: 128, consumers: 3}]}", "consumers"),
    ("{variants: [fmha_v2_d128], tiles: [base]}", "the base tile of fmha_v2_d128 is of family ampere"),
))
def test_bad_candidates_are_refused(tmp_path, manifest, entry, message):
    path = tmp_path / "candidates.yaml"
    path.write_text(f"schema_version: 1\nsm: 90\nfamily: hopper\ncandidates:\n  - {entry}\n", encoding="utf-8")
    with pytest.raises(tiles.TilesError, match=message):
        tiles.read_candidates(path, manifest)


def test_the_manifests_own_tile_is_the_first_candidate(manifest):
    candidates = tiles.read_candidates(ROOT / "bench/tile_candidates.yaml", manifest)
    own = tiles.present(manifest, 90, "hopper")
    assert set(own) == {variant.name for variant in manifest.variants if not variant.checked}
    assert set(candidates.tiles) == {name for name in own if manifest_head_dim(manifest, name) != 512}
    for name, compared in candidates.tiles.items():
        assert compared[0] == own[name] and 2 <= len(compared) == len(set(compared))
    assert len(candidates.of_round(0)) == len(candidates.tiles) and candidates.of_round(candidates.rounds) == {}


def test_the_ampere_bundle_has_every_variant_with_its_base_tile(manifest):
    candidates = tiles.read_candidates(ROOT / "bench/ampere_tiles.yaml", manifest)
    variants = [variant for variant in manifest.variants if not variant.checked]
    assert candidates.rounds == 1 and set(candidates.tiles) == {variant.name for variant in variants}
    for variant in variants:
        tile, = candidates.tiles[variant.name]
        assert tile == (variant.tile if variant.head_dim != 512 else variant.build_for(100).tile)


def manifest_head_dim(manifest, name):
    return next(variant.head_dim for variant in manifest.variants if variant.name == name)


def _record(variant, case, n, tflops):
    return {"variant": variant, "case": case, "tile": {"n": n}, "tflops": tflops}


def test_the_winner_has_the_best_geometric_mean():
    records = [
        _record("a", "long", 64, 400.0), _record("a", "short", 64, 100.0),  # mean 200
        _record("a", "long", 128, 420.0), _record("a", "short", 128, 90.0),  # mean 194
        _record("b", "long", 64, 1.0), _record("b", "long", 32, 2.0),
    ]
    assert tiles.winners(records, {}) == {"a": {"n": 64}, "b": {"n": 32}}


@pytest.mark.parametrize("speed, wins", ((100.9, 64), (101.2, 128)))
def test_the_manifests_tile_stays_unless_another_is_clearly_faster(speed, wins):
    records = [_record("a", case, n, value) for case in ("long", "short") for n, value in ((64, 100.0), (128, speed))]
    assert tiles.winners(records, {"a": {"n": 64}}) == {"a": {"n": wins}}
    assert tiles.winners(records, {}) == {"a": {"n": 128}}


def test_the_manifests_tile_must_have_been_measured():
    with pytest.raises(tiles.TilesError, match="a: the manifest's tile {'n': 32} was not measured"):
        tiles.winners([_record("a", "long", 64, 10.0)], {"a": {"n": 32}})


def test_only_cases_of_all_tiles_count():
    records = [_record("a", "long", 64, 10.0), _record("a", "long", 128, 11.0), _record("a", "short", 64, 900.0)]
    assert tiles.winners(records, {}) == {"a": {"n": 128}}
    with pytest.raises(tiles.TilesError, match="no case"):
        tiles.winners([_record("a", "long", 64, 1.0), _record("a", "short", 32, 1.0)], {})


def test_defaults_are_written_only_where_the_manifest_writes_them(text):
    """d128 has `stages: 2` and a `q_stages` written out for SM 90; nobody writes blocks_per_sm: 1 or columns: 1."""
    tile = FAMILY_RULES["hopper"].tile(dict(TILE, n=160), 128)
    changed = tiles.with_tiles(text, 90, "hopper", {"fmha_v2_d128": tile})
    line, = (line for line in changed.splitlines() if "n: 160" in line)
    assert line == ("     overrides: [{sms: [90], family: hopper, tile: {m: 128, n: 160, consumers: 2, stages: 2, producer_registers: 40, "
                    "consumer_registers: 232, q_stages: 1}}]}")
