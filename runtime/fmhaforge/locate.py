# SPDX-License-Identifier: Apache-2.0
"""Finds the bundle that a command is about."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path

from .bundle import METADATA
from .errors import BundleNotFoundError

VARIABLE = "FMHAFORGE_BUNDLE"
DIST = "dist"


def find_bundle(stated: str | None, environment: Mapping[str, str] = os.environ, folder: Path | None = None) -> Path:
    """The folder of the bundle: the stated one, which may not be empty, else that of FMHAFORGE_BUNDLE, else the newest in ./dist.

    The newest is the one with the highest version in its metadata, and of equal ones the last written. Raises
    BundleNotFoundError.
    """
    if stated == "":
        raise BundleNotFoundError("--bundle", "is empty; give the folder of a bundle")
    chosen = stated or environment.get(VARIABLE)
    if chosen:
        return Path(chosen)
    dist = (folder or Path.cwd()) / DIST
    found = [path.parent for path in sorted(dist.glob(f"*/{METADATA}")) if not path.parent.name.startswith(".")]
    if not found:
        raise BundleNotFoundError(dist, f"holds no bundle; build one with `make bundle`, or give --bundle or {VARIABLE}")
    return max(found, key=_age)


def _age(path: Path) -> tuple[tuple[int, ...], float]:
    try:
        version = json.loads((path / METADATA).read_bytes())["version"]
        numbers = tuple(int(number) for number in re.findall(r"\d+", version))
        return numbers, (path / METADATA).stat().st_mtime
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return (), 0.0  # the last choice; opening it says what is wrong
