# SPDX-License-Identifier: Apache-2.0
"""The files that benchmarks leave: JSON documents that name their schema, and texts made from them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bench.errors import BenchError


def read(path: Path, schema_version: int, remedy: str) -> dict[str, Any]:
    """A document that was written earlier. Raises BenchError; `remedy` says what to do about a file that is none."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BenchError(f"{path}: cannot be read ({error}); {remedy}") from error
    version = document.get("schema_version") if isinstance(document, dict) else None
    if version != schema_version:
        raise BenchError(f"{path}: schema_version is {version!r}, this reads {schema_version}; measure again")
    return document


def write(path: Path, document: dict[str, Any]) -> None:
    """A document as JSON, with the folders that it needs."""
    write_text(path, json.dumps(document, indent=1) + "\n")


def write_text(path: Path, text: str) -> None:
    """A text file, with the folders that it needs."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
