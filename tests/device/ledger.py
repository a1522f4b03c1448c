# SPDX-License-Identifier: Apache-2.0
"""The numerics ledger: what each kernel's PTX was validated with. Kernels with a failed case are never in it.

The format is in docs/architecture.md. A run is entered under the PTX hash; a later run of the same route on the same kind of
device takes the place of the earlier one. Entries of kernels that exist no more are dropped, once the whole manifest is under test.
"""

from __future__ import annotations

import copy
import json
import os
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from generator.ledger import SCHEMA_VERSION, load
from generator.model import Row
from tests.device.problem import Outcome
from tests.device.subjects import Subject

FEWEST_CASES = 100
"""A run with fewer cases is not entered: it proves too little."""


@dataclass
class Tally:
    """What the cases of one kernel on one route have shown so far."""

    subject: Subject
    route: str
    cases: int = 0
    worst_relative_error: float = 0.0
    worst_violation: float = 0.0
    failed: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Machine:
    """Where the cases ran. `date` is the UTC day as YYYY-MM-DD."""

    sm: int
    device: str
    driver: str
    date: str


class Recorder:
    """Collects outcomes during a session of device tests."""

    def __init__(self) -> None:
        self._tallies: dict[tuple[str, str], Tally] = {}

    @property
    def tallies(self) -> tuple[Tally, ...]:
        """One tally per kernel and route, in the order in which they were first seen."""
        return tuple(self._tallies.values())

    def add(self, subject: Subject, route: str, case_id: str, outcome: Outcome) -> None:
        """Enters the outcome of one case."""
        tally = self._tally(subject, route)
        tally.cases += 1
        tally.worst_relative_error = max(tally.worst_relative_error, outcome.relative_error)
        tally.worst_violation = max(tally.worst_violation, outcome.violation)
        if outcome.faults:
            tally.failed.append(case_id)

    def fail(self, subject: Subject, route: str, what: str) -> None:
        """Marks the kernel as failed for a reason other than a case's numbers."""
        self._tally(subject, route).failed.append(what)

    def _tally(self, subject: Subject, route: str) -> Tally:
        return self._tallies.setdefault((subject.ptx_sha256, route), Tally(subject, route))


def empty() -> dict:
    """A ledger without entries."""
    return {"schema_version": SCHEMA_VERSION, "entries": {}}


def read(path: Path) -> dict:
    """The ledger at `path`, empty if there is no such file. Raises generator.ledger.LedgerError when the file is no ledger."""
    load(path)
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else empty()


def merged(ledger: dict, tallies: Iterable[Tally], machine: Machine) -> dict:
    """A copy of `ledger` with what `tallies` prove: kernels that passed are entered, kernels that failed are removed."""
    result = copy.deepcopy(ledger)
    entries = result["entries"]
    tallies = list(tallies)
    broken = {tally.subject.ptx_sha256 for tally in tallies if tally.failed}
    for digest in broken:
        entries.pop(digest, None)
    for tally in tallies:
        if tally.subject.ptx_sha256 not in broken and tally.cases >= FEWEST_CASES:
            _enter(entries, tally, machine)
    return result


def lacking(metadata: Mapping, rows: Iterable[Row]) -> tuple[str, ...]:
    """Which of the manifest's rows the bundle of `metadata` does not have as they are now (family and tile included)."""
    built = {(row["variant"], row["sm"], row["family"], _tile(row["tile"])) for row in metadata["rows"]}
    return tuple(f"{row.variant.name} for SM {row.sm}" for row in rows
                 if (row.variant.name, row.sm, row.family.name, _tile(row.tile)) not in built)


def pruned(ledger: dict, metadata: Mapping) -> tuple[dict, tuple[str, ...]]:
    """(a copy of `ledger` without the entries whose PTX is in no row of `metadata`, the variants of those entries)."""
    alive = {row["ptx_sha256"] for row in metadata["rows"]}
    entries = {digest: entry for digest, entry in ledger["entries"].items() if digest in alive}
    dead = [entry["variant"] for digest, entry in ledger["entries"].items() if digest not in alive]
    return {**copy.deepcopy(ledger), "entries": copy.deepcopy(entries)}, tuple(sorted(dead))


def without_dead(ledger: dict, metadata: Mapping, rows: Iterable[Row] | None) -> tuple[dict, str]:
    """(`ledger` pruned if the bundle of `metadata` has every one of the manifest's `rows`, what was done in a sentence).

    `rows` None means that the manifest could not be read here; nothing is dropped then.
    """
    result, dead = pruned(ledger, metadata)
    if not dead:
        return ledger, "no entry is of a kernel that the bundle does not have"
    if rows is None:
        return ledger, f"{len(dead)} entries of kernels that the bundle does not have are kept, since PyYAML is not here to read the manifest"
    missing = lacking(metadata, rows)
    if missing:
        return ledger, (f"{len(dead)} entries of kernels that the bundle does not have are kept, since it is not the whole manifest: it lacks "
                        f"{len(missing)} rows such as {missing[0]}; build all rows with checked=1 to have them dropped")
    return result, f"{len(dead)} entries of kernels that exist no more are dropped: {', '.join(dead)}"


def write(path: Path, ledger: dict) -> None:
    """Writes the ledger in its canonical form (sorted keys, indent 1), all or nothing."""
    text = json.dumps(ledger, sort_keys=True, indent=1, allow_nan=False) + "\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(prefix=path.name, dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def _tile(tile: Mapping) -> tuple:
    return tuple(sorted(dict(tile).items()))


def _enter(entries: dict, tally: Tally, machine: Machine) -> None:
    subject = tally.subject
    entry = entries.setdefault(subject.ptx_sha256, {"runs": []})
    entry.update(
        variant=subject.variant, family=subject.family, operation=subject.operation, head_dim=subject.head_dim, mask=subject.mask,
    )
    run = {
        "route": tally.route, "sm": machine.sm, "device": machine.device, "driver": machine.driver, "cases": tally.cases,
        "worst_relative_error": float(f"{tally.worst_relative_error:.4g}"),
        "worst_violation": float(f"{tally.worst_violation:.4g}"), "date": machine.date,
    }
    others = [old for old in entry["runs"] if (old["route"], old["sm"], old["device"]) != (tally.route, machine.sm, machine.device)]
    entry["runs"] = sorted([*others, run], key=lambda item: (item["route"], item["sm"], item["device"]))
