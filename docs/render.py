# SPDX-License-Identifier: Apache-2.0
"""Fills the generated parts of the pages: tables from the manifest and the operations' data, masks from their definition.

    .venv/bin/python docs/render.py            write what has changed
    .venv/bin/python docs/render.py --check    exit status 1 and the names of the pages that are out of date

A generated part stands between two comments; the first says what goes there: `<!-- generated: mask causal q_len=4 kv_len=7 -->` and
`<!-- end -->`. The parts are the functions in PARTS; words after the name are their arguments, `name=value` their options.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "runtime")]

from fmhaforge.layout import stride_arguments  # noqa: E402
from fmhaforge.names import public_name  # noqa: E402
from generator.arch import resolution_table  # noqa: E402
from generator.families import FAMILY_RULES  # noqa: E402
from generator.manifest import load  # noqa: E402
from generator.operations import OPERATIONS, Argument, Operation  # noqa: E402
from generator.plan import plan_for  # noqa: E402
from tests.device.reference import UNLIMITED, visible  # noqa: E402

MANIFEST = load(ROOT / "variants.yaml")

SEEN, UNSEEN, ABSENT = "#", ".", "-"
"""A key that the row sees; one that it does not see; a place that is never read."""

_PART = re.compile(r"(<!-- generated: (?P<words>[^>]+) -->\n).*?(<!-- end -->)", re.DOTALL)


class PartError(ValueError):
    """A generated part asks for something that does not exist; the message names it."""


def pages() -> list[Path]:
    """README.md and every page of docs/."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def render(text: str) -> str:
    """A page with its generated parts filled. Raises PartError."""
    return _PART.sub(lambda match: f"{match[1]}{_fill(match['words'].split())}\n{match[3]}", text)


def _fill(words: Sequence[str]) -> str:
    name, *rest = words
    if name not in PARTS:
        raise PartError(f"no generated part is named {name!r}; there are {', '.join(PARTS)}")
    options = dict(word.split("=", 1) for word in rest if "=" in word)
    return PARTS[name](*(word for word in rest if "=" not in word), **options)


# -- masks ------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Line:
    """One query row of a drawing: what stands before the cells, one cell for each key, and what becomes of the output row."""

    label: str
    cells: Sequence[str]
    note: str


def draw(lines: Sequence[Line]) -> str:
    """A fenced drawing with the numbers of the keys on top."""
    width = max(len(line.label) for line in lines)
    keys = max(len(line.cells) for line in lines)
    head = f"{'key'.rjust(width)} {''.join(f'{key:>3}' for key in range(keys))}   output row"
    body = (f"{line.label.ljust(width)} {''.join(f'{cell:>3}' for cell in line.cells).ljust(3 * keys)}   {line.note}" for line in lines)
    return "\n".join(["```text", head, *(line.rstrip() for line in body), "```"])


def mask(kind: str, q_len: str, kv_len: str, rows: str | None = None, keys: str | None = None, **options: str) -> str:
    """The mask of one sequence. `rows` and `keys` are the physical extents; see `_seen` for the options."""
    extents = int(rows or q_len), int(keys or kv_len)
    seen = _seen(kind, *extents, int(q_len), int(kv_len), **options)
    return draw([_line(f"q {row}", kind, seen[row], row, int(q_len), int(kv_len)) for row in range(extents[0])])


def packed(kind: str, q_lens: str, kv_lens: str, keys: str, **options: str) -> str:
    """The masks of a packed batch whose keys lie in pages: each sequence counts its keys from 0."""
    lines = []
    for index, (q_len, kv_len) in enumerate(zip(_numbers(q_lens), _numbers(kv_lens), strict=True)):
        seen = _seen(kind, q_len, int(keys), q_len, kv_len, **options)
        lines += [_line(f"row {len(lines) + row}: sequence {index}, q {row}", kind, seen[row], row, q_len, kv_len) for row in range(q_len)]
    return draw(lines)


def varlen(lens: str, total: str) -> str:
    """The mask of a packed batch whose keys are packed as its queries are; rows past the last sequence belong to none."""
    owners = [index for index, length in enumerate(_numbers(lens)) for _ in range(length)]
    owners += [None] * (int(total) - len(owners))
    lines = []
    for row, owner in enumerate(owners):
        cells = [ABSENT if None in (owner, other) else SEEN if other == owner else UNSEEN for other in owners]
        lines.append(Line(f"row {row}: {'no sequence' if owner is None else f'sequence {owner}'}", cells,
                          "not written" if owner is None else "attention"))
    return draw(lines)


