# SPDX-License-Identifier: Apache-2.0
"""What a tile of each kernel family is made of, as data: fields, defaults, allowed values and the relations between them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import generator  # noqa: F401 - makes fmhaforge importable
from fmhaforge.checks import Check


class TileError(ValueError):
    """A tile that its family refuses. `field` is the field at fault (None for the whole tile), `remedy` what to do."""

    def __init__(self, field: str | None, reason: str, remedy: str):
        super().__init__(field, reason, remedy)
        self.field = field
        self.reason = reason
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.reason}. {self.remedy}"


class Tile(Mapping):
    """Immutable tile of a kernel: field -> integer in the order of its family, also by attribute (`tile.m`).

    Made by `FamilyRule.tile`, so every field of the family is there and valid. Hashable, comparable and picklable.
    """

    __slots__ = ("_items",)

    def __init__(self, items: Mapping[str, int]):
        object.__setattr__(self, "_items", dict(items))

    def __getitem__(self, key: str) -> int:
        return self._items[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __getattr__(self, name: str) -> int:
        if name.startswith("_"):
            raise AttributeError(name)
        try:
            return self._items[name]
        except KeyError:
            raise AttributeError(f"tile has no field {name!r}; it has {', '.join(self._items)}") from None

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"a tile can't be changed (tried to set {name!r})")

    def __hash__(self) -> int:
        return hash(tuple(sorted(self._items.items())))

    def __reduce__(self) -> tuple:
        return Tile, (dict(self._items),)

    def __repr__(self) -> str:
        return f"Tile({self})"

    def __str__(self) -> str:
        return ", ".join(f"{name}={value}" for name, value in self._items.items())


@dataclass(frozen=True)
class TileField:
    """A field of a tile: its allowed values and its default (None: it must be given)."""

    name: str
    allowed: tuple[int, ...]
    doc: str
    default: int | None = None


@dataclass(frozen=True)
class FamilyRule:
    """What a tile of a family may be. `checks` may use the fields and `head_dim`."""

    name: str
    fields: tuple[TileField, ...]
    checks: tuple[Check, ...] = ()

    def field(self, name: str) -> TileField:
        """The field called `name`; TileError when there is none."""
        for field in self.fields:
            if field.name == name:
                return field
        known = ", ".join(field.name for field in self.fields)
        raise TileError(name, f"a tile of family {self.name} has no field {name!r}", f"Its fields are {known}")

    def tile(self, values: Mapping[str, int], head_dim: int) -> Tile:
        """The complete tile made of `values` and the defaults. Raises TileError naming the field at fault."""
        for name, value in values.items():
            self._check_value(self.field(name), value)
        tile = {field.name: self._value(field, values) for field in self.fields}
        for check in self.checks:
            failure = check.failure({**tile, "head_dim": head_dim})
            if failure:
                raise TileError(None, f"tile of family {self.name}: {failure}", "Change one of the fields named")
        return Tile(tile)

    def _check_value(self, field: TileField, value: int) -> None:
        if type(value) is not int or value not in field.allowed:
            raise TileError(field.name, f"{field.name} is {value!r}, which family {self.name} does not take",
                            f"Allowed: {', '.join(map(str, field.allowed))}")

    def _value(self, field: TileField, values: Mapping[str, int]) -> int:
        if field.name in values:
            return values[field.name]
        if field.default is None:
            raise TileError(None, f"a tile of family {self.name} needs the field {field.name!r}",
                            f"Give one of {', '.join(map(str, field.allowed))}")
        return field.default


def _steps(first: int, last: int, step: int) -> tuple[int, ...]:
    return tuple(range(first, last + 1, step))


AMPERE = FamilyRule(
    "ampere",
    (
        TileField("m", _steps(16, 256, 16), "query rows of a block"),
        TileField("n", _steps(16, 256, 16), "keys of a step"),
        TileField("warps", (1, 2, 4, 8, 16), "warps of a block"),
        TileField("column_groups", (1, 2, 4), "groups of warps that share the output's columns", default=1),
        TileField("softmax_first", (0, 1), "make the probabilities before the next K is asked for, not while it comes", default=0),
        TileField("shared_sums", (0, 1), "keep the softmax row sums in shared memory, where registers are short", default=0),
    ),
    (
        Check("warps_split", "multiple", "warps", "column_groups", "warps must be a multiple of column_groups"),
        Check("rows_per_warp", "multiple", "m * column_groups", "16 * warps",
              "each warp of a column group takes a multiple of 16 rows, so m must be a multiple of 16 x warps / column_groups"),
        Check("exchange_needs_k", "at_most", "min(column_groups, 2) - 1", "softmax_first",
              "column groups exchange probabilities through the K tile, so softmax_first must be 1"),
        Check("columns_split", "multiple", "head_dim", "8 * column_groups",
              "each column group takes a multiple of 8 output columns"),
    ),
)

HOPPER = FamilyRule(
    "hopper",
    (
        TileField("m", _steps(64, 256, 64), "query rows of a block, over all consumers"),
        TileField("n", _steps(16, 256, 16), "keys of a step"),
        TileField("consumers", (1, 2, 3), "consumer warpgroups"),
        TileField("stages", (1, 2, 3, 4), "K/V tiles in flight", default=2),
        TileField("producer_registers", _steps(24, 128, 8), "registers of a producer thread", default=24),
        TileField("consumer_registers", _steps(24, 256, 8), "registers of a consumer thread", default=240),
        TileField("columns", (1, 2), "consumers that share their rows and split the output's columns", default=1),
        TileField("blocks_per_sm", (1, 2, 3, 4), "blocks that an SM holds at once: more hide the start and the end of short query tiles", default=1),
        TileField("q_stages", (1, 2), "query tiles in shared memory: with 2, the next one's first scores are computed with this one's last values", default=1),
    ),
    (
        # A warpgroup waits for registers that others give back: what they have together is what the block gets at launch, 65,536
        # over all threads, rounded down to a multiple of 8 a thread. More would be waited for without end.
        Check("register_file", "at_most", "producer_registers + consumers * consumer_registers",
              "8 * (1 + consumers) * ceil_div(65537 - 1024 * blocks_per_sm * (1 + consumers), 1024 * blocks_per_sm * (1 + consumers))",
              "the warpgroups must not want more registers than the block has at launch: 504 for 1 + 2 of them, 512 for 1 + 3, half of that "
              "with two blocks per SM"),
        Check("ring_holds_a_step", "multiple", "2", "stages * (columns - 1) + (2 - columns)", "with columns 2 the ring holds the two tiles of a "
              "step, so stages must be 2"),
        Check("one_q_for_shared_rows", "at_most", "q_stages * columns", "2", "consumers that share their rows have one Q buffer: q_stages must be 1 "
              "with columns 2"),
        Check("rows_split", "multiple", "64 * consumers", "m * columns", "each group of `columns` consumers takes 64 rows, so m must be "
              "64 x consumers / columns"),
        Check("rows_covered", "multiple", "m * columns", "64 * consumers", "each group of `columns` consumers takes 64 rows, so m must be "
              "64 x consumers / columns"),
    ),
)

FAMILY_RULES: dict[str, FamilyRule] = {rule.name: rule for rule in (AMPERE, HOPPER)}
"""Every family that kernels exist for, by name."""
