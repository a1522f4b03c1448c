# SPDX-License-Identifier: Apache-2.0
"""Writes the part of the library that holds the cubins: the tables of rows, apart from the code, which needs no cubin to be compiled."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from generator.cabi.model import RowC
from generator.cabi.texts import from_template, write_source

ALIGNMENT = 64
"""Each cubin starts at a multiple of so many bytes."""

ROWS_SOURCE = "fmhaforge_rows.c"
CUBINS_FILE = "cubins.bin"
TABLE = "rows.json"


@dataclass(frozen=True)
class Embedded:
    """A row's cubin and what only it tells: registers a thread, static shared memory in bytes, the kernel's symbol."""

    content: bytes
    registers: int
    static_smem_bytes: int
    symbol: str

    @cached_property
    def sha256(self) -> str:
        """The cubin's SHA-256 (hex)."""
        return hashlib.sha256(self.content).hexdigest()

    @property
    def size(self) -> int:
        """The cubin's bytes."""
        return len(self.content)


def write_table(source_folder: Path, rows: Iterable[RowC]) -> None:
    """Keep what is known of the rows beside the sources, for `render_rows`."""
    write_source(source_folder / TABLE, json.dumps([asdict(row) for row in rows], indent=1) + "\n")


def together(cubins: Iterable[Embedded]) -> tuple[bytes, dict[str, int]]:
    """The cubins one after another, equal ones once, and where each starts, by its SHA-256."""
    parts: list[bytes] = []
    offsets: dict[str, int] = {}
    size = 0
    for cubin in cubins:
        if cubin.sha256 not in offsets:
            offsets[cubin.sha256] = size
            padding = -cubin.size % ALIGNMENT
            parts += (cubin.content, bytes(padding))
            size += cubin.size + padding
    return b"".join(parts), offsets


def render_rows(source_folder: Path, cubins: Mapping[tuple[str, int], Embedded], out: Path) -> Path:
    """Write the source of the rows and its cubins into the folder `out`; the source. It includes headers of `source_folder`.

    `cubins` has every row's by (variant, SM). Raises KeyError when one is missing.
    """
    known: list[dict[str, Any]] = json.loads((source_folder / TABLE).read_bytes())
    rows = [(row, cubins[row["variant"], row["sm"]]) for row in known]
    content, offsets = together(built for _, built in rows)
    source = out / ROWS_SOURCE
    write_source(source, from_template("fmhaforge_rows.c.j2", {"rows": rows, "offsets": offsets, "alignment": ALIGNMENT, "cubins_file": CUBINS_FILE}))
    (out / CUBINS_FILE).write_bytes(content)
    return source
