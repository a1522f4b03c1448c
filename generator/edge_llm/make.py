# SPDX-License-Identifier: Apache-2.0
"""Makes the tarballs of a finished bundle."""

from __future__ import annotations

import fnmatch
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import generator  # noqa: F401 - makes fmhaforge importable
import fmhaforge
from generator import cabi
from generator.edge_llm.artifact import Builder
from generator.edge_llm.matrix import Combination, combinations
from generator.edge_llm.sources import EdgeError

SUMS = "SHA256SUMS"
TARBALL = ".tar.gz"


def read_bundle(bundle: Path) -> Mapping[str, Any]:
    """The metadata of a bundle, verified. Raises EdgeError when there is none, or it is damaged."""
    try:
        return fmhaforge.open(bundle).metadata.raw
    except fmhaforge.BundleError as error:
        raise EdgeError(str(error)) from error


def chosen(document: Mapping[str, Any], patterns: Sequence[str]) -> tuple[Combination, ...]:
    """The artifacts that can be made from a bundle and whose tarball's name matches one of `patterns` (none: all of them).

    Raises EdgeError when a pattern matches none, or nothing can be made.
    """
    built = {row["sm"] for row in document["rows"] if not row["checked"]}
    targets = [(target["sm"], target["platform"]) for target in document["targets"] if target["sm"] in built]
    possible = combinations(targets)
    for pattern in patterns:
        if not fnmatch.filter([combination.tarball for combination in possible], pattern):
            raise EdgeError(f"no artifact matches {pattern!r}; there are {', '.join(c.tarball for c in possible) or 'none'}")
    return tuple(c for c in possible if not patterns or any(fnmatch.fnmatch(c.tarball, pattern) for pattern in patterns))


def make(bundle: Path, out: Path, work: Path, zig: cabi.Zig, patterns: Sequence[str] = ()) -> list[Path]:
    """Write the chosen tarballs of `bundle`, their `.sha256` files and a SHA256SUMS of them all into `out`; the tarballs' paths.

    What an earlier call left in `out` and this one does not make is removed. `work` is a folder for objects, made anew. Raises EdgeError, cabi.RenderError, cabi.CompileError or OSError.
    """
    document = read_bundle(bundle)
    wanted = chosen(document, patterns)
    builder = Builder(document, bundle, work, zig)
    _remove_earlier(out)
    made = [builder.write(combination, out) for combination in wanted]
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in sorted(made)]
    (out / SUMS).write_text("".join(lines), encoding="ascii")
    return made


def _remove_earlier(out: Path) -> None:
    """Remove the tarballs that the folder's SHA256SUMS lists, and itself first, so that it never lists what is not there."""
    try:
        listed = [line.partition("  ")[2] for line in (out / SUMS).read_text(encoding="ascii").splitlines()]
    except (OSError, ValueError):
        return
    (out / SUMS).unlink()
    for name in listed:
        if Path(name).name == name and name.endswith(TARBALL):
            (out / name).unlink(missing_ok=True)
            (out / f"{name}.sha256").unlink(missing_ok=True)
