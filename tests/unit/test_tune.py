# SPDX-License-Identifier: Apache-2.0
"""The steps of bench/tune.py, without a device: the build's options, the measurement on known times, and what is written into the manifest."""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from fake_clock import FakeClock

from bench import kernel_contenders as contenders
from bench import kernels, tiles, tune
from bench.device_state import Watch
from bench.errors import BenchError
from bench.kernel_cases import TUNING_CASES
from generator import manifest as manifests

ROOT = Path(__file__).resolve().parents[2]
OWN = {"m": 128, "n": 128, "consumers": 2, "producer_registers": 40, "consumer_registers": 232}
OTHER = {"m": 128, "n": 64, "consumers": 2, "stages": 3, "producer_registers": 40, "consumer_registers": 232}
CANDIDATES = f"""
schema_version: 1
sm: 90
family: hopper
candidates:
  - variants: [fmha_v2_d128, fmha_v2_d128_paged]
    tiles: [{OTHER}]
"""


def complete(tile):
    return dict(tiles.FAMILY_RULES["hopper"].tile(tile, 128))


@pytest.fixture
def folder(tmp_path):
    """A manifest whose d128 and d128_paged have OWN for SM 90, and candidates that set OTHER against it."""
    text = (ROOT / "variants.yaml").read_text(encoding="utf-8")
    text = tiles.with_tiles(text, 90, "hopper", {name: complete(OWN) for name in ("fmha_v2_d128", "fmha_v2_d128_paged")})
    (tmp_path / "variants.yaml").write_text(text, encoding="utf-8")
    (tmp_path / "candidates.yaml").write_text(CANDIDATES, encoding="utf-8")
    return tmp_path


def run(step, folder):
    return tune.main([step, "--manifest", str(folder / "variants.yaml"), "--candidates", str(folder / "candidates.yaml"),
                      "--bundles", str(folder / "tune"), "--measurements", str(folder / "found.json")])


def chosen_tile(folder, variant):
    row, = manifests.load(folder / "variants.yaml").rows(sms=[90], variants=[variant])
    return dict(row.tile)


def test_build_makes_a_small_bundle_of_each_round(folder, monkeypatch):
    """The build's stand-in leaves what the build leaves; what it is asked for must be what the round has."""
    asked = []

    def stand_in(arguments):
        asked.append(arguments)
        rows = manifests.load(arguments["manifest"]).rows(sms=[arguments["sm"]], variants=arguments["variants"].split(","))
        bundle = arguments["dist"] / "fmhaforge-1"
        bundle.mkdir()
        (bundle / "metadata.json").write_text(json.dumps([dict(row.tile) for row in rows]), encoding="utf-8")
        (arguments["dist"] / "fmhaforge-1.tar.xz").write_bytes(b"large")

    monkeypatch.setattr(tune, "run_build", stand_in)
    assert run("build", folder) == 0
    assert [(one["sm"], one["variants"], one["allow_unvalidated"]) for one in asked] == [(90, "fmha_v2_d128,fmha_v2_d128_paged", 1)] * 2
    assert [one["build_dir"] for one in asked] == [folder / "tune-work" / number for number in "01"]
    for number, tile in enumerate((OWN, OTHER)):
        made = folder / "tune" / str(number)
        assert json.loads((made / "fmhaforge-1" / "metadata.json").read_text()) == [complete(tile)] * 2
        assert json.loads((made / "tiles.json").read_text()) == {name: complete(tile) for name in ("fmha_v2_d128", "fmha_v2_d128_paged")}
        assert not list(made.glob("*.tar.xz"))


def test_a_failed_build_ends_with_its_manifest_named(folder, monkeypatch, capsys):
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: SimpleNamespace(returncode=2))
    assert run("build", folder) == 2
    assert f"the build of {folder}/tune/0/variants.yaml failed (status 2)" in capsys.readouterr().err


def test_the_build_is_asked_with_its_own_options():
    from generator import options

    names = {option.name for option in options.OPTIONS}
    assert {"sm", "variants", "manifest", "dist", "build_dir", "allow_unvalidated"} <= names


@pytest.fixture
def bench(folder, monkeypatch):
    """A device on which the tile of round 1 takes `bench.times[operation]` of the time of the one of round 0."""
    clock = FakeClock()
    found = SimpleNamespace(times={"llm": 0.9, "paged": 0.995}, clock=clock, sm=90)
    for number, tile in enumerate((OWN, OTHER)):
        made = folder / "tune" / str(number) / "fmhaforge-1"
        made.mkdir(parents=True)
        (made / "metadata.json").write_text("{}", encoding="utf-8")
        (made.parent / "tiles.json").write_text(json.dumps({name: complete(tile) for name in ("fmha_v2_d128", "fmha_v2_d128_paged")}))

    def ours(torch, bundle, case, tensors, **options):
        if found.times[case.operation] is None and bundle == "1":
            raise ValueError("no such row")
        return clock.work(bundle, case.flops / 500e6 * (found.times[case.operation] if bundle == "1" else 1.0)), "hopper"

    monkeypatch.setattr("fmhaforge.open", lambda path: path.parent.name)
    monkeypatch.setattr(kernels, "torch_with_device", lambda: clock)
    monkeypatch.setattr(kernels, "device_of", lambda torch: ({"name": "a GPU", "sm": found.sm}, Watch(None)))
    monkeypatch.setattr(kernels, "_check_output", lambda *_: None)
    monkeypatch.setattr(kernels.time, "sleep", lambda seconds: None)
    monkeypatch.setattr(contenders, "make_tensors", lambda torch, case: SimpleNamespace(sets=[None] * 2, output=None))
    monkeypatch.setattr(contenders, "ours", ours)
    return found