def _line(label: str, kind: str, seen: Iterable[bool], row: int, q_len: int, kv_len: int) -> Line:
    cells = [SEEN if cell else UNSEEN if key < kv_len else ABSENT for key, cell in enumerate(seen)]
    if row >= q_len:
        return Line(label, [ABSENT] * len(cells), "zeros: past q_len")
    where = "" if kind == "padding" else f" at {row + kv_len - q_len}"
    return Line(label + where, cells, "attention" if SEEN in cells else "zeros: sees no key")


def _seen(kind: str, rows: int, keys: int, q_len: int, kv_len: int, window: str = str(UNLIMITED), blocks: str = ""):
    """bool [rows, keys] by the reference. `blocks=FIRST:LAST:BEGIN:END,...` gives rows FIRST .. LAST an interval, others none."""
    begin, end = numpy.full((2, rows, 1), -1)
    for block in filter(None, blocks.split(",")):
        first, last, low, high = map(int, block.split(":"))
        begin[first:last + 1], end[first:last + 1] = low, high
    return visible(kind, numpy.arange(rows)[:, None], numpy.arange(keys)[None, :], q_len, kv_len, int(window), begin, end)


def _numbers(text: str) -> list[int]:
    return [int(word) for word in text.split(",")]


# -- tables -----------------------------------------------------------------------------------------------------------------


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    return "\n".join(f"| {' | '.join(cells)} |".replace("| -- ", "|--") for cells in (head, ["--"] * len(head), *rows))


def overview() -> str:
    """One line for each operation and mask: what the default bundle holds."""
    kinds: dict[tuple[str, str], list] = {}
    for variant in MANIFEST.variants:
        if not variant.checked:
            kinds.setdefault((variant.operation, variant.mask), []).append(variant)
    order = list(OPERATIONS)
    lines = []
    for (operation, mask_name), variants in sorted(kinds.items(), key=lambda item: order.index(item[0][0])):
        head_dims = dict.fromkeys(str(variant.head_dim) for variant in sorted(variants, key=lambda variant: variant.head_dim))
        lines.append((f"[{operation}](docs/operations/{operation}.md)", mask_name, ", ".join(head_dims),
                      ", ".join(f"`{variant.name}`" for variant in variants)))
    return table(("operation", "mask", "head_dim", "variants"), lines)


def counts() -> str:
    """How much the default bundle holds."""
    rows = MANIFEST.rows()
    variants, sms = ({getattr(row, name) for row in rows} for name in ("variant", "sm"))
    return f"{len(variants)} variants x {len(sms)} SMs ({', '.join(map(str, sorted(sms)))}) = {len(rows)} rows, float16, in one bundle."


def variants(operation: str) -> str:
    """The variants of an operation: when each is selected, and its family and tile on each SM."""
    lines = []
    for variant in MANIFEST.variants:
        if variant.operation == operation and not variant.checked:
            lines.append((f"`{variant.name}`", variant.mask, str(variant.head_dim), _selected(variant), _kernels(variant)))
    return table(("variant", "mask", "head_dim", "selected when", "kernel: family, query rows x keys of a tile"), lines)


def _selected(variant) -> str:
    argument = OPERATIONS[variant.operation].seqlen_q_argument
    rule = variant.select
    if rule is None:
        others = any(other.select for other in MANIFEST.variants if _serve_alike(variant, other))
        return "otherwise" if others else "always"
    return f"{argument} <= {rule.seqlen_q_at_most}" + (f" and {rule.only_if}" if rule.only_if else "")


def _serve_alike(variant, other) -> bool:
    fields = ("operation", "head_dim", "mask", "dtype", "checked")
    return all(getattr(variant, field) == getattr(other, field) for field in fields)


def _kernels(variant) -> str:
    tiles: dict[str, list[int]] = {}
    for row in MANIFEST.rows(variants=[variant.name], checked=variant.checked):
        tiles.setdefault(f"{row.family.name} {row.tile.m} x {row.tile.n}", []).append(row.sm)
    if len(tiles) == 1:
        return next(iter(tiles))
    return "; ".join(f"{tile} on SM {_sms(sms)}" for tile, sms in tiles.items())


def checked(operation: str) -> str:
    """The checked variants of an operation."""
    names = [f"`{variant.name}`" for variant in MANIFEST.variants if variant.operation == operation and variant.checked]
    return ", ".join(names)


