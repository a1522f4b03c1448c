# SPDX-License-Identifier: Apache-2.0
"""What two bundles differ in, in words: rows, what changed in a row, tools, other files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from .bundle import METADATA, Bundle

KINDS = ("added", "removed", "changed")


@dataclass(frozen=True)
class Difference:
    """One difference. `place` is a dotted name such as `fmha_v2_d64 sm_90.plan.smem_bytes`; `old` and `new` are its values."""

    kind: str
    place: str
    old: Any = None
    new: Any = None

    def __str__(self) -> str:
        if self.kind == "changed":
            return f"{self.place}: {self.old!r} -> {self.new!r}"
        return f"{self.place}: {self.kind}"


def diff(old: Bundle, new: Bundle) -> tuple[Difference, ...]:
    """The differences from `old` to `new`; empty when the bundles are equal byte for byte."""
    found = (*_values("", _rest(old), _rest(new)), *_values("", _rows(old), _rows(new)), *_files(old, new))
    digests = old.checksums.get(METADATA), new.checksums.get(METADATA)
    if not found and digests[0] != digests[1]:  # what no row shows, such as a variant that was built for no SM
        return (Difference("changed", f"file {METADATA}", *digests),)
    return found


def _rest(bundle: Bundle) -> dict[str, Any]:
    return {key: value for key, value in bundle.metadata.raw.items() if key not in ("rows", "variants")}


def _rows(bundle: Bundle) -> dict[str, Any]:
    return {f"{row.variant} sm_{row.sm}": row.raw for row in bundle.metadata.rows}


def _values(place: str, old: object, new: object) -> Iterator[Difference]:
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in [*old, *(key for key in new if key not in old)]:
            name = f"{place}.{key}" if place else str(key)
            if key not in new:
                yield Difference("removed", name, old[key])
            elif key not in old:
                yield Difference("added", name, None, new[key])
            else:
                yield from _values(name, old[key], new[key])
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for index, pair in enumerate(zip(old, new)):
            yield from _values(f"{place}[{index}]", *pair)
    elif old != new:
        yield Difference("changed", place, old, new)


def _files(old: Bundle, new: Bundle) -> Iterator[Difference]:
    """Files that the rows do not already speak of."""
    named = {name for bundle in (old, new) for row in bundle.metadata.rows for name in (row.cubin, row.ptx)} | {METADATA}
    for difference in _values("", old.checksums, new.checksums):
        if difference.place not in named:
            yield replace(difference, place=f"file {difference.place}")