def test_measure_and_apply_change_what_is_clearly_faster(folder, bench, capsys):
    """10 % faster wins; half a percent does not."""
    assert run("measure", folder) == 0
    document = json.loads((folder / "found.json").read_text(encoding="utf-8"))
    assert document["complete"] and document["device"]["sm"] == 90
    cases = [case.name for case in TUNING_CASES if case.variant in ("fmha_v2_d128", "fmha_v2_d128_paged")]
    assert [record["case"] for record in document["records"][::2]] == cases and len(cases) >= 7
    for own, other in zip(document["records"][::2], document["records"][1::2]):
        assert (own["tile"], other["tile"]) == (complete(OWN), complete(OTHER))
        share = 0.995 if own["variant"].endswith("paged") else 0.9
        assert own["tflops"] == pytest.approx(500.0) and other["tflops"] == pytest.approx(500.0 / share, abs=0.1)
    assert run("apply", folder) == 0
    assert chosen_tile(folder, "fmha_v2_d128") == complete(OTHER) and chosen_tile(folder, "fmha_v2_d128_paged") == complete(OWN)
    printed = capsys.readouterr().out
    assert "fmha_v2_d128                     changes to m=128, n=64" in printed and "fmha_v2_d128_paged               keeps m=128, n=128" in printed


def test_applying_changes_only_the_winner_and_only_once(folder, bench):
    run("measure", folder)
    before = (folder / "variants.yaml").read_text(encoding="utf-8")
    run("apply", folder)
    after = (folder / "variants.yaml").read_text(encoding="utf-8")
    changed = [line for line in after.splitlines() if line not in before.splitlines()]
    assert len(changed) == 1 and "n: 64" in changed[0] and changed[0].lstrip().startswith("overrides: [{sms: [90], family: hopper,")


def test_a_refused_tile_is_recorded_and_does_not_win(folder, bench):
    bench.times["paged"] = None
    assert run("measure", folder) == 0
    records = json.loads((folder / "found.json").read_text(encoding="utf-8"))["records"]
    assert {record.get("refused") for record in records if record["variant"].endswith("paged")} == {None, "ValueError: no such row"}
    assert run("apply", folder) == 0
    assert chosen_tile(folder, "fmha_v2_d128_paged") == complete(OWN)


@pytest.mark.parametrize("change, message", (
    ({"complete": False}, "was not finished"), ({"schema_version": 1}, "schema_version is 1"), ({"device": {"sm": 80}}, "measured on SM 80"),
))
def test_measurements_that_do_not_fit_are_refused(folder, bench, capsys, change, message):
    run("measure", folder)
    path = folder / "found.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}), encoding="utf-8")
    before = (folder / "variants.yaml").read_bytes()
    assert run("apply", folder) == 2
    assert message in capsys.readouterr().err and (folder / "variants.yaml").read_bytes() == before


def test_measurements_of_another_manifest_are_refused(folder, bench, capsys):
    run("measure", folder)
    text = (folder / "variants.yaml").read_text(encoding="utf-8")
    third = complete({**OWN, "n": 96})
    (folder / "variants.yaml").write_text(tiles.with_tiles(text, 90, "hopper", {"fmha_v2_d128": third}), encoding="utf-8")
    assert run("apply", folder) == 2
    assert "fmha_v2_d128: the manifest's tile" in capsys.readouterr().err


def test_measuring_without_bundles_says_what_to_run(folder, bench, capsys):
    for path in folder.glob("tune/*/tiles.json"):
        path.unlink()
    assert run("measure", folder) == 2
    assert "run `bench/tune.py build`" in capsys.readouterr().err


def test_measuring_imports_neither_the_toolchain_nor_yaml(tmp_path):
    """The device's machine may have torch and nothing else."""
    code = "import sys; sys.modules['yaml'] = sys.modules['jinja2'] = sys.modules['cutlass'] = None\n" \
           f"sys.path.insert(0, {str(ROOT)!r})\nfrom bench import tune\n" \
           f"print(tune.main(['apply', '--measurements', 'x.json']), 'generator' in sys.modules, 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=True)
    assert done.stdout == "2 False False\n" and "this step needs yaml" in done.stderr


def test_every_variant_is_tuned_on_two_shapes_or_more():
    shapes = {}
    for case in TUNING_CASES:
        shapes.setdefault(case.variant, set()).add((case.batch, case.seqlen))
    assert min(map(len, shapes.values())) >= 2
    assert len({case.name for case in TUNING_CASES}) == len(TUNING_CASES)


def test_errors_are_of_one_kind():
    assert issubclass(tiles.TilesError, BenchError)
