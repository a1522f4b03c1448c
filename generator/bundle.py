# SPDX-License-Identifier: Apache-2.0
"""Collects what was built into the files of a bundle, and puts the bundle and its archive in place."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Mapping, Sequence

from generator import archive, metadata, sbom, xz
from generator.archive import Files, Link
from generator.assemble import AssembleReport
from generator.buildplan import BuildPlan
from generator.canonical import canonical_json
from generator.embedded import embedded
from generator.ledger import Ledger
from generator.metadata import BuiltRow


ARCHIVE_LIMIT = 12_000_000
"""Bytes that a bundle's archive may have."""


class BundleError(Exception):
    """What was built does not make a bundle; the message names the file and the remedy."""


@dataclass(frozen=True)
class BundlePlace:
    """Where a bundle goes: the folder `dist`, its name `fmhaforge-<version>`."""

    dist: Path
    version: str

    @property
    def name(self) -> str:
        """The bundle's folder name."""
        return f"{metadata.NAME}-{self.version}"

    @property
    def folder(self) -> Path:
        """The bundle's folder."""
        return self.dist / self.name

    @property
    def archive(self) -> Path:
        """The bundle's archive."""
        return self.dist / f"{self.name}.tar.xz"


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise BundleError(f"{path} is missing though the build made it: another process removed it; build again") from None


def built_rows(plan: BuildPlan, build_dir: Path, ledger: Ledger) -> tuple[BuiltRow, ...]:
    """Every row with its cubin and report, read from the build folder and checked against each other.

    Raises BundleError when a file is missing or a cubin is not the one that its report describes.
    """
    ptx_hashes: dict[str, str] = {}
    ptx_paths: dict[str, str] = {}
    for kernel in plan.kernels:
        digest = hashlib.sha256(_read(build_dir / kernel.ptx_path)).hexdigest()
        ptx_hashes[kernel.name] = digest
        ptx_paths.setdefault(digest, kernel.ptx_path)
    rows = []
    for row in plan.rows:
        cubin = plan.cubin_of[row.variant.name, row.sm]
        data = _read(build_dir / cubin.path)
        report = AssembleReport.from_json(json.loads(_read(build_dir / cubin.report_path)))
        if hashlib.sha256(data).hexdigest() != report.cubin_sha256:
            raise BundleError(f"{build_dir / cubin.path} is not the cubin that its report describes: remove both and build again")
        digest = ptx_hashes[cubin.kernel.name]
        rows.append(BuiltRow(row, cubin.kernel.plan, data, f"cubins/sm_{row.sm}/{row.variant.name}.cubin", ptx_paths[digest], digest, report,
                             ledger.is_validated(digest, row.family, row.sm)))
    return tuple(rows)


def files_of(plan: BuildPlan, rows: tuple[BuiltRow, ...], build_dir: Path, version: str, provenance: Mapping[str, Any], licence: bytes,
             more: Files) -> dict[str, bytes | Link]:
    """The bundle's files but SHA256SUMS: relative path -> content. `more` are headers and libraries."""
    files: dict[str, bytes | Link] = {
        "LICENSE": licence,
        "metadata.json": canonical_json(metadata.document(plan, rows, version, provenance)),
        "sbom.cdx.json": canonical_json(sbom.document(version, provenance)),
    }
    for built in rows:
        files[built.cubin_path] = built.cubin
        if built.ptx_path not in files:
            files[built.ptx_path] = _read(build_dir / built.ptx_path)
    clash = files.keys() & more.keys()
    if clash:
        raise BundleError(f"two parts of the build make the bundle's file {min(clash)}")
    return {**files, **more}


def put(files: Files, place: BundlePlace, cubins: Sequence[str] = (), keep: xz.Keep | None = None) -> None:
    """Puts the bundle's folder and archive in place: both are written beside their names first, and renamed when both are whole.

    `cubins` are the paths of those that the libraries hold, in their order; `keep` keeps the archive's compressed parts.

    Raises BundleError when the archive is too large, archive.InstallError or OSError; what stood there before is whole then.
    """
    archive.check_place(place.folder)
    place.dist.mkdir(parents=True, exist_ok=True)
    everything = archive.with_checksums(files)
    with ThreadPoolExecutor(2) as pool:
        writing = pool.submit(archive.stage, everything, place.dist, place.name)
        packing = pool.submit(archive.pack, everything, place.name, place.archive, embedded(everything, cubins), keep)
    failed = writing.exception() or packing.exception()
    try:
        if failed:
            raise failed
        _check_size(files, packing.result().stat().st_size)
        archive.install_folder(writing.result(), place.folder)
        os.replace(packing.result(), place.archive)
    finally:
        if not writing.exception():
            shutil.rmtree(writing.result(), ignore_errors=True)
        if not packing.exception():
            packing.result().unlink(missing_ok=True)


def _check_size(files: Files, packed: int) -> None:
    """Raises BundleError when the archive of `files` has more bytes than it may."""
    if packed > ARCHIVE_LIMIT:
        sizes = {path: len(content) for path, content in files.items() if path.startswith("cubins/")}
        largest = sorted(sizes, key=lambda path: (-sizes[path], path))[:10]
        named = ", ".join(f"{path} {sizes[path]:,}" for path in largest)
        raise BundleError(f"the archive has {packed:,} bytes, more than {ARCHIVE_LIMIT:,}; the largest rows are {named}: "
                          "make those kernels smaller (tile, unrolling), or build fewer rows with sm= or variants=")
