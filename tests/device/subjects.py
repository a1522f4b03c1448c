# SPDX-License-Identifier: Apache-2.0
"""What is tested: the rows of a bundle's metadata that serve one SM, with the facts that shape their cases."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from fmhaforge.query import ROUTE_CUBIN, ROUTE_PTX, ROUTES

CASES_PER_GROUP = 300
"""Fewest random cases per group: (operation, head_dim) for `llm`, the operation for the others; checked kernels are groups of their own."""

CASES_PER_VARIANT = 150
"""Fewest random cases per variant."""


@dataclass(frozen=True)
class Subject:
    """One row under test. `seqlen_q_min`/`seqlen_q_max` (None = no bound) are the lengths for which the selection rules
    choose this variant, given `use_small_d64`. `routes` are the ways in which its kernel can reach the device under test. A
    `checked` kernel verifies page ids and lengths on the device, and its runner waits for its report."""

    variant: str
    operation: str
    head_dim: int
    mask: str
    family: str
    sm: int
    tile_m: int
    tile_n: int
    ptx_sha256: str
    routes: tuple[str, ...] = ROUTES
    seqlen_q_min: int = 1
    seqlen_q_max: int | None = None
    use_small_d64: bool = True
    checked: bool = False

    @property
    def name(self) -> str:
        """The variant, with its SM where that is not the device's."""
        return self.variant if ROUTE_CUBIN in self.routes else f"{self.variant}-sm{self.sm}"

    @property
    def sliding(self) -> bool:
        """Whether the launch takes a window."""
        return self.mask in ("sliding_causal", "vision_block")

    @property
    def paged(self) -> bool:
        """Whether K and V come from a page pool."""
        return self.operation in ("paged", "paged_ragged")

    @property
    def packed(self) -> bool:
        """Whether Q and O are packed [total, heads, head_dim]."""
        return self.operation in ("paged_ragged", "vit")

    @property
    def own_q_lengths(self) -> bool:
        """Whether each sequence has its own number of queries."""
        return self.operation in ("paged", "paged_ragged", "padding", "vit")


def read_metadata(bundle: Path | str) -> dict:
    """The metadata of the bundle in folder `bundle`."""
    return json.loads((Path(bundle) / "metadata.json").read_text(encoding="utf-8"))


def subjects(metadata: Mapping, sm: int, variant: str = "*", family: str = "*") -> tuple[Subject, ...]:
    """What a device of `sm` can test, in the metadata's order, where variant and family match the glob patterns.

    First the rows for exactly that SM, then, for PTX that only other SMs' rows hold, the first such row by way of the driver.
    """
    exact = {name for name, rules in metadata["families"].items() if rules["exact"]}
    own = [row for row in metadata["rows"] if row["sm"] == sm]
    found = [_subject(row, metadata["rows"], (ROUTE_CUBIN,) if row["family"] in exact else ROUTES) for row in own]
    seen = {row["ptx_sha256"] for row in own}
    for row in metadata["rows"]:
        if row["ptx_sha256"] not in seen and row["family"] not in exact and _ptx_sm(row) <= sm:
            seen.add(row["ptx_sha256"])
            found.append(_subject(row, metadata["rows"], (ROUTE_PTX,)))
    return tuple(one for one in found if fnmatchcase(one.variant, variant) and fnmatchcase(one.family, family))


def case_count(subject: Subject, everyone: Iterable[Subject]) -> int:
    """How many random cases `subject` gets, so that its variant and its group both reach their minimum."""
    peers = sum(_group(other) == _group(subject) and other.sm == subject.sm for other in everyone)
    return max(CASES_PER_VARIANT, -(-CASES_PER_GROUP // max(peers, 1)))


def _group(subject: Subject) -> tuple:
    return (subject.operation, subject.checked, subject.head_dim if subject.operation == "llm" else None)


def _ptx_sm(row: Mapping) -> int:
    return int(row["ptx_target"].removeprefix("sm_"))


def _subject(row: Mapping, rows: Iterable[Mapping], routes: tuple[str, ...]) -> Subject:
    low, high, flag = _selection(row, rows)
    return Subject(
        variant=row["variant"], operation=row["operation"], head_dim=row["head_dim"], mask=row["mask"], family=row["family"],
        sm=row["sm"], tile_m=row["tile"]["m"], tile_n=row["tile"]["n"], ptx_sha256=row["ptx_sha256"], routes=routes,
        seqlen_q_min=low, seqlen_q_max=high, use_small_d64=flag, checked=row["checked"],
    )


def _selection(row: Mapping, rows: Iterable[Mapping]) -> tuple[int, int | None, bool]:
    """The range of seqlen_q in which `row` is chosen among `rows`, and the flag to go with it."""
    if row["select"]:
        return 1, row["select"]["seqlen_q_at_most"], True
    fields = ("operation", "head_dim", "mask", "dtype", "checked", "sm")
    rules = [other["select"] for other in rows if other["select"] and all(other[field] == row[field] for field in fields)]
    unconditional = [rule["seqlen_q_at_most"] for rule in rules if not rule.get("only_if")]
    return max(unconditional, default=0) + 1, None, len(unconditional) == len(rules)
