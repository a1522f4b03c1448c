# SPDX-License-Identifier: Apache-2.0
"""Chooses tiles by measurement, in three steps that may run on different machines.

    .venv/bin/python bench/tune.py build        one bundle per round of candidates; needs no GPU
    python bench/tune.py measure                times them on a device, side by side; needs torch and the bundles
    .venv/bin/python bench/tune.py apply        writes the winners into variants.yaml

Candidates are in bench/tile_candidates.yaml; the manifest's own tile is always one of them, and stays unless another is faster by more than
1 % in the geometric mean of the variant's cases. Absolute figures hold for one device only; the choice is between tiles measured in one run.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "runtime"), str(ROOT)]

from bench import documents, kernels  # noqa: E402
from bench.errors import BenchError  # noqa: E402
from bench.kernel_cases import TUNING_CASES  # noqa: E402

SCHEMA_VERSION = 2
TILES = "tiles.json"
"""Beside each bundle: variant -> the tile that it has there."""


def build(options: argparse.Namespace) -> None:
    """A bundle of every round of candidates, in folders 0, 1, ... of `options.bundles`, with the tiles that are in it.

    Only the rows that are to be compared, without the bundle's archive, so that all of it is small enough to be carried to a device. What
    the builds keep for the next time is beside that folder, in one called `<bundles>-work`.
    """
    candidates, text = _candidates(options), options.manifest.read_text(encoding="utf-8")
    if not candidates.rounds:
        raise BenchError(f"{options.candidates}: nothing to compare with the manifest's tiles; add candidates")
    for stale in options.bundles.glob(f"*/{TILES}"):
        stale.unlink()
    for number in range(candidates.rounds):
        chosen = candidates.of_round(number)
        folder = options.bundles / str(number)
        folder.mkdir(parents=True, exist_ok=True)
        manifest = folder / "variants.yaml"
        manifest.write_text(_tiles().with_tiles(text, candidates.sm, candidates.family, chosen), encoding="utf-8")
        run_build({
            "sm": candidates.sm, "variants": ",".join(chosen), "manifest": manifest, "dist": folder,
            "build_dir": options.bundles.with_name(f"{options.bundles.name}-work") / str(number), "allow_unvalidated": 1,
        })
        for archive in folder.glob("*.tar.xz"):
            archive.unlink()
        (folder / TILES).write_text(json.dumps({name: dict(tile) for name, tile in chosen.items()}, indent=1), encoding="utf-8")


def run_build(arguments: dict[str, Any]) -> None:
    """The project's build with these options. Raises BenchError when it fails; what failed has been printed by then."""
    words = [f"{name}={value}" for name, value in arguments.items()]
    status = subprocess.run([sys.executable, "-m", "SCons", "-Q", *words], cwd=ROOT).returncode
    if status:
        raise BenchError(f"the build of {arguments['manifest']} failed (status {status}); remove the candidate that it names")


def measure(options: argparse.Namespace) -> None:
    """Every candidate of a variant on the variant's cases, in turn, round by round. What is measured is written after each case."""
    torch = kernels.torch_with_device()
    bundles, chosen = built(options.bundles)
    device, watch = kernels.device_of(torch)
    document = {"schema_version": SCHEMA_VERSION, "device": device, "rounds": options.rounds, "complete": False, "records": []}
    for case in TUNING_CASES:
        having = {label: bundle for label, bundle in bundles.items() if case.variant in chosen[label]}
        if len(having) < 2:
            continue
        (record,) = kernels.run_cases(torch, [case], having, options.rounds, {"route": "cubin"}, rivals=(), watch=watch)
        found = records_of(record, {label: chosen[label][case.variant] for label in having})
        document["records"] += found
        documents.write(options.measurements, document)
        print("\n".join(lines_of(found)), flush=True)
    document["complete"] = True
    documents.write(options.measurements, document)


def built(folder: Path) -> tuple[dict[str, Any], dict[str, dict[str, dict[str, int]]]]:
    """The bundles that `build` made by the name of their round, and the tile of each variant in them. Raises BenchError."""
    import fmhaforge

    bundles, chosen = {}, {}
    for path in sorted(folder.glob(f"*/{TILES}")):
        found = sorted(path.parent.glob("fmhaforge-*/metadata.json"))
        if not found:
            raise BenchError(f"{path.parent} holds no bundle: run `bench/tune.py build`")
        bundles[path.parent.name] = fmhaforge.open(found[-1].parent)
        chosen[path.parent.name] = json.loads(path.read_text(encoding="utf-8"))
    if not bundles:
        raise BenchError(f"no bundles in {folder}: run `bench/tune.py build`")
    return bundles, chosen


