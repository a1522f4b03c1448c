# SPDX-License-Identifier: Apache-2.0
"""Asks the numerics ledger which kernels were validated on a device. The device tests write it (docs/architecture.md has its format)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Mapping

from generator.model import Family

SCHEMA_VERSION = 1

#: How a kernel can reach a device: as a cubin of the pinned assembler, or as PTX that the driver assembles.
CUBIN_ROUTE = "cubin"
DRIVER_ROUTE = "driver-ptx"


class LedgerError(Exception):
    """The ledger cannot be read, or a kernel is not in it; the message says which and what to do."""


@dataclass(frozen=True)
class Ledger:
    """What was validated: PTX hash (SHA-256, hex) -> the routes with at least one run; and the SMs on which cubins ran."""

    path: str
    routes: Mapping[str, frozenset[str]]
    cubin_sms: frozenset[int] = frozenset()

    def required_routes(self, family: Family, sm: int) -> tuple[str, ...]:
        """The routes that a kernel must have passed to be shipped for an SM.

        An exact family's PTX fits one SM, so it goes through the cubin route only. A portable kernel must have passed as PTX, and as
        a cubin too where the ledger has runs on that SM: elsewhere nobody has a device to run the cubin on.
        """
        if family.exact:
            return (CUBIN_ROUTE,)
        return (CUBIN_ROUTE, DRIVER_ROUTE) if sm in self.cubin_sms else (DRIVER_ROUTE,)

    def missing_routes(self, ptx_sha256: str, family: Family, sm: int) -> tuple[str, ...]:
        """The routes still to be validated for a kernel on an SM; empty when it may be shipped."""
        have = self.routes.get(ptx_sha256, frozenset())
        return tuple(route for route in self.required_routes(family, sm) if route not in have)

    def is_validated(self, ptx_sha256: str, family: Family, sm: int) -> bool:
        """Whether a kernel passed on every route that its family needs on an SM."""
        return not self.missing_routes(ptx_sha256, family, sm)


def load(path: str | Path) -> Ledger:
    """The ledger at `path`; empty when there is no such file. Raises LedgerError when it is no ledger."""
    try:
        document = json.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return Ledger(str(path), {})
    except (OSError, ValueError) as error:
        raise LedgerError(f"{path}: cannot be read ({error}); restore it from version control") from None
    if not isinstance(document, dict) or document.get("schema_version") != SCHEMA_VERSION or not isinstance(document.get("entries"), dict):
        raise LedgerError(f"{path}: not a numerics ledger of schema version {SCHEMA_VERSION}; restore it from version control")
    runs = {digest: _runs(path, digest, entry) for digest, entry in document["entries"].items()}
    cubin_sms = frozenset(sm for found in runs.values() for route, sm in found if route == CUBIN_ROUTE)
    return Ledger(str(path), {digest: frozenset(route for route, _ in found) for digest, found in runs.items()}, cubin_sms)


def _runs(path: str | Path, digest: str, entry: Any) -> frozenset[tuple[str, int]]:
    try:
        return frozenset((run["route"], run["sm"]) for run in entry["runs"] if run["cases"] > 0)
    except (TypeError, KeyError) as error:
        raise LedgerError(f"{path}: entry {digest[:12]} has no readable runs ({error!r}); restore it from version control") from None
