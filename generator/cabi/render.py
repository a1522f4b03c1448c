# SPDX-License-Identifier: Apache-2.0
"""Writes the headers and the C source of a bundle."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import generator  # noqa: F401 - makes fmhaforge importable
from fmhaforge import metadata as bundle_metadata
from fmhaforge import sentences
from fmhaforge.errors import SchemaError
from generator import expr_c, operations
from generator.cabi import numbers
from generator.cabi.model import Model, VariantC, make_model
from generator.cabi.rows import ROWS_SOURCE, Embedded, render_rows, write_table
from generator.cabi.texts import from_template, write_source

_HERE = Path(__file__).resolve().parent.parent
C_SOURCES = _HERE / "csrc"
CPP_SOURCES = _HERE / "cpp"

_FUNCTIONS = ("query", "why_not", "find_row", "row_count", "row_at", "attach", "preload", "scale_log2", "last_reason", "status_name", "get_table")

_EXPRESSIONS = f"""/* SPDX-License-Identifier: Apache-2.0 */
/* The expressions of launch plans: 64-bit arithmetic that notices when a value does not fit. Generated; do not edit. */
{expr_c.HELPERS}"""


_SENTENCES = """/* SPDX-License-Identifier: Apache-2.0 */
/* The sentences of the Python runtime, as formats of printf. Generated; do not edit. */
""" + "".join(f"#define FF_SAY_{name} {json.dumps(sentences.c_text(getattr(sentences, name)))}\n" for name in sentences.NAMES)


class RenderError(ValueError):
    """The C side can't be made from these inputs; the message names the place and the remedy."""


@dataclass(frozen=True)
class Sources:
    """What `render` wrote. `files` belong into the bundle, at these paths, which are relative to `root`."""

    root: Path
    version: str
    files: tuple[str, ...]

    @property
    def headers(self) -> tuple[str, ...]:
        """The public C headers, relative to `include`."""
        return tuple(path.removeprefix("include/") for path in self.files if path.startswith("include/"))

    @property
    def include(self) -> Path:
        """The folder of the public headers."""
        return self.root / "include"

    @property
    def source(self) -> Path:
        """The C source of the library without its rows; it includes everything else in its folder, where it is compiled."""
        return self.root / "src" / "fmhaforge.c"

    @property
    def rows_source(self) -> Path:
        """The C source of the rows and their cubins, where `render` writes it."""
        return self.root / "src" / ROWS_SOURCE


def render(document: Mapping[str, Any], bundle: Path, out: Path, suffix: str = "") -> Sources:
    """Write everything that `render_code` writes, and the source of the rows with their cubins.

    `bundle` is the folder that the rows' `cubin` paths start from. Raises RenderError too when a cubin is missing or is not the one the
    metadata describes.
    """
    sources = render_code(document, out, suffix)
    cubins = {(row["variant"], row["sm"]): _embedded(row, bundle) for row in document["rows"] if not row["checked"]}
    render_rows(sources.source.parent, cubins, sources.rows_source.parent)
    return sources


def render_code(document: Mapping[str, Any], out: Path, suffix: str = "") -> Sources:
    """Write the bundle's headers, C++ sources, CMake and pkg-config files, and `src/` but the rows, under `out`, which is made anew.

    `document` is the content of `metadata.json`, in which nothing needs to be true that only a cubin tells (`metadata.planned`); `suffix`
    is added to the name of every function, for a library that is linked together with another one. Raises RenderError when the metadata
    can't be rendered, or for a suffix that is no C name.
    """
    if suffix and not re.fullmatch(r"\w+", suffix, re.ASCII):
        raise RenderError(f"suffix {suffix!r} can't end a C name; use letters, digits and _")
    try:
        metadata = _for_libraries(bundle_metadata.parse(json.dumps(document).encode(), "metadata.json"))
        model = make_model(metadata)
    except (SchemaError, KeyError, ValueError) as error:
        raise RenderError(f"metadata.json: {error.args[0] if isinstance(error, KeyError) else error}") from error
    if not metadata.rows:
        raise RenderError("metadata.json: rows is empty; a library needs at least one kernel")
    shutil.rmtree(out, ignore_errors=True)
    texts = {**_headers(model, suffix), **_cpp_files(), **_package_files(model)}
    for path, text in texts.items():
        write_source(out / path, text)
    sources = Sources(out, metadata.version, tuple(texts))
    _write_source(model, sources, suffix)
    return sources


