# SPDX-License-Identifier: Apache-2.0
"""What a build says at its end: the table of rows or of failures, totals, and the compile-time report as JSON and as a browser trace."""

from __future__ import annotations

import resource
import textwrap
import time
from typing import Any, Iterable, Iterator

import generator  # noqa: F401 - makes fmhaforge importable
from fmhaforge.version import __version__
from generator.canonical import canonical_json, write_whole
from generator.product import BundleProduct
from generator.progress import Event, Failure
from generator.session import Session
from generator.tables import describe_bundle, table


WIDTH = 120
"""Columns of the table of failures."""


def version() -> str:
    """The version of the bundles that this tree builds."""
    return __version__


def failures_table(failures: Iterable[Failure]) -> str:
    """The failed tasks with their logs, and below each its reason, in lines of at most WIDTH columns where words allow it."""
    failures = tuple(failures)
    header, rule, *rows = table(("failed", "what", "log"), [(failure.action, failure.name, failure.log_path) for failure in failures]).splitlines()
    lines = [header, rule]
    for row, failure in zip(rows, failures):
        lines += (row, *_indented(failure.reason))
    return "\n".join(lines)


def _indented(text: str) -> Iterator[str]:
    """The lines of a text, 2 columns to the right; long ones go on below their own beginning."""
    for line in text.splitlines():
        indent = " " * (2 + len(line) - len(line.lstrip()))
        yield from textwrap.wrap(line.strip(), WIDTH, initial_indent=indent, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


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
        progress.say(describe_bundle(product.place.folder, product.place.archive, time.monotonic() - progress.began))
