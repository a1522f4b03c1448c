# SPDX-License-Identifier: Apache-2.0
"""Chooses tiles by measurement, in three steps that may run on different machines.

    python bench/tune.py build                  one bundle per round of candidates; needs no GPU
    python bench/tune.py measure                times them on a device, side by side, into bench/results/tiles.json
    python bench/tune.py apply                  writes the winners into variants.yaml

Candidates are in bench/tile_candidates.yaml. Absolute figures hold for one device only; the choice is between tiles measured in one run.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "runtime"), str(ROOT)]

from bench import tiles  # noqa: E402

SCHEMA_VERSION = 1
MANIFEST = ROOT / "variants.yaml"


def build(options: argparse.Namespace) -> None:
    """A bundle of every round of candidates, in folders 0, 1, ... of `options.bundles`, with the tiles that are in it."""
    candidates = _candidates(options)
    text = MANIFEST.read_text(encoding="utf-8")
    for number in range(candidates.rounds):
        chosen = candidates.of_round(number)
        folder = options.bundles / str(number)
        folder.mkdir(parents=True, exist_ok=True)
        manifest = folder / "variants.yaml"
        manifest.write_text(tiles.with_tiles(text, candidates.sm, candidates.family, chosen), encoding="utf-8")
        (folder / "tiles.json").write_text(json.dumps({name: dict(tile) for name, tile in chosen.items()}, indent=1), encoding="utf-8")
        arguments = {
            "sm": candidates.sm, "variants": ",".join(chosen), "manifest": manifest, "dist": folder, "build_dir": options.bundles / "build",
            "allow_unvalidated": 1,
        }
        subprocess.run([sys.executable, "-m", "SCons", *(f"{name}={value}" for name, value in arguments.items())], cwd=ROOT, check=True)


def measure(options: argparse.Namespace) -> None:
    """Every candidate of a variant on the variant's benchmark cases, in turn, round by round."""
    import torch

    import fmhaforge
    from bench.kernel_cases import CASES
    from bench.kernels import run_cases

    bundles, chosen = {}, {}
    for folder in sorted(path.parent for path in options.bundles.glob("*/tiles.json")):
        found = sorted(folder.glob("fmhaforge-*/metadata.json"))
        if not found:
            raise SystemExit(f"{folder} holds no bundle: run `python bench/tune.py build`")
        bundles[folder.name] = fmhaforge.open(found[-1].parent)
        chosen[folder.name] = json.loads((folder / "tiles.json").read_text(encoding="utf-8"))
    if not bundles:
        raise SystemExit(f"no bundles in {options.bundles}: run `python bench/tune.py build`")
    records = []
    for case in CASES:
        having = {label: bundle for label, bundle in bundles.items() if case.variant in chosen[label]}
        if len(having) < 2:
            continue
        (result,) = run_cases(torch, [case], having, options.rounds, {"route": "cubin"}, rivals=())
        records += _records(case, result["results"], {label: chosen[label][case.variant] for label in having})
    document = {"schema_version": SCHEMA_VERSION, "device": torch.cuda.get_device_name(), "rounds": options.rounds, "records": records}
    options.measurements.parent.mkdir(parents=True, exist_ok=True)
    options.measurements.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    for record in records:
        print(f"{record['case']:44} {record['tflops']:8.1f} TFLOP/s  {record['tile']}")


def _records(case, results, chosen):
    """One record per tile that ran; a tile that was refused is reported and left out."""
    records = []
    for label, tile in chosen.items():
        if "refused" in results[label]:
            print(f"{case.name}: {tile} refused: {results[label]['refused']}")
        else:
            records.append({"variant": case.variant, "case": case.name, "tile": tile, "tflops": results[label]["tflops"]})
    return records


def apply(options: argparse.Namespace) -> None:
    """The winners into the manifest, for the variants that were measured."""
    candidates = _candidates(options)
    document = json.loads(options.measurements.read_text(encoding="utf-8"))
    if document.get("schema_version") != SCHEMA_VERSION:
        raise SystemExit(f"{options.measurements}: schema_version is {document.get('schema_version')!r}, this reads {SCHEMA_VERSION}")
    best = tiles.winners(document["records"])
    text = tiles.with_tiles(MANIFEST.read_text(encoding="utf-8"), candidates.sm, candidates.family, best)
    MANIFEST.write_text(text, encoding="utf-8")
    for variant, tile in best.items():
        print(f"{variant:32} {tile}")


def _candidates(options: argparse.Namespace) -> tiles.Candidates:
    from generator import manifest

    return tiles.read_candidates(options.candidates, manifest.load(MANIFEST))


def main() -> None:
    """Runs one step; see the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=("build", "measure", "apply"))
    parser.add_argument("--candidates", type=Path, default=ROOT / "bench/tile_candidates.yaml", help="file of the tiles to compare")
    parser.add_argument("--bundles", type=Path, default=ROOT / "build/tune", help="folder of the bundles")
    parser.add_argument("--measurements", type=Path, default=ROOT / "bench/results/tiles.json", help="file of the measurements")
    parser.add_argument("--rounds", type=int, default=7, help="rounds that are timed (default: 7)")
    options = parser.parse_args()
    try:
        {"build": build, "measure": measure, "apply": apply}[options.step](options)
    except tiles.TilesError as error:
        raise SystemExit(str(error)) from None


if __name__ == "__main__":
    main()