def _for_libraries(metadata: bundle_metadata.Metadata) -> bundle_metadata.Metadata:
    """Checked variants are launched from Python, which hands them a fault report and reads it: libraries hold the others."""
    return replace(metadata, rows=tuple(row for row in metadata.rows if not row.checked))


def _headers(model: Model, suffix: str) -> dict[str, str]:
    """Path in the bundle -> text of the public C headers."""
    names = (*_FUNCTIONS, *(f"launch_{operation.name}" for operation in model.operations))
    texts = {"include/fmhaforge.h": from_template("fmhaforge.h.j2", {
        "version": model.version, "abi_version": numbers.ABI_VERSION, "enums": numbers.ENUMS, "flags": numbers.FLAGS.members,
        "operations": model.operations, "no_window": operations.NO_WINDOW, "suffix": suffix, "functions": names})}
    for variant in model.variants:
        texts[f"include/fmhaforge/{variant.name}.h"] = from_template("variant.h.j2", _variant_values(variant))
    return texts


def _cpp_files() -> dict[str, str]:
    """The C++ runner, which is compiled by whoever uses it because C++ has no common ABI."""
    return {f"cpp/{path.name}": path.read_text(encoding="ascii") for path in sorted(CPP_SOURCES.iterdir())}


def _package_files(model: Model) -> dict[str, str]:
    """CMake and pkg-config files; they find everything from their own place."""
    served = {row.operation for row in model.rows}
    values = {"version": model.version, "soname": numbers.SONAME, "hosts": numbers.HOST_NAMES,
              "components": [operation.name for operation in model.operations if operation.enumerator in served]}
    texts = {f"lib/cmake/fmhaforge/{name}": from_template(f"{name}.j2", values)
             for name in ("fmhaforge-config.cmake", "fmhaforge-config-version.cmake")}
    for host in numbers.HOST_NAMES:
        texts[f"lib/{host}/pkgconfig/fmhaforge.pc"] = from_template("fmhaforge.pc.j2", {**values, "host": host})
    return texts


def _variant_values(variant: VariantC) -> dict[str, Any]:
    row = variant.row
    return {
        "row": row, "name": variant.name, "operation": variant.operation, "prefix": f"FMHAFORGE_{variant.name.upper()}",
        "sms": ", ".join(map(str, variant.sms)), "mask_enumerator": numbers.MASKS.by_word(row.mask).name,
        "dtype_enumerator": numbers.DTYPES.by_word(row.dtype).name,
        "seqlen_q_at_most": -1 if row.select is None else row.select.seqlen_q_at_most}


def _write_source(model: Model, sources: Sources, suffix: str) -> None:
    words = [{"name": name, "members": enum.members}
             for name, enum in (("operation", numbers.OPERATIONS), ("mask", numbers.MASKS), ("dtype", numbers.DTYPES))]
    write_source(sources.source, from_template("fmhaforge.c.j2", {
        "model": model, "status_members": numbers.STATUS.members, "words": words, "flags": numbers.FLAGS.members}))
    write_source(sources.source.parent / "ff_expr.h", _EXPRESSIONS)
    write_source(sources.source.parent / "ff_sentences.h", _SENTENCES)
    write_source(sources.source.parent / "ff_rows.h", from_template("ff_rows.h.j2", {"row_count": len(model.rows), "suffix": suffix}))
    write_table(sources.source.parent, model.rows)
    for part in sorted(C_SOURCES.iterdir()):
        shutil.copyfile(part, sources.source.parent / part.name)


def _embedded(row: Mapping[str, Any], bundle: Path) -> Embedded:
    label, path = f"{row['variant']} for SM {row['sm']}", bundle / row["cubin"]
    try:
        content = path.read_bytes()
    except OSError as error:
        raise RenderError(f"{label}: {path} can't be read ({error.strerror}); build the cubins first") from error
    if hashlib.sha256(content).hexdigest() != row["cubin_sha256"]:
        raise RenderError(f"{label}: {path} is not the cubin that the metadata describes (other sha256); build it again")
    return Embedded(content, row["registers"], row["static_smem_bytes"], row["symbol"])
