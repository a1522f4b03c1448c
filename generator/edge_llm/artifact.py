# SPDX-License-Identifier: Apache-2.0
"""Builds artifacts: archive, headers and metadata of one combination, and the tarball that Edge-LLM's CMake unpacks."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from generator import archive, cabi
from generator.cabi.texts import write_source
from generator.edge_llm import metadata, sources
from generator.edge_llm.matrix import Combination

SUFFIX = "_edge_llm"
"""Ends the names of the library's functions within the archive, so that libfmhaforge may be linked beside it."""


_HIDDEN = ("FMHAFORGE_API=",)
"""Keeps the library's functions out of what a plugin exports."""


@dataclass(frozen=True)
class Artifact:
    """A built artifact. `files` are its files, relative to the folder that its tag names."""

    combination: Combination
    files: Mapping[str, bytes]


class Builder:
    """Builds artifacts from the metadata of a bundle (`document`) and its cubins (below `bundle`).

    Objects are kept in the folder `work`, which is made anew, so that combinations share what they have in common.
    """

    def __init__(self, document: Mapping[str, Any], bundle: Path, work: Path, zig: cabi.Zig):
        self._document = {**document, "rows": [row for row in document["rows"] if not row["checked"]]}
        self._bundle = bundle
        self._work = work
        shutil.rmtree(work, ignore_errors=True)
        self._zig = zig
        self._classes = sources.abi_classes(self._document, tuple(dict.fromkeys(row["variant"] for row in self._document["rows"])))

    def variants(self, sms: Sequence[int]) -> tuple[str, ...]:
        """The variants that have a row for every one of these SMs, in table order. Raises EdgeError when there is none."""
        built = {(row["variant"], row["sm"]) for row in self._document["rows"]}
        found = tuple(name for name in self._classes if all((name, sm) in built for sm in sms))
        if not found:
            raise sources.EdgeError(f"no variant is built for {' and '.join(f'SM {sm}' for sm in sms)}; build those SMs first")
        return found

    def build(self, combination: Combination) -> Artifact:
        """The artifact of a combination. Raises EdgeError, cabi.RenderError or cabi.CompileError."""
        names = self.variants(combination.sms)
        classes = {name: self._classes[name] for name in names}
        host = cabi.HOSTS[combination.host]
        library = f"libcutedsl_{combination.host}.a"
        folder = self._work / combination.host
        path = folder / "_".join(map(str, combination.sms)) / library
        if not path.exists():
            objects = [*self._variant_objects(host, classes), self._core(host, combination.sms), self._shared(host)]
            cabi.make_archive(path, objects, self._zig)
        files = {f"include/{name}": text.encode() for name, text in sources.headers(classes, self._document["version"]).items()}
        files[library] = path.read_bytes()
        files["metadata.json"] = metadata.document(combination, names, self._document)
        if len(combination.sms) > 1:
            files[metadata.DISPATCH_SOURCE] = metadata.DISPATCH_TEXT.encode()
        return Artifact(combination, files)

    def write(self, combination: Combination, out: Path) -> Path:
        """Build a combination and write its tarball and `.sha256` into the folder `out`; the path of the tarball."""
        out.mkdir(parents=True, exist_ok=True)
        path = out / combination.tarball
        packed = archive.pack(self.build(combination).files, combination.tag, path)
        digest = hashlib.sha256(packed.read_bytes()).hexdigest()
        os.replace(packed, path)
        (out / f"{combination.tarball}.sha256").write_text(f"{digest}  {combination.tarball}\n", encoding="ascii")
        return path

    # -- objects ------------------------------------------------------------------------------------------------------------

    def _shared_folder(self) -> Path:
        folder = self._work / "c"
        if not folder.exists():
            self._render_library(self._document["rows"], self._work / "all")
            for name, text in sources.shared_sources(self._classes).items():
                write_source(folder / name, text)
            for name, abi_class in self._classes.items():
                write_source(folder / f"{name}.c", sources.variant_source(name, abi_class))
        return folder

    def _object(self, host: cabi.Host, name: str) -> Path:
        """The object of one of the sources that do not depend on the SM."""
        path = self._work / host.name / f"{name}.o"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            cabi.compile_object(self._shared_folder() / f"{name}.c", self._work / "all" / "include", host, path, self._zig, _HIDDEN)
        return path

    def _variant_objects(self, host: cabi.Host, classes: Mapping[str, str]) -> list[Path]:
        return [self._object(host, name) for name in classes]

    def _shared(self, host: cabi.Host) -> Path:
        return self._object(host, "fmhaforge_edge_llm")

    def _core(self, host: cabi.Host, sms: Sequence[int]) -> Path:
        """The library of these SMs' rows as one object, whose functions stay hidden in what links it."""
        rows = [row for row in self._document["rows"] if row["sm"] in sms]
        folder = self._work / host.name / "_".join(map(str, sms))
        rendered = self._render_library(rows, folder / "c")
        path = folder / "fmhaforge.o"
        cabi.compile_library_object(rendered, host, path, self._zig, _HIDDEN)
        return path

    def _render_library(self, rows: Sequence[Mapping[str, Any]], out: Path) -> cabi.Sources:
        built = {row["sm"] for row in rows}
        table = {sm: [row_sm for row_sm in served if row_sm in built] for sm, served in self._document["arch_table"].items()}
        document = {**self._document, "rows": rows, "arch_table": {sm: served for sm, served in table.items() if served}}
        return cabi.render(document, self._bundle, out, SUFFIX)
