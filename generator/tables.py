# SPDX-License-Identifier: Apache-2.0
"""The tables that a build ends with. Imports little: they are most of what a build with nothing to do has to do."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Iterable, Sequence

from generator.progress import clock


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


def describe_bundle(folder: Path, archive: Path, seconds: float) -> str:
    """What a build that took so many seconds says of its bundle: the rows, totals, whether it is validated, and where it is."""
    document = json.loads((folder / "metadata.json").read_bytes())
    lines = ["", rows_table(document), "", totals(document, os.path.getsize(archive), seconds)]
    if not document["validated"]:
        lines.append("NOT VALIDATED: the numerics ledger does not know every kernel (allow_unvalidated=1)")
    return "\n".join([*lines, f"bundle: {folder}", f"archive: {archive}"])
