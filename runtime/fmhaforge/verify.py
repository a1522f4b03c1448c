# SPDX-License-Identifier: Apache-2.0
"""Checks a whole bundle: every digest, metadata against files, cubins against their SM."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from .bundle import CHECKSUMS, Bundle, read_file
from .elf import cubin_header
from .errors import BundleError
from .metadata import Row


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong: the file (relative to the bundle) and what about it."""

    file: str
    reason: str

    def __str__(self) -> str:
        return f"{self.file}: {self.reason}"


@dataclass(frozen=True)
class Verification:
    """The result: true when nothing was found. `files` and `size` count what was read."""

    files: int
    size: int
    rows: int
    findings: tuple[Finding, ...]

    def __bool__(self) -> bool:
        return not self.findings


def verify(bundle: Bundle) -> Verification:
    """Reads every file of the bundle and compares. Raises nothing for a damaged one: see `findings`."""
    present = set(_files(bundle.path))
    findings = [Finding(name, f"is not listed in {CHECKSUMS}") for name in sorted(present - set(bundle.checksums) - {CHECKSUMS})]
    contents: dict[str, bytes] = {}
    for name, digest in sorted(bundle.checksums.items()):
        problem = _listed_problem(bundle.path, name, digest, present, contents)
        if problem:
            findings.append(Finding(name, problem))
    for row in bundle.metadata.rows:
        findings += _row_findings(row, bundle, contents)
    return Verification(len(contents), sum(map(len, contents.values())), len(bundle.metadata.rows), tuple(dict.fromkeys(findings)))


def _files(folder: Path) -> Iterator[str]:
    """Every file of the bundle, and every link: one to a folder is not followed."""
    for parent, folders, names in os.walk(folder):
        for path in (*(Path(parent) / name for name in names), *(Path(parent) / name for name in folders if os.path.islink(os.path.join(parent, name)))):
            yield path.relative_to(folder).as_posix()


def _listed_problem(folder: Path, name: str, digest: str, present: set[str], contents: dict[str, bytes]) -> str | None:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts:
        return f"stands in {CHECKSUMS}, but leads out of the bundle"
    if name not in present:
        return f"is missing, {CHECKSUMS} lists it"
    try:
        data = read_file(folder / name)
    except BundleError as error:
        return error.reason
    contents[name] = data
    found = hashlib.sha256(data).hexdigest()
    return None if found == digest else f"has SHA-256 {found}, {CHECKSUMS} says {digest}"


def _row_findings(row: Row, bundle: Bundle, contents: dict[str, bytes]) -> Iterator[Finding]:
    for name, digest in ((row.cubin, row.cubin_sha256), (row.ptx, row.ptx_sha256)):
        if name not in contents:
            yield Finding(name, f"is named by {row.label}, but not among the files of {CHECKSUMS}")
        elif hashlib.sha256(contents[name]).hexdigest() != digest:
            yield Finding(name, f"is not what the metadata of {row.label} says (SHA-256 {digest})")
    if row.cubin in contents:
        yield from _cubin_findings(row, contents[row.cubin])
    if row.ptx in contents and not re.search(rf"^\.target {re.escape(row.ptx_target)}(?!\w)".encode(), contents[row.ptx], re.MULTILINE):
        yield Finding(row.ptx, f"has no '.target {row.ptx_target}', which {row.label} wants")
    limit = bundle.metadata.targets[row.sm].smem_limit if row.sm in bundle.metadata.targets else 0
    if row.smem_bytes + row.static_smem_bytes > limit:
        yield Finding(row.cubin, f"{row.label} needs {row.smem_bytes + row.static_smem_bytes} bytes of shared memory, its SM has {limit}")


def _cubin_findings(row: Row, data: bytes) -> Iterator[Finding]:
    if len(data) != row.cubin_bytes:
        yield Finding(row.cubin, f"has {len(data)} bytes, the metadata says {row.cubin_bytes}")
    try:
        sm, _ = cubin_header(data)
    except ValueError as error:
        yield Finding(row.cubin, f"is no cubin: {error}")
        return
    if sm != row.sm:
        yield Finding(row.cubin, f"was assembled for SM {sm}, {row.label} wants SM {row.sm}")
    if row.symbol.encode() not in data:
        yield Finding(row.cubin, f"holds no symbol {row.symbol}")