def records_of(record: dict[str, Any], tiles: dict[str, dict[str, int]]) -> list[dict[str, Any]]:
    """One record per tile of a case: its speed, or why it was refused."""
    records = []
    for label, tile in tiles.items():
        result = record["results"][label]
        outcome = {key: result[key] for key in ("refused", "tflops", "median_us", "fastest_us", "slowest_us") if key in result}
        records.append({"variant": record["variant"], "case": record["name"], "tile": tile, **outcome})
    return records


def lines_of(records: Sequence[dict[str, Any]]) -> list[str]:
    """A line for each tile of a case, with its speed over that of the first."""
    first, lines = records[0].get("tflops"), []
    for record in records:
        tile = ", ".join(f"{key}={value}" for key, value in record["tile"].items())
        speed = f"{record['tflops']:7.1f} TFLOP/s" if "tflops" in record else f"refused: {record['refused']}"
        share = f" {record['tflops'] / first:6.3f}" if first and "tflops" in record else ""
        lines.append(f"{record['case']:42} {speed}{share}  {tile}")
    return lines


def apply(options: argparse.Namespace) -> None:
    """The winners into the manifest, for the variants that were measured; what does not win stays as it is."""
    tiles, candidates, document = _tiles(), _candidates(options), documents.read(options.measurements, SCHEMA_VERSION, "run `bench/tune.py measure`")
    if document["device"]["sm"] != candidates.sm:
        raise BenchError(f"{options.measurements} was measured on SM {document['device']['sm']}, the candidates are for SM {candidates.sm}")
    if not document["complete"]:
        raise BenchError(f"{options.measurements}: the measurement was not finished; measure again")
    own = tiles.present(_manifest(options), candidates.sm, candidates.family)
    best = tiles.winners([record for record in document["records"] if "tflops" in record], own)
    changed = {variant: tile for variant, tile in best.items() if variant not in own or dict(own[variant]) != tile}
    if changed:
        text = options.manifest.read_text(encoding="utf-8")
        options.manifest.write_text(tiles.with_tiles(text, candidates.sm, candidates.family, changed), encoding="utf-8")
    for variant, tile in best.items():
        print(f"{variant:32} {'changes to' if variant in changed else 'keeps'} {', '.join(f'{key}={value}' for key, value in tile.items())}")


def _tiles() -> Any:
    """bench.tiles, which a machine that only measures need not be able to import."""
    try:
        from bench import tiles
    except ImportError as error:
        raise BenchError(f"this step needs {error.name}: run it with .venv/bin/python (`make setup` makes it)") from error
    return tiles


def _manifest(options: argparse.Namespace) -> Any:
    from generator import manifest

    try:
        return manifest.load(options.manifest)
    except manifest.ManifestError as error:
        raise BenchError(str(error)) from error


def _candidates(options: argparse.Namespace) -> Any:
    tiles = _tiles()
    try:
        return tiles.read_candidates(options.candidates, _manifest(options))
    except OSError as error:
        raise BenchError(f"{options.candidates}: cannot be read ({error.strerror})") from error


def _path(text: str) -> Path:
    """An argument's path, whole: the build runs in the project's root."""
    return Path(text).resolve()


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one step; see the module's docstring. 0, or 2 when it cannot be done."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=("build", "measure", "apply"))
    parser.add_argument("--candidates", type=_path, default=ROOT / "bench/tile_candidates.yaml", help="file of the tiles to compare")
    parser.add_argument("--manifest", type=_path, default=ROOT / "variants.yaml", help="the manifest (default: variants.yaml)")
    parser.add_argument("--bundles", type=_path, default=ROOT / "build/tune", help="folder of the bundles (default: build/tune)")
    parser.add_argument("--measurements", type=_path, default=ROOT / "bench/results/h200-tiles.json", help="file of the measurements")
    parser.add_argument("--rounds", type=int, default=11, help="rounds that are timed (default: 11)")
    options = parser.parse_args(arguments)
    try:
        {"build": build, "measure": measure, "apply": apply}[options.step](options)
    except BenchError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
