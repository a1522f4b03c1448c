# SPDX-License-Identifier: Apache-2.0
"""What a build says at its end: the table of rows or of failures, totals, and the compile-time report as JSON and as a browser trace."""

from __future__ import annotations

import json
import os
import resource
import time
from typing import Any, Iterable, Sequence

import generator  # noqa: F401 - makes fmhaforge importable
from fmhaforge.version import __version__
from generator.canonical import canonical_json, write_whole
from generator.product import BundleProduct
from generator.progress import Event, Failure, clock
from generator.session import Session


def version() -> str:
    """The version of the bundles that this tree builds."""
    return __version__


def table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A plain text table; columns whose cells are all numbers are right-aligned."""
    cells = [[str(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(header, *cells)]
    numeric = [bool(cells) and all(cell.replace(",", "").replace(".", "").isdigit() for cell in column) for column in zip(*cells)] or [False] * len(widths)
    lines = []
    for line in [list(header), ["-" * width for width in widths], *cells]:
        lines.append("  ".join(cell.rjust(width) if right else cell.ljust(width) for cell, width, right in zip(line, widths, numeric)).rstrip())
    return "\n".join(lines)


def rows_table(document: dict[str, Any]) -> str:
    """The rows of a bundle's metadata with their resources."""
    return table(("variant", "sm", "family", "registers", "spill B", "smem B", "cubin B", "validated"),
                 [(row["variant"], row["sm"], row["family"], row["registers"], row["spill_bytes"], row["smem_bytes"] + row["static_smem_bytes"],
                   f"{row['cubin_bytes']:,}", "yes" if row["validated"] else "no") for row in document["rows"]])


def totals(document: dict[str, Any], archive_bytes: int, seconds: float) -> str:
    """One line about the whole bundle."""
    rows = document["rows"]
    kernels = len({row["ptx_sha256"] for row in rows})
    variants = len({row["variant"] for row in rows})
    sms = len({row["sm"] for row in rows})
    size = sum(row["cubin_bytes"] for row in rows)
    return (f"{len(rows)} rows ({variants} variants, {sms} SMs), {kernels} kernels, {size / 1e6:.1f} MB of cubins, archive {archive_bytes / 1e6:.1f} MB, "
            f"{clock(seconds)} min")


def failures_table(failures: Iterable[Failure]) -> str:
    """The failed tasks with the first useful line of each and its log."""
    return table(("failed", "what", "reason", "log"), [(failure.action, failure.name, failure.reason, failure.log_path) for failure in failures])


def timing(events: Iterable[Event], seconds: float) -> dict[str, Any]:
    """The compile-time report: what each task cost, dearest first, and the sums."""
    events = sorted(events, key=_cost_of)
    sums: dict[str, dict[str, float]] = {}
    for event in events:
        total = sums.setdefault(event.action, {"tasks": 0, "seconds": 0.0, "cpu_seconds": 0.0})
        total["tasks"] += 1
        total["seconds"] = round(total["seconds"] + event.seconds, 3)
        total["cpu_seconds"] = round(total["cpu_seconds"] + event.cpu_seconds, 3)
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return {
        "wall_seconds": round(seconds, 3),
        "cpu_seconds": round(own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime, 3),
        "peak_bytes": 1024 * max(own.ru_maxrss, children.ru_maxrss),
        "actions": sums,
        "tasks": [{"action": event.action, "name": event.name, "status": event.status, "start": round(event.start, 3), "seconds": round(event.seconds, 3),
                   "cpu_seconds": round(event.cpu_seconds, 3), "peak_bytes": event.peak_bytes} for event in events],
    }


def _cost_of(event: Event) -> tuple[float, str, str]:
    return -event.seconds, event.action, event.name


def browser_trace(events: Iterable[Event]) -> dict[str, Any]:
    """The tasks in the trace event format that chrome://tracing and Perfetto open; one lane a job, times in microseconds."""
    return {"displayTimeUnit": "ms", "traceEvents": [
        {"name": event.name, "cat": event.action, "ph": "X", "ts": round(event.start * 1e6), "dur": round(event.seconds * 1e6), "pid": 1, "tid": event.lane,
         "args": {"action": event.action, "status": event.status, "cpu_seconds": event.cpu_seconds, "peak_bytes": event.peak_bytes}}
        for event in sorted(events, key=_start_of)]}


def _start_of(event: Event) -> tuple[float, str]:
    return event.start, event.name


def write_reports(session: Session) -> None:
    """Writes `report.json` and `trace.json` into the build folder, if anything was done."""
    progress = session.progress
    if progress.events:
        seconds = time.monotonic() - progress.began
        write_whole(session.build_dir / "report.json", canonical_json(timing(progress.events, seconds)))
        write_whole(session.build_dir / "trace.json", canonical_json(browser_trace(progress.events)))


def conclude(session: Session, product: BundleProduct, succeeded: bool) -> None:
    """Prints the tables at the end of a build and writes the reports."""
    progress = session.progress
    try:
        write_reports(session)
    except OSError as error:
        progress.say(f"no report was written: {error}")
    if progress.failures:
        progress.say("\n" + failures_table(progress.failures))
    elif succeeded and not session.options.shard:
        document = json.loads((product.place.folder / "metadata.json").read_bytes())
        seconds = time.monotonic() - progress.began
        progress.say("\n" + rows_table(document) + "\n\n" + totals(document, os.path.getsize(product.place.archive), seconds))
        if not document["validated"]:
            progress.say("NOT VALIDATED: the numerics ledger does not know every kernel (allow_unvalidated=1)")
        progress.say(f"bundle: {product.place.folder}\narchive: {product.place.archive}")