def tensors(operation: str) -> str:
    """The pointer arguments of an operation."""
    lines = [(_name(argument), argument.dtype or "", argument.shape or "",
              f"[{', '.join(_strides(argument))}]", f"{argument.alignment} bytes", argument.doc)
             for argument in OPERATIONS[operation].arguments if argument.type == "ptr"]
    return table(("tensor", "dtype", "shape", "strides in elements", "aligned to", "what it is"), lines)


def _name(argument: Argument) -> str:
    """The name in C, and that in Python where it is another one."""
    python = public_name(argument.name)
    return f"`{argument.name}`" + (f" (Python: `{python}`)" if python != argument.name else "")


def _shape(argument: Argument) -> list[str]:
    return (argument.shape or "").strip("[]").split(", ")


def _strides(argument: Argument) -> list[str]:
    """The argument that each stride is passed in, or the extents that it is the product of."""
    shape = _shape(argument)
    given = stride_arguments(argument.name, len(shape))
    return [f"`{name}`" if name else " x ".join(shape[axis + 1:]) or "1" for axis, name in enumerate(given)]


def scalars(operation: str) -> str:
    """The other arguments of an operation, strides together in the last line."""
    passed = [argument for argument in OPERATIONS[operation].arguments if argument.type != "ptr"]
    strides = _stride_names(OPERATIONS[operation])
    lines = [(_name(argument), argument.type, _limits(argument), argument.doc) for argument in passed if argument.name not in strides]
    lines.append(("strides", "i64", "0 .. 2^63 - 1; multiples of 8 for tensors of float16", "as in the table of tensors"))
    return table(("argument", "type", "values", "what it is"), lines)


def _stride_names(operation: Operation) -> set[str]:
    return {name for argument in operation.arguments if argument.type == "ptr"
            for name in stride_arguments(argument.name, len(_shape(argument))) if name}


def _limits(argument: Argument) -> str:
    if argument.type == "f32":
        return f"finite, > 0, at most {argument.maximum}"
    even = f", a multiple of {argument.multiple_of}" if argument.multiple_of > 1 else ""
    return f"{argument.minimum} .. {_power(argument.maximum)}{even}"


def _power(value: int | None) -> str:
    names = {(1 << 31) - 1: "2^31 - 1", 1 << 30: "2^30", 1 << 23: "2^23"}
    return names.get(value, str(value)) if value is not None else ""


def devices() -> str:
    """Which rows serve which device."""
    lines = [(str(device), ", ".join(map(str, rows))) for device, rows in resolution_table(MANIFEST.targets).items()]
    return table(("device", "runs rows of SM, best first"), lines)


def tiles(family: str) -> str:
    """The tiles of a family: what each costs, and the operations and SMs that it is for."""
    defaults = {field.name: field.default for field in FAMILY_RULES[family].fields}
    users: dict[tuple, tuple[dict, set]] = {}
    for row in MANIFEST.rows():
        if row.family.name == family:
            plan = plan_for(row)
            chosen = [f"{name}={value}" for name, value in row.tile.items() if name not in ("m", "n") and value != defaults[name]]
            key = row.variant.head_dim, row.tile.m, row.tile.n, ", ".join(chosen), plan.block[0], plan.smem_bytes
            operations, sms = users.setdefault(key, ({}, set()))
            operations[row.variant.operation] = None
            sms.add(row.sm)
    return table(("head_dim", "query rows x keys", "other fields", "threads", "shared memory", "operations", "SMs"), [
        (str(head_dim), f"{m} x {n}", chosen, str(threads), f"{smem_bytes:,}", ", ".join(operations), _sms(sms))
        for (head_dim, m, n, chosen, threads, smem_bytes), (operations, sms) in sorted(users.items(), key=lambda user: user[0])])


def _sms(sms: Iterable[int]) -> str:
    everywhere = {target.sm for target in MANIFEST.targets}
    return "all" if set(sms) == everywhere else ", ".join(map(str, sorted(sms)))


PARTS = {part.__name__: part for part in (mask, packed, varlen, overview, counts, variants, checked, tensors, scalars, devices, tiles)}


def main(arguments: Sequence[str]) -> int:
    """Renders every page; with `--check` only says which are out of date. Returns the exit status."""
    stale = []
    for path in pages():
        if not path.exists():
            continue
        text = path.read_text(encoding="utf-8")
        filled = render(text)
        if filled != text:
            stale.append(path)
            if "--check" not in arguments:
                path.write_text(filled, encoding="utf-8")
    for path in stale:
        print(path.relative_to(ROOT))
    return 1 if stale and "--check" in arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
