# SPDX-License-Identifier: Apache-2.0
"""Writes the headers and the C source of a bundle."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2

import generator  # noqa: F401 - makes fmhaforge importable
from fmhaforge import metadata as bundle_metadata
from fmhaforge.errors import SchemaError
from generator import expr_c, operations
from generator.cabi import numbers
from generator.cabi.model import Model, VariantC, make_model

_HERE = Path(__file__).resolve().parent.parent
TEMPLATES = _HERE / "templates"
C_SOURCES = _HERE / "csrc"


_EXPRESSIONS = f"""/* SPDX-License-Identifier: Apache-2.0 */
/* The expressions of launch plans: 64-bit arithmetic that notices when a value does not fit. Generated; do not edit. */
{expr_c.HELPERS}"""


class RenderError(ValueError):
    """The C side can't be made from these inputs; the message names the place and the remedy."""


@dataclass(frozen=True)
class Sources:
    """What `render` wrote. `headers` are relative to `include`; `source` includes everything else in its folder."""

    root: Path
    version: str
    headers: tuple[str, ...]

    @property
    def include(self) -> Path:
        """The folder of the public headers."""
        return self.root / "include"

    @property
    def source(self) -> Path:
        """The C source of the whole library; compile it in its own folder."""
        return self.root / "src" / "fmhaforge.c"


def render(document: Mapping[str, Any], bundle: Path, out: Path) -> Sources:
    """Write `include/` and `src/` under `out`, which is made anew, and say what was written.

    `document` is the content of `metadata.json`; `bundle` is the folder that the rows' `cubin` paths start from. Raises RenderError
    when a cubin is missing or is not the one the metadata describes, or when the metadata can't be rendered.
    """
    try:
        metadata = bundle_metadata.parse(json.dumps(document).encode(), "metadata.json")
        model = make_model(metadata)
    except (SchemaError, KeyError, ValueError) as error:
        raise RenderError(f"metadata.json: {error.args[0] if isinstance(error, KeyError) else error}") from error
    if not metadata.rows:
        raise RenderError("metadata.json: rows is empty; a library needs at least one kernel")
    sources = Sources(out, metadata.version, ("fmhaforge.h", *(f"fmhaforge/{variant.name}.h" for variant in model.variants)))
    shutil.rmtree(out, ignore_errors=True)
    _write_headers(model, sources)
    _write_source(model, sources)
    _copy_cubins(metadata, bundle, sources.source.parent / "cubins")
    return sources


def _write_headers(model: Model, sources: Sources) -> None:
    common = {"version": model.version, "abi_version": numbers.ABI_VERSION, "enums": numbers.ENUMS, "flags": numbers.FLAGS.members,
              "operations": model.operations, "no_window": operations.NO_WINDOW}
    _write(sources.include / "fmhaforge.h", "fmhaforge.h.j2", common)
    for variant in model.variants:
        _write(sources.include / "fmhaforge" / f"{variant.name}.h", "variant.h.j2", _variant_values(variant))


def _variant_values(variant: VariantC) -> dict[str, Any]:
    row = variant.row
    return {
        "row": row, "name": variant.name, "operation": variant.operation, "prefix": f"FMHAFORGE_{variant.name.upper()}",
        "sms": ", ".join(map(str, variant.sms)), "mask_enumerator": numbers.MASKS.by_word(row.mask).name,
        "dtype_enumerator": numbers.DTYPES.by_word(row.dtype).name,
        "seqlen_q_at_most": -1 if row.select is None else row.select.seqlen_q_at_most}


def _write_source(model: Model, sources: Sources) -> None:
    words = [{"name": name, "members": enum.members}
             for name, enum in (("operation", numbers.OPERATIONS), ("mask", numbers.MASKS), ("dtype", numbers.DTYPES))]
    _write(sources.source, "fmhaforge.c.j2", {
        "model": model, "status_members": numbers.STATUS.members, "words": words, "flags": numbers.FLAGS.members})
    (sources.source.parent / "ff_expr.h").write_text(_EXPRESSIONS, encoding="ascii")
    for part in sorted(C_SOURCES.iterdir()):
        shutil.copyfile(part, sources.source.parent / part.name)


def _copy_cubins(metadata: bundle_metadata.Metadata, bundle: Path, out: Path) -> None:
    out.mkdir()
    for row in metadata.rows:
        target = out / f"{row.cubin_sha256}.cubin"
        if target.exists():
            continue
        path = bundle / row.cubin
        try:
            content = path.read_bytes()
        except OSError as error:
            raise RenderError(f"{row.label}: {path} can't be read ({error.strerror}); build the cubins first") from error
        if hashlib.sha256(content).hexdigest() != row.cubin_sha256:
            raise RenderError(f"{row.label}: {path} is not the cubin that the metadata describes (other sha256); build it again")
        target.write_bytes(content)


def _write(path: Path, template: str, values: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(_environment().get_template(template).render(values), encoding="ascii", newline="\n")


def _environment() -> jinja2.Environment:
    return jinja2.Environment(loader=jinja2.FileSystemLoader(TEMPLATES), undefined=jinja2.StrictUndefined, trim_blocks=True,
                              lstrip_blocks=True, keep_trailing_newline=True, autoescape=False)
