# SPDX-License-Identifier: Apache-2.0
"""What a build is for: the libraries of each host and the bundle with its archive, made from the cubins of a session."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from functools import partial
from pathlib import Path

from generator import archive, bundle, ledger, metadata, provenance, sources, toolchain
from generator.buildplan import module_digests
from generator.bundle import BundlePlace
from generator.canonical import canonical_json, write_whole
from generator.metadata import BuiltRow
from generator.operations import OPERATIONS
from generator.session import Session
from generator.trace import ROOT

#: What renders the C source, compiles it, and makes the bundle out of everything: their sources are part of the products' keys.
RENDER_MODULES = ("generator.cabi.render",)
RENDER_INPUTS = ("generator/cpp", "generator/csrc", "generator/templates")
COMPILE_MODULES = ("generator.cabi.compile",)
BUNDLE_MODULES = ("generator.product",)
EDGE_LLM_MODULES = ("generator.edge_llm.make",)


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
        for host in session.options.hosts:
            for path in self.library_paths(host):
                session.other_keys[path.relative_to(session.build_dir).as_posix()] = partial(self._library_cache_key, host, path.name)

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
        """The digest of what the C source depends on besides the cubins."""
        return toolchain.digest_of([self._description_key(), sources.digests(sources.closure(ROOT, RENDER_MODULES)), _folder_digests(RENDER_INPUTS)])

    def library_key(self, host: str) -> str:
        """The digest of what a host's libraries depend on besides the C source."""
        compiler = toolchain.compiler_distribution()
        return toolchain.digest_of([host, compiler.version, compiler.digest, module_digests(COMPILE_MODULES)])

    def _library_cache_key(self, host: str, name: str) -> str | None:
        """The key of a library in a cache: its name, what it is compiled with, and the C source, which names the cubins by their digests."""
        try:
            source = hashlib.sha256(self.c_source.read_bytes()).hexdigest()
        except OSError:
            return None
        return toolchain.digest_of([name, self.library_key(host), self.render_key(), source])

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

    def installed(self) -> set[str]:
        """The files that the installed bundle's SHA256SUMS lists, and itself; empty when there is no bundle."""
        try:
            listed = (self.place.folder / archive.SUMS).read_text(encoding="utf-8").splitlines()
        except (OSError, ValueError):
            return set()
        return {line.partition("  ")[2] for line in listed} | {archive.SUMS}

    def is_intact(self) -> bool:
        """Whether the installed bundle has exactly the files that it lists. True when there is no bundle."""
        listed = self.installed()
        present = {os.path.relpath(os.path.join(folder, name), self.place.folder)
                   for folder, _, names in os.walk(self.place.folder) for name in names}
        return not listed or present == listed

    def leftovers(self) -> list[str]:
        """What `scons -c` removes besides the nodes: the bundle's files, and the records and reports of the build folder.

        The C compiler's own cache stays: it is no product, and takes long to fill.
        """
        records = [self.session.build_dir / name for name in ("state", "log", "tmp", "cabi", "imports.json", "report.json", "trace.json")]
        return [str(self.place.folder / path) for path in sorted(self.installed())] + [str(path) for path in records if path.exists()]

    def remove_empty_folders(self) -> None:
        """Removes the folders that `scons -c` left empty."""
        for top in (self.place.folder, *(self.session.build_dir / name for name in ("ptx", "cubins", "lib"))):
            for folder, _, _ in os.walk(top, topdown=False):
                if not os.listdir(folder):
                    os.rmdir(folder)

    # --- work ------------------------------------------------------------------------------------------------------------

    def rows(self) -> tuple[BuiltRow, ...]:
        """The built rows; raises LedgerError for kernels that were not validated, unless the options allow them."""
        opts = self.session.options
        known = ledger.load(opts.ledger)
        rows = bundle.built_rows(self.session.plan, self.session.build_dir, known)
        if not opts.allow_unvalidated:
            metadata.check_ledger(rows, known)
        return rows

    def render(self) -> None:
        """Writes the C side of the bundle and the C source below `cabi/` in the build folder, with the list of the files last."""
        from generator import cabi  # imported when there is something to render: it costs more than a build that has nothing to do

        rows = bundle.built_rows(self.session.plan, self.session.build_dir, ledger.load(self.session.options.ledger))
        document = metadata.document(self.session.plan, rows, self.place.version, {})
        with self.session.step("render", "headers and C source"):
            self.session.scratch.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix="render-", dir=self.session.scratch) as folder:
                for built in rows:
                    write_whole(Path(folder) / built.cubin_path, built.cubin)
                made = cabi.render(document, Path(folder), self.c_folder)
            write_whole(self.header_list, canonical_json(list(made.files)))

    def compile(self, host: str) -> None:
        """Compiles the libraries of a host into `lib/<host>/` in the build folder."""
        from generator import cabi

        with self.session.step("compile", f"libraries {host}"):
            self.session.scratch.mkdir(parents=True, exist_ok=True)
            made_from = cabi.Sources(self.c_folder, self.place.version, tuple(self._rendered()))
            zig = cabi.Zig(self.session.build_dir / "zig", (str(toolchain.compiler_path()),))
            with tempfile.TemporaryDirectory(prefix="compile-", dir=self.session.scratch) as folder:
                made = cabi.compile_libraries(made_from, cabi.HOSTS[host], Path(folder) / "lib", zig)
                for path, built in zip(self.library_paths(host), (made.static, made.shared)):
                    write_whole(path, built.read_bytes())

    def put(self) -> None:
        """Puts the bundle and its archive in place."""
        with self.session.step("bundle", self.place.name):
            files = bundle.files_of(self.session.plan, self.rows(), self.session.build_dir, self.place.version, self.provenance,
                                    (ROOT / "LICENSE").read_bytes(), self._compiled())
            bundle.put(files, self.place)

    def make_edge_llm(self) -> None:
        """Makes the Edge-LLM artifacts of the installed bundle, with the list of their digests last."""
        from generator import cabi
        from generator.edge_llm.make import make

        with self.session.step("edge-llm", str(self.edge_llm_sums.parent)):
            self.session.scratch.mkdir(parents=True, exist_ok=True)
            zig = cabi.Zig(self.session.build_dir / "zig", (str(toolchain.compiler_path()),))
            with tempfile.TemporaryDirectory(prefix="edge-llm-", dir=self.session.scratch) as folder:
                make(self.place.folder, self.edge_llm_sums.parent, Path(folder) / "objects", zig, self.session.options.edge_llm or ())

    def _rendered(self) -> list[str]:
        return json.loads(self.header_list.read_bytes())

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
    def header_list(self) -> Path:
        """The list of the rendered files that the bundle has, written when all of them are there."""
        return self.session.build_dir / "cabi.json"

    @property
    def c_source(self) -> Path:
        """The C source of the libraries; it includes everything else in its folder."""
        return self.c_folder / "src" / "fmhaforge.c"

    def library_paths(self, host: str) -> tuple[Path, Path]:
        """The static and the shared library of a host in the build folder."""
        folder = self.session.build_dir / "lib" / host
        return folder / "libfmhaforge.a", folder / "libfmhaforge.so"
