# SPDX-License-Identifier: Apache-2.0
"""Our kernels beside torch's flash and cuDNN attention, on one device in one run: a table, and JSON with every number.

    python bench/kernels.py [--bundle DIR ...] [--cases 'd128*'] [--quick] [--out FILE]

Contenders of one shape run in turn, round by round, so clocks drift for all alike; absolute figures hold for one device only,
ratios within the run are what to judge by. Causal work counts as half, sliding work as what lies inside the window.
"""

from __future__ import annotations

import argparse
import json
import sys
from fnmatch import fnmatchcase
from itertools import groupby
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "runtime"), str(ROOT)]

from bench import kernel_contenders as contenders  # noqa: E402
from bench.kernel_cases import CASES, BenchCase  # noqa: E402
from bench.timing import Timing, Work, measure  # noqa: E402

RIVALS = ("flash", "cudnn")
TARGET_SECONDS = 2.5e-3
"""Device time of one graph, at the speed assumed for choosing the number of launches."""

ASSUMED_FLOPS = 350e12


def launches_for(case: BenchCase, sets: int) -> int:
    """Launches per graph: about TARGET_SECONDS of work, at least 2, and whole rounds of the input sets where that is cheap."""
    wanted = round(TARGET_SECONDS * ASSUMED_FLOPS / case.flops)
    return max(2, min(wanted // sets * sets if wanted >= sets else wanted, 64))


def run_shape(torch, cases, bundles, rounds, options):
    """Times all `cases` of one shape, with every bundle, beside the rivals; returns one record per case."""
    tensors = contenders.make_tensors(torch, cases[0])
    launches = launches_for(cases[0], len(tensors.sets))
    works, refusals = {}, {}

    def admit(key, make):
        try:
            enqueue = make()
        except Exception as error:  # a contender that cannot run the case is reported, not fatal
            refusals[key] = f"{type(error).__name__}: {error}".splitlines()[0]
            return
        works[key] = Work(enqueue, launches)

    for case in cases:
        for label, bundle in bundles.items():
            admit((case.name, label), lambda: contenders.ours(torch, bundle, case, tensors, **options))
            if (case.name, label) in works:
                _check_output(torch, case, tensors, works[case.name, label])
    for backend in RIVALS:
        admit(("", backend), lambda: contenders.rival(torch, backend, cases[0], tensors))
    timings = measure(torch, works, rounds)
    return [_record(case, bundles, timings, refusals) for case in cases]


def _check_output(torch, case, tensors, work):
    """A benchmark of a kernel that writes nothing is worthless."""
    tensors.output.fill_(float("nan"))
    work.enqueue(0)
    if not torch.isfinite(tensors.output).all():
        raise SystemExit(f"{case.name}: the kernel left NaN in its output; run the device tests first")


def _record(case, bundles, timings, refusals):
    results = {}
    for name, key in (*((label, (case.name, label)) for label in bundles), *((rival, ("", rival)) for rival in RIVALS)):
        results[name] = _result(case, timings[key]) if key in timings else {"refused": refusals[key]}
    fields = ("name", "variant", "operation", "head_dim", "mask", "batch", "seqlen", "num_q_heads", "num_kv_heads", "flops")
    return {**{field: getattr(case, field) for field in fields}, "anchor": vars(case.anchor), "results": results}


def _result(case: BenchCase, timing: Timing) -> dict:
    rounded = {name: round(value, 3) for name, value in vars(timing).items() if name != "graph"}
    return {**rounded, "graph": timing.graph, "tflops": round(case.flops / timing.median_us / 1e6, 1)}


def table(records: list[dict], labels: list[str]) -> list[str]:
    """The lines of the table: TFLOP/s, our first bundle's ratio to each rival, and what is known from elsewhere."""
    wide = max(len(record["name"]) for record in records)
    columns = [*labels, *RIVALS]
    lines = [
        f"{'TFLOP/s':{wide}} " + "".join(f"{column[-10:]:>11}" for column in columns)
        + "".join(f"{'/' + rival:>8}" for rival in RIVALS) + f"{'/dense':>8}{'peer/fl':>9}{'floor':>7}"
    ]
    dense = {_shape(record): record for record in records if record["operation"] == "llm"}
    for record in records:
        speed = {name: result.get("tflops") for name, result in record["results"].items()}
        mine, anchor = speed[labels[0]], record["anchor"]
        twin = dense.get(_shape(record))
        base = twin["results"][labels[0]].get("tflops") if twin and twin is not record else None
        ratios = [_ratio(mine, speed[rival]) for rival in RIVALS] + [_ratio(mine, base)]
        lines.append(
            f"{record['name']:{wide}} " + "".join(f"{_number(speed[column], 1):>11}" for column in columns)
            + "".join(f"{_number(ratio, 2):>8}" for ratio in ratios)
            + f"{_number(_ratio(anchor['peer'], anchor['flash']), 2):>9}{_number(anchor['floor'], 0):>7}"
        )
    return lines


def _shape(record):
    return tuple(record[field] for field in ("head_dim", "mask", "batch", "seqlen", "num_q_heads", "num_kv_heads"))


def _ratio(one, other):
    return one / other if one and other else None


def _number(value, digits):
    return "-" if value is None else f"{value:.{digits}f}"


def _bundles(given):
    """Label -> folder; `label=folder` names one, else the folder's name does."""
    import fmhaforge

    if not given:
        built = sorted((ROOT / "dist").glob("fmhaforge-*/metadata.json"), key=lambda path: path.stat().st_mtime)
        if not built:
            raise SystemExit("no bundle in dist/: run `make bundle`, or give --bundle")
        return {"ours": fmhaforge.open(built[-1].parent)}
    found = {}
    for number, text in enumerate(given):
        label, _, folder = text.rpartition("=")
        found[label or ("ours" if number == 0 else f"ours{number + 1}")] = fmhaforge.open(folder)
    return found


def main() -> None:
    """Runs the benchmark; see the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bundle", action="append", help="bundle folder, or label=folder; may be given several times")
    parser.add_argument("--cases", default="*", help="pattern for names or variants of cases (default: all)")
    parser.add_argument("--family", help="take only kernels of this family")
    parser.add_argument("--route", default="cubin", help="cubin, or driver-ptx to time what the driver assembles")
    parser.add_argument("--rounds", type=int, default=11, help="rounds that are timed (default: 11)")
    parser.add_argument("--quick", action="store_true", help="3 rounds, and only the first case of each variant")
    parser.add_argument("--out", type=Path, default=ROOT / "bench/results/kernels.json", help="JSON file to write")
    options = parser.parse_args()
    import torch

    if not torch.cuda.is_available():
        raise SystemExit("needs a CUDA device, and torch sees none here")
    cases = [case for case in CASES if fnmatchcase(case.name, options.cases) or fnmatchcase(case.variant, options.cases)]
    if options.quick:
        cases = list({case.variant: case for case in reversed(cases)}.values())[::-1]
    if not cases:
        raise SystemExit(f"no case matches {options.cases!r}; there are: {', '.join(case.name for case in CASES)}")
    bundles = _bundles(options.bundle)
    rounds = 3 if options.quick else options.rounds
    order = {case.name: position for position, case in enumerate(CASES)}
    records = []
    for _, group in groupby(sorted(cases, key=lambda case: repr(case.shape)), key=lambda case: case.shape):
        records += run_shape(torch, list(group), bundles, rounds, {"family": options.family, "route": options.route})
    records.sort(key=lambda record: order[record["name"]])
    print("\n".join(table(records, list(bundles))))
    document = {
        "schema_version": 1, "device": torch.cuda.get_device_name(), "torch": torch.__version__, "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(), "rounds": rounds, "family": options.family, "route": options.route,
        "bundles": {label: bundle.metadata.version for label, bundle in bundles.items()}, "cases": records,
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    for record in records:
        for name, result in record["results"].items():
            if "refused" in result and name in bundles:
                print(f"{record['name']}: {name} refused: {result['refused']}")


if __name__ == "__main__":
    main()
