# SPDX-License-Identifier: Apache-2.0
"""Our kernels beside torch's flash and cuDNN attention, on one device in one run: JSON with every number, a table and a roofline plot.

    python bench/kernels.py [--bundle DIR ...] [--against DIR] [--cases 'd128*'] [--quick] [--out FILE] [--table FILE] [--plot FILE]
    python bench/kernels.py --from FILE [--table FILE] [--plot FILE]          the table and the plot again; needs no device

Contenders of one shape run in turn, round by round, so clocks drift for all alike; absolute figures hold for one device only,
ratios within the run are what to judge by. Causal work counts as half, sliding work as what lies inside the window.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import groupby
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "runtime"), str(ROOT)]

from bench import device_state, documents, report, roofline  # noqa: E402
from bench import kernel_contenders as contenders  # noqa: E402
from bench.errors import BenchError  # noqa: E402
from bench.kernel_cases import CASES, BenchCase  # noqa: E402
from bench.timing import Timing, Work, measure  # noqa: E402

SCHEMA_VERSION = 2
RIVALS = tuple(report.RIVALS)
GUESSED_FLOPS = 350e12
"""Speed that is assumed until a contender has been tried."""

REST_SHARE, LONGEST_REST = 0.5, 1.0
"""After a shape the device rests for this share of the time that was measured, at most so many seconds: a long one must not slow the next."""

FIELDS = ("name", "variant", "operation", "head_dim", "mask", "batch", "seqlen", "num_q_heads", "num_kv_heads", "note", "flops", "bytes")


def run_cases(torch: Any, cases: Sequence[BenchCase], bundles: Mapping[str, Any], rounds: int, options: Mapping[str, Any],
              rivals: Sequence[str] = RIVALS, watch: device_state.Watch = device_state.Watch(None)) -> list[dict[str, Any]]:
    """A record for each case, in their order. Cases of one shape are measured side by side, with a rest after each shape."""
    records = []
    for _, group in groupby(sorted(cases, key=lambda case: repr(case.shape)), key=lambda case: case.shape):
        records += run_shape(torch, list(group), bundles, rounds, options, rivals, watch)
        torch.cuda.empty_cache()
    order = {case.name: position for position, case in enumerate(cases)}
    return sorted(records, key=lambda record: order[record["name"]])


def run_shape(torch: Any, cases: Sequence[BenchCase], bundles: Mapping[str, Any], rounds: int, options: Mapping[str, Any],
              rivals: Sequence[str], watch: device_state.Watch) -> list[dict[str, Any]]:
    """Times all `cases` of one shape, with every bundle, beside the rivals, and rests; returns one record per case."""
    tensors = contenders.make_tensors(torch, cases[0])
    works, families, refusals = {}, {}, {}

    def admit(key, make):
        try:
            enqueue, families[key] = make()
        except Exception as error:  # a contender that cannot run the case is reported, not fatal
            refusals[key] = f"{type(error).__name__}: {error}".splitlines()[0]
            return
        works[key] = Work(enqueue, len(tensors.sets), 1e6 * cases[0].flops / GUESSED_FLOPS)

    for case in cases:
        for label, bundle in bundles.items():
            admit((case.name, label), lambda: contenders.ours(torch, bundle, case, tensors, **options))
            if (case.name, label) in works:
                _check_output(torch, case, tensors, works[case.name, label])
    for backend in rivals:
        admit(("", backend), lambda: (contenders.rival(torch, backend, cases[0], tensors), None))
    begin = time.monotonic()
    timings = measure(torch, works, rounds, watch)
    state = watch.take()
    time.sleep(min(REST_SHARE * (time.monotonic() - begin), LONGEST_REST))
    return [record_of(case, bundles, rivals, timings, families, refusals, state) for case in cases]


def _check_output(torch, case, tensors, work):
    """A benchmark of a kernel that writes nothing is worthless."""
    tensors.output.fill_(float("nan"))
    work.enqueue(0)
    if not torch.isfinite(tensors.output).all():
        raise BenchError(f"{case.name}: the kernel left NaN in its output; run the device tests first")


def record_of(case, labels, rivals, timings, families, refusals, state) -> dict[str, Any]:
    """All that is known of a case, for JSON. Keys of timings and refusals are (case, label), or ("", rival)."""
    results = {}
    for name, key in (*((label, (case.name, label)) for label in labels), *((rival, ("", rival)) for rival in rivals)):
        results[name] = _result(case, timings[key], families.get(key)) if key in timings else {"refused": refusals[key]}
    return {**{field: getattr(case, field) for field in FIELDS}, "anchor": vars(case.anchor), "state": state, "results": results}


def _result(case: BenchCase, timing: Timing, family: str | None) -> dict[str, Any]:
    times = {name: round(value, 3) if isinstance(value, float) else value for name, value in vars(timing).items()}
    return {"family": family, **times, "tflops": round(case.flops / timing.median_us / 1e6, 1)}


def open_bundles(given: Sequence[str] | None, sm: int) -> dict[str, Any]:
    """Label -> bundle. `label=folder` names one; else the family of its kernels for this SM does (`mixed` if there are several)."""
    import fmhaforge

    if not given:
        built = sorted((ROOT / "dist").glob("fmhaforge-*/metadata.json"), key=lambda path: path.stat().st_mtime)
        if not built:
            raise BenchError("no bundle in dist/: run `make bundle`, or give --bundle")
        given = [str(built[-1].parent)]
    found: dict[str, Any] = {}
    for text in given:
        label, _, folder = text.rpartition("=")
        try:
            bundle = fmhaforge.open(folder)
        except (fmhaforge.FmhaForgeError, OSError) as error:
            raise BenchError(f"--bundle {text}: {error}") from error
        label = label or label_of((row.family for row in bundle.metadata.rows if row.sm == sm), found)
        if label in found or label in RIVALS:
            raise BenchError(f"--bundle {text}: the label {label!r} is taken; choose another")
        found[label] = bundle
    return found


def label_of(families, taken) -> str:
    """The one family, or `mixed`; with a number where that is taken."""
    different = set(families)
    name = different.pop() if len(different) == 1 else "mixed"
    count = 2
    label = name
    while label in taken:
        label, count = f"{name}{count}", count + 1
    return label


def chosen(pattern: str, quick: bool) -> list[BenchCase]:
    """The cases whose name or variant matches; with `quick` the first of each variant."""
    cases = [case for case in CASES if fnmatchcase(case.name, pattern) or fnmatchcase(case.variant, pattern)]
    if not cases:
        raise BenchError(f"no case matches {pattern!r}; there are: {', '.join(case.name for case in CASES)}")
    return list({case.variant: case for case in reversed(cases)}.values())[::-1] if quick else cases


def torch_with_device() -> Any:
    """torch, where it sees a device. Raises BenchError."""
    try:
        import torch
    except ImportError:
        raise BenchError("needs torch, which is not installed for this Python; `--from FILE` needs neither torch nor a device") from None
    if not torch.cuda.is_available():
        raise BenchError("needs a CUDA device, and torch sees none here")
    return torch


def device_of(torch: Any) -> tuple[dict[str, Any], device_state.Watch]:
    """What the numbers hold for, and the watch of the device."""
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    watch = device_state.watch(f"GPU-{getattr(properties, 'uuid', '')}")
    return {
        "name": properties.name, "sm": 10 * properties.major + properties.minor, "sm_count": properties.multi_processor_count,
        "driver": watch.driver, "torch": torch.__version__, "cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version(),
    }, watch


def measured(options: argparse.Namespace) -> dict[str, Any]:
    """Runs the benchmark; the document."""
    cases, torch, begin = chosen(options.cases, options.quick), torch_with_device(), time.monotonic()
    device, watch = device_of(torch)
    bundles = open_bundles(options.bundle, device["sm"])
    rounds = 3 if options.quick else options.rounds
    records = run_cases(torch, cases, bundles, rounds, {"family": options.family, "route": options.route}, RIVALS, watch)
    return {
        "schema_version": SCHEMA_VERSION, "device": device, "rounds": rounds, "family": options.family, "route": options.route,
        "series": [{"label": label, "version": bundle.metadata.version} for label, bundle in bundles.items()],
        "no_state_because": watch.problem, "seconds": round(time.monotonic() - begin, 1), "cases": records,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the benchmark or reads it back; see the module's docstring. 0, or 2 when it cannot be done."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bundle", "--against", action="append", metavar="DIR",
                        help="bundle folder, or label=folder; may be given several times, ratios are those of the first to the others")
    parser.add_argument("--cases", default="*", help="pattern for names or variants of cases (default: all)")
    parser.add_argument("--family", help="take only kernels of this family")
    parser.add_argument("--route", default="cubin", help="cubin, or driver-ptx to time what the driver assembles")
    parser.add_argument("--rounds", type=int, default=11, help="rounds that are timed (default: 11)")
    parser.add_argument("--quick", action="store_true", help="3 rounds, and only the first case of each variant")
    parser.add_argument("--from", dest="source", type=Path, metavar="FILE", help="measure nothing: take the numbers from this JSON file")
    parser.add_argument("--out", type=Path, help="JSON file to write (default: bench/results/kernels.json)")
    parser.add_argument("--table", type=Path, help="write the tables as Markdown, too")
    parser.add_argument("--plot", type=Path, help="write the roofline plot as SVG")
    options = parser.parse_args(arguments)
    try:
        if options.source:
            document = documents.read(options.source, SCHEMA_VERSION, "give a file that --out wrote")
        else:
            document = measured(options)
            documents.write(options.out or ROOT / "bench/results/kernels.json", document)
        text = report.markdown(document)
        print(text, end="")
        if options.table:
            documents.write_text(options.table, text)
        if options.plot:
            documents.write_text(options.plot, roofline.svg(document))
    except BenchError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
