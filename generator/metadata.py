# SPDX-License-Identifier: Apache-2.0
"""Makes `metadata.json`: everything that a reader of the bundle may ask, made from the rows and what was really built."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Iterable, Mapping

from generator.arch import resolution_table
from generator.assemble import AssembleReport
from generator.buildplan import BuildPlan
from generator.ledger import Ledger, LedgerError
from generator.model import Row
from generator.operations import OPERATIONS
from generator.plan import LaunchPlan

NAME = "fmhaforge"
SCHEMA_VERSION = 1


@dataclass(frozen=True)
class BuiltRow:
    """A row with what was built for it. Paths are relative to the bundle; hashes are SHA-256 (hex)."""

    row: Row
    plan: LaunchPlan
    cubin: bytes
    cubin_path: str
    ptx_path: str
    ptx_sha256: str
    report: AssembleReport
    validated: bool

    def to_json(self) -> dict[str, Any]:
        """The row as it stands in the metadata."""
        report = self.report
        return {
            **planned_row(self.row, self.plan),
            "cubin": self.cubin_path,
            "cubin_sha256": report.cubin_sha256,
            "cubin_bytes": len(self.cubin),
            "ptx": self.ptx_path,
            "ptx_sha256": self.ptx_sha256,
            "arch": report.arch,
            "assembler": report.assembler,
            "symbol": report.symbol,
            "registers": report.registers,
            "spill_bytes": report.spill_bytes,
            "static_smem_bytes": report.static_smem,
            "validated": self.validated,
        }


#: Stands in a planned row for what only a cubin tells.
NOT_BUILT: Mapping[str, Any] = {
    "cubin": "", "cubin_sha256": "", "cubin_bytes": 0, "ptx": "", "ptx_sha256": "", "arch": "", "assembler": "", "symbol": "", "registers": 0,
    "spill_bytes": 0, "static_smem_bytes": 0, "validated": False}


def planned_row(row: Row, plan: LaunchPlan) -> dict[str, Any]:
    """What is known of a row before anything is built, as it stands in the metadata."""
    variant = row.variant
    return {
        "variant": variant.name,
        "sm": row.sm,
        "operation": variant.operation,
        "mask": variant.mask,
        "head_dim": variant.head_dim,
        "kv_layout": variant.kv_layout,
        "dtype": variant.dtype,
        "family": row.family.name,
        "abi_class": variant.abi_class,
        "tile": dict(row.tile),
        "checked": variant.checked,
        "select": variant.select.to_json() if variant.select else None,
        "ptx_target": row.family.ptx_target,
        "smem_bytes": plan.smem_bytes,
        "threads": plan.threads,
        "plan": _plan_json(plan),
    }


@lru_cache(maxsize=None)
def _plan_json(plan: LaunchPlan) -> dict[str, Any]:
    return plan.to_json()


def check_ledger(rows: Iterable[BuiltRow], ledger: Ledger) -> None:
    """Raises LedgerError naming every kernel among `rows` that the ledger does not know, the routes that it lacks, and what to run."""
    missing: dict[str, tuple[str, dict[str, None]]] = {}
    for built in rows:
        for route in ledger.missing_routes(built.ptx_sha256, built.row.family, built.row.sm):
            missing.setdefault(built.ptx_sha256, (built.row.variant.name, {}))[1][route] = None
    if missing:
        kernels = (f"  {name} (PTX {digest[:12]}): no run by {' and '.join(sorted(routes))}" for digest, (name, routes) in missing.items())
        only = f" --variant {next(iter(missing.values()))[0]}" if len(missing) == 1 else ""
        raise LedgerError("\n".join((
            f"{ledger.path} does not know {len(missing)} of the kernels:", *kernels,
            "Build with allow_unvalidated=1, which marks the bundle, and on a machine with a GPU run",
            f"  python -m pytest tests/device{only} \\", f"    --bundle DIR --ledger-out {ledger.path}")))


def document(plan: BuildPlan, rows: Iterable[BuiltRow], version: str, provenance: Mapping[str, Any]) -> dict[str, Any]:
    """The whole metadata as plain JSON values."""
    return _document(plan, [built.to_json() for built in rows], version, provenance)


def planned(plan: BuildPlan, version: str) -> dict[str, Any]:
    """The metadata as far as it is known before anything is built: without provenance, and with NOT_BUILT in each row."""
    return _document(plan, [{**planned_row(row, plan.cubin_of[row.variant.name, row.sm].kernel.plan), **NOT_BUILT} for row in plan.rows], version, {})


def _document(plan: BuildPlan, rows: list[dict[str, Any]], version: str, provenance: Mapping[str, Any]) -> dict[str, Any]:
    names = {row["variant"] for row in rows}
    table = resolution_table(plan.manifest.targets, {row["sm"] for row in rows})
    return {
        "schema_version": SCHEMA_VERSION,
        "name": NAME,
        "version": version,
        "validated": all(row["validated"] for row in rows),
        "operations": {name: operation.to_json() for name, operation in OPERATIONS.items()},
        "targets": [target.to_json() for target in plan.manifest.targets],
        "families": {family.name: family.to_json() for family in plan.manifest.families},
        "arch_table": {str(sm): list(served) for sm, served in table.items()},
        "variants": [variant.to_json() for variant in plan.manifest.variants if variant.name in names],
        "rows": rows,
        "provenance": dict(provenance),
    }
