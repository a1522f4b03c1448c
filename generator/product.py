# SPDX-License-Identifier: Apache-2.0
"""What a build is for: the libraries of each host and the bundle with its archive, made from the cubins of a session."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from contextlib import contextmanager
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Iterator

from generator import archive, bundle, ledger, metadata, provenance, sources, toolchain, unchanged
from generator.buildplan import module_digests
from generator.bundle import BundlePlace
from generator.cache import Store
from generator.canonical import canonical_json, write_whole
from generator.metadata import BuiltRow
from generator.operations import OPERATIONS
from generator.session import Session
from generator.trace import ROOT

if TYPE_CHECKING:
    from generator import cabi

#: What renders the C source, compiles it, and makes the bundle out of everything: their sources are part of the products' keys.
RENDER_MODULES = ("generator.cabi.render",)
PLANNED_MODULES = ("generator.metadata",)
RENDER_INPUTS = ("generator/cpp", "generator/csrc", "generator/templates")
COMPILE_MODULES = ("generator.cabi.compile", "generator.cabi.rows", "generator.cabi.texts")
COMPILE_INPUTS = ("generator/templates",)
BUNDLE_MODULES = ("generator.product",)
EDGE_LLM_MODULES = ("generator.edge_llm.make",)

KEPT_BLOCKS = 32 << 20
"""Bytes of compressed parts of archives that the build folder keeps, for the next archive."""


def _own_sources(modules: tuple[str, ...]) -> dict[str, str]:
    """The generator's sources behind `modules`. The runtime's only carry values that stand in the metadata."""
    return {source.path: source.digest for source in sources.closure(ROOT, modules) if source.path.startswith("generator/")}


def _folder_digests(folders: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.is_file():
                found[path.relative_to(ROOT).as_posix()] = sources.file_digest(path)
    return found


class BundleProduct:
    """The bundle of a session's rows, with the libraries that go into it."""

    def __init__(self, session: Session, place: BundlePlace) -> None:
        self.session = session
        self.place = place
        self.provenance = provenance.describe(ROOT)
        self._before = unchanged.products(session.build_dir)
        for host in session.options.hosts:
            session.other_keys[self._product(self.code_object(host))] = partial(self._code_cache_key, host)
            for path in self.library_paths(host):
                session.other_keys[self._product(path)] = partial(self._library_cache_key, host, path.name)

    def _product(self, path: Path) -> str:
        return path.relative_to(self.session.build_dir).as_posix()

    # --- keys: what SCons compares ---------------------------------------------------------------------------------------

    def _description_key(self) -> str:
        """The digest of everything in the metadata that does not come from a built file, without the provenance."""
        plan = self.session.plan
        return toolchain.digest_of([
            [variant.to_json() for variant in plan.manifest.variants],
            [target.to_json() for target in plan.manifest.targets],
            [family.to_json() for family in plan.manifest.families],
            [operation.to_json() for operation in OPERATIONS.values()],
            [[row.variant.name, row.sm] for row in plan.rows],
            [kernel.key for kernel in plan.kernels],
            self.place.version,
        ])

    def render_key(self) -> str:
        """The digest of what the headers and the C source of the code are made from; no cubin is needed for them."""
        return toolchain.digest_of([self._description_key(), sources.digests(sources.closure(ROOT, RENDER_MODULES)), module_digests(PLANNED_MODULES),
                                    _folder_digests(RENDER_INPUTS)])

    def library_key(self, host: str) -> str:
        """The digest of what a host's objects and libraries depend on besides the C sources and the cubins."""
        compiler = toolchain.compiler_distribution()
        return toolchain.digest_of([host, compiler.version, compiler.digest, module_digests(COMPILE_MODULES), _folder_digests(COMPILE_INPUTS)])

    def _code_cache_key(self, host: str) -> str | None:
        """The key of a host's object of the code in a cache; None as long as there is no source."""
        try:
            return toolchain.digest_of(["code", self.library_key(host), self.rendered_list.read_text(encoding="utf-8")])
        except OSError:
            return None

    def _library_cache_key(self, host: str, name: str) -> str | None:
        """The key of a library in a cache: its name, what it is compiled with, the sources and the cubins by their digests."""
        code = self._code_cache_key(host)
        try:
            rows = [[built.row.variant.name, built.row.sm, built.report.to_json()] for built in self.built_rows]
        except (OSError, bundle.BundleError):
            return None
        return code and toolchain.digest_of([name, code, rows])

    def key(self) -> str:
        """The digest of what the bundle depends on besides the built files."""
        opts = self.session.options
        ledger_path = Path(opts.ledger)
        known = sources.file_digest(ledger_path) if ledger_path.is_file() else None
        return toolchain.digest_of([self._description_key(), self.provenance, known, opts.allow_unvalidated, archive.source_date_epoch(),
                                    sources.file_digest(ROOT / "LICENSE"), _own_sources(BUNDLE_MODULES)])

    def edge_llm_key(self) -> str:
        """The digest of what the Edge-LLM artifacts depend on besides the bundle."""
        compiler = toolchain.compiler_distribution()
        return toolchain.digest_of([compiler.version, compiler.digest, archive.source_date_epoch(), self.session.options.edge_llm or (),
                                    sources.digests(sources.closure(ROOT, EDGE_LLM_MODULES)), _folder_digests(RENDER_INPUTS)])

    def installed(self) -> dict[str, str]:
        """The files that the installed bundle's SHA256SUMS lists, with their digests; empty when there is no bundle."""
        try:
            lines = (self.place.folder / archive.SUMS).read_text(encoding="utf-8").splitlines()
        except (OSError, ValueError):
            return {}
        return {path: digest for digest, _, path in (line.partition("  ") for line in lines)}

    def is_intact(self) -> bool:
        """Whether the installed bundle holds exactly the files that it lists. True when there is no bundle."""
        listed = self.installed()
        present = {os.path.relpath(os.path.join(folder, name), self.place.folder)
                   for folder, _, names in os.walk(self.place.folder) for name in names}
        return not listed or present == listed.keys() | {archive.SUMS} and all(map(self._is_listed_file, listed.items())) and not self.is_touched(
            self.place.archive)

    def _is_listed_file(self, listed: tuple[str, str]) -> bool:
        path, digest = listed
        place = self.place.folder / path
        return self.is_kept(place) or hashlib.sha256(place.read_bytes()).hexdigest() == digest

    def is_kept(self, path: Path) -> bool:
        """Whether a product is as the last whole build left it."""
        return str(path) in self._before.kept

    def is_touched(self, *paths: Path) -> bool:
        """Whether somebody changed or removed one of these products, or something below them, since the last whole build."""
        tops = tuple(map(str, paths))
        return any(path == top or path.startswith(top + os.sep) for path in self._before.touched for top in tops)

    def leftovers(self) -> list[str]:
        """What `scons -c` removes besides the nodes: the bundle's files, and the records and reports of the build folder.

        The C compiler's own cache stays: it is no product, and takes long to fill.
        """
        records = [self.session.build_dir / name for name in ("state", "log", "tmp", "cabi", "blocks", "imports.json", unchanged.FOLDER, "report.json", "trace.json")]
        return [str(self.place.folder / path) for path in sorted((*self.installed(), archive.SUMS))] + [str(path) for path in records if path.exists()]

    def remove_empty_folders(self) -> None:
        """Removes the folders that `scons -c` left empty."""
        for top in (self.place.folder, *(self.session.build_dir / name for name in ("ptx", "cubins", "lib"))):
            for folder, _, _ in os.walk(top, topdown=False):
                if not os.listdir(folder):
                    os.rmdir(folder)

    # --- work ------------------------------------------------------------------------------------------------------------

    @cached_property
    def built_rows(self) -> tuple[BuiltRow, ...]:
        """Every row with its cubin; read once, when all of them are built. Raises BundleError, LedgerError or OSError."""
        return bundle.built_rows(self.session.plan, self.session.build_dir, self._ledger)

    @cached_property
    def _ledger(self) -> ledger.Ledger:
        return ledger.load(self.session.options.ledger)

    def rows(self) -> tuple[BuiltRow, ...]:
        """The built rows; raises LedgerError for kernels that were not validated, unless the options allow them."""
        if not self.session.options.allow_unvalidated:
            metadata.check_ledger(self.built_rows, self._ledger)
        return self.built_rows

    def render(self) -> None:
        """Writes the C side of the bundle, without the rows, below `cabi/` in the build folder, with the list of the files last."""
        from generator import cabi  # imported when there is something to render: it costs more than a build that has nothing to do

        with self.session.step("render", "headers and C source"):
            made = cabi.render_code(metadata.planned(self.session.plan, self.place.version), self.c_folder)
            digests = {path.relative_to(self.c_folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
                       for path in self.c_folder.rglob("*") if path.is_file()}
            write_whole(self.rendered_list, canonical_json({"bundle": sorted(made.files), "digests": digests}))

    def compile_code(self, host: str) -> None:
        """Compiles the libraries' code for a host into the build folder; no cubin is needed for it."""
        from generator import cabi

        with self.session.step("compile", f"code {host}"), self._work_folder("code") as folder:
            made = folder / "code.o"
            sources = self._sources()
            cabi.compile_object(sources.source, sources.include, cabi.HOSTS[host], made, self._zig())
            write_whole(self.code_object(host), made.read_bytes())

    def compile(self, host: str) -> None:
        """Compiles the rows for a host and links them with its code into the libraries in `lib/<host>/` in the build folder."""
        from generator import cabi

        with self.session.step("compile", f"libraries {host}"), self._work_folder("compile") as folder:
            cubins = {(built.row.variant.name, built.row.sm): cabi.Embedded(built.cubin, built.report.registers, built.report.static_smem, built.report.symbol)
                      for built in self.built_rows if not built.row.variant.checked}
            sources, zig, built_for = self._sources(), self._zig(), cabi.HOSTS[host]
            rows, unit = folder / "rows.o", folder / "fmhaforge.o"
            cabi.compile_rows(cabi.render_rows(sources.source.parent, cubins, folder), sources, built_for, rows, zig)
            cabi.make_object(unit, (self.code_object(host), rows), zig)
            made = cabi.link_libraries(unit, built_for, folder, zig)
            for path, built in zip(self.library_paths(host), (made.static, made.shared)):
                write_whole(path, built.read_bytes())

    def _sources(self) -> cabi.Sources:
        from generator import cabi

        return cabi.Sources(self.c_folder, self.place.version, tuple(self._rendered()))

    def _zig(self) -> cabi.Zig:
        from generator import cabi

        return cabi.Zig(self.session.build_dir / "zig", (str(toolchain.compiler_path()),))

    @contextmanager
    def _work_folder(self, name: str) -> Iterator[Path]:
        """A folder for what a step writes on its way, gone afterwards."""
        self.session.scratch.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f"{name}-", dir=self.session.scratch) as folder:
            yield Path(folder)

    def put(self) -> None:
        """Puts the bundle and its archive in place."""
        with self.session.step("bundle", self.place.name):
            files = bundle.files_of(self.session.plan, self.rows(), self.session.build_dir, self.place.version, self.provenance,
                                    (ROOT / "LICENSE").read_bytes(), self._compiled())
            cubins = [built.cubin_path for built in self.built_rows if not built.row.variant.checked]
            kept = Store(self.session.build_dir / "blocks")
            bundle.put(files, self.place, cubins, kept)
            kept.trim(KEPT_BLOCKS)

    def make_edge_llm(self) -> None:
        """Makes the Edge-LLM artifacts of the installed bundle, with the list of their digests last."""
        from generator.edge_llm.make import make

        with self.session.step("edge-llm", str(self.edge_llm_sums.parent)), self._work_folder("edge-llm") as folder:
            make(self.place.folder, self.edge_llm_sums.parent, folder / "objects", self._zig(), self.session.options.edge_llm or ())

    def _rendered(self) -> list[str]:
        """The rendered files that belong into the bundle."""
        return json.loads(self.rendered_list.read_bytes())["bundle"]

    def _compiled(self) -> dict[str, bytes | archive.Link]:
        """Headers, package files and libraries: path in the bundle -> content."""
        from generator import cabi

        files: dict[str, bytes | archive.Link] = {}
        absent = tuple(f"lib/{host}/" for host in cabi.HOSTS if host not in self.session.options.hosts)
        for path in self._rendered():
            if not path.startswith(absent):
                files[path] = (self.c_folder / path).read_bytes()
        for host in self.session.options.hosts:
            static, shared = self.library_paths(host)
            files[f"lib/{host}/{cabi.STATIC_NAME}"] = Path(static).read_bytes()
            files[f"lib/{host}/{cabi.SONAME}"] = Path(shared).read_bytes()
            files[f"lib/{host}/{cabi.SHARED_NAME}"] = archive.Link(cabi.SONAME)
        return files

    # --- places ----------------------------------------------------------------------------------------------------------

    @property
    def edge_llm_sums(self) -> Path:
        """The list of the Edge-LLM tarballs, beside them."""
        return Path(self.session.options.dist).absolute() / "edge-llm" / archive.SUMS

    @property
    def c_folder(self) -> Path:
        """Where the headers and the C source are rendered."""
        return self.session.build_dir / "cabi"

    @property
    def rendered_list(self) -> Path:
        """The list of the rendered files with their digests, written when all of them are there."""
        return self.session.build_dir / "cabi.json"

    @property
    def c_source(self) -> Path:
        """The C source of the code; it includes everything else in its folder."""
        return self.c_folder / "src" / "fmhaforge.c"

    def code_object(self, host: str) -> Path:
        """The object of the libraries' code for a host in the build folder."""
        return self.session.build_dir / "lib" / host / "code.o"

    def library_paths(self, host: str) -> tuple[Path, Path]:
        """The static and the shared library of a host in the build folder."""
        folder = self.session.build_dir / "lib" / host
        return folder / "libfmhaforge.a", folder / "libfmhaforge.so"
