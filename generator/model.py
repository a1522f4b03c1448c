# SPDX-License-Identifier: Apache-2.0
"""What a manifest says, as frozen dataclasses: families, targets, variants, and the rows they expand to.

Places in the file (`mark`) take no part in comparison or hashing, so moving a line in the manifest changes no row.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any

from generator.families import FAMILY_RULES, Tile
from generator.strict_yaml import Mark


class RowsError(ValueError):
    """A request for rows that the manifest can't meet, with what exists in the message."""


@dataclass(frozen=True)
class Family:
    """A kernel family: what its PTX is traced for. An exact family (`sm_90a`) runs on that SM only."""

    name: str
    ptx_target: str
    exact: bool

    @property
    def ptx_sm(self) -> int:
        """The SM number of the PTX target: 90 for `sm_90a`."""
        return int(self.ptx_target.removeprefix("sm_").rstrip("a"))

    def to_json(self) -> dict[str, Any]:
        """The fields of the manifest as plain JSON values."""
        return {"exact": self.exact, "ptx_target": self.ptx_target}


@dataclass(frozen=True)
class Target:
    """An SM that is built for. `smem_limit`: bytes of shared memory that a block may opt in to."""

    sm: int
    assembler: str
    platform: str
    smem_limit: int
    same_part: int | None = None

    def to_json(self) -> dict[str, Any]:
        """The fields of the manifest as plain JSON values."""
        return {"assembler": self.assembler, "platform": self.platform, "same_part": self.same_part, "sm": self.sm,
                "smem_limit": self.smem_limit}


@dataclass(frozen=True)
class Select:
    """When a variant goes before the one without a rule: `seqlen_q` is at most this, and the flag (if any) is true."""

    seqlen_q_at_most: int
    only_if: str | None = None

    def to_json(self) -> dict[str, Any]:
        """The fields of the manifest as plain JSON values."""
        return {"only_if": self.only_if, "seqlen_q_at_most": self.seqlen_q_at_most}


@dataclass(frozen=True)
class Build:
    """How a variant is built for some SMs: the family and the tile."""

    family: Family
    tile: Tile
    mark: Mark = field(compare=False, repr=False)

    def to_json(self) -> dict[str, Any]:
        """The family's name and the complete tile as plain JSON values."""
        return {"family": self.family.name, "tile": dict(self.tile)}


@dataclass(frozen=True)
class Override:
    """Another family or tile for some of a variant's SMs."""

    sms: tuple[int, ...]
    build: Build

    def to_json(self) -> dict[str, Any]:
        """The fields of the manifest as plain JSON values."""
        return {"sms": list(self.sms), **self.build.to_json()}


@dataclass(frozen=True)
class Variant:
    """One entry of the manifest: a kernel of the bundle, under the name that callers know it by."""

    name: str
    operation: str
    head_dim: int
    mask: str
    kv_layout: str
    dtype: str
    abi_class: str
    build: Build
    sms: tuple[int, ...]
    select: Select | None = None
    overrides: tuple[Override, ...] = ()
    checked: bool = False
    mark: Mark = field(compare=False, repr=False, default=Mark("", 0, 0))

    @property
    def family(self) -> Family:
        """The family where no override says otherwise."""
        return self.build.family

    @property
    def tile(self) -> Tile:
        """The tile where no override says otherwise."""
        return self.build.tile

    def build_for(self, sm: int) -> Build:
        """Family and tile for one SM."""
        for override in self.overrides:
            if sm in override.sms:
                return override.build
        return self.build

    def selection_key(self) -> tuple[str, int, str, str, bool]:
        """What a query asks for; variants with equal keys are told apart by their selection rules."""
        return self.operation, self.head_dim, self.mask, self.dtype, self.checked

    def to_json(self) -> dict[str, Any]:
        """The fields of the manifest as plain JSON values, tiles complete and SM sets written out."""
        return {
            "abi_class": self.abi_class,
            "checked": self.checked,
            "dtype": self.dtype,
            "head_dim": self.head_dim,
            "kv_layout": self.kv_layout,
            "mask": self.mask,
            "name": self.name,
            "operation": self.operation,
            "overrides": [override.to_json() for override in self.overrides],
            "select": self.select.to_json() if self.select else None,
            "sms": list(self.sms),
            **self.build.to_json(),
        }


@dataclass(frozen=True)
class KernelSpec:
    """What is traced once: everything that PTX depends on. Rows with equal specs share their PTX."""

    family: str
    operation: str
    head_dim: int
    mask: str
    kv_layout: str
    dtype: str
    tile: Tile
    checked: bool
    ptx_target: str

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values, for worker processes."""
        return {
            "checked": self.checked,
            "dtype": self.dtype,
            "family": self.family,
            "head_dim": self.head_dim,
            "kv_layout": self.kv_layout,
            "mask": self.mask,
            "operation": self.operation,
            "ptx_target": self.ptx_target,
            "tile": dict(self.tile),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "KernelSpec":
        """The inverse of `to_json`; the tile is validated again (TileError)."""
        tile = FAMILY_RULES[value["family"]].tile(value["tile"], value["head_dim"])
        return cls(**{**value, "tile": tile})

    def key(self) -> str:
        """A stable short string for file names: readable fields and a hash of all of them."""
        digest = hashlib.sha256(json.dumps(self.to_json(), sort_keys=True).encode()).hexdigest()
        return f"{self.family}-{self.operation}-d{self.head_dim}-{self.mask}-{digest[:12]}"


@dataclass(frozen=True)
class Row:
    """A variant for one SM, fully resolved. Everything downstream is made from rows."""

    variant: Variant
    target: Target

    @cached_property
    def build(self) -> Build:
        """Family, tile and the place that says so."""
        return self.variant.build_for(self.target.sm)

    @property
    def family(self) -> Family:
        """The family that this row is built from."""
        return self.build.family

    @property
    def tile(self) -> Tile:
        """The tile of this row."""
        return self.build.tile

    @property
    def sm(self) -> int:
        """The SM number of the target."""
        return self.target.sm

    @property
    def cubin_arch(self) -> str:
        """What the assembler is told: `sm_90`, or `sm_90a` for an exact family."""
        return self.family.ptx_target if self.family.exact else f"sm_{self.sm}"

    @cached_property
    def spec(self) -> KernelSpec:
        """The kernel that this row is assembled from."""
        variant = self.variant
        return KernelSpec(self.family.name, variant.operation, variant.head_dim, variant.mask, variant.kv_layout, variant.dtype,
                          self.tile, variant.checked, self.family.ptx_target)

    @property
    def kernel_key(self) -> tuple:
        """The fields of `spec` as a tuple."""
        spec = self.spec
        return (spec.family, spec.operation, spec.head_dim, spec.mask, spec.kv_layout, spec.dtype, spec.tile, spec.checked,
                spec.ptx_target)


@dataclass(frozen=True)
class Manifest:
    """All that `variants.yaml` says. Immutable; equal when the contents are equal, wherever the lines stand."""

    path: str = field(compare=False)
    families: tuple[Family, ...]
    targets: tuple[Target, ...]
    variants: tuple[Variant, ...]

    def target(self, sm: int) -> Target:
        """The target for an SM. Raises RowsError listing the targets."""
        for target in self.targets:
            if target.sm == sm:
                return target
        raise RowsError(f"SM {sm} is no target of {self.path}; targets are {_listed(t.sm for t in self.targets)}")

    def variant(self, name: str) -> Variant:
        """The variant called `name`. Raises RowsError listing the variants."""
        for variant in self.variants:
            if variant.name == name:
                return variant
        raise RowsError(f"no variant {name!r} in {self.path}; variants are {_listed(v.name for v in self.variants)}")

    def rows(self, sms: Iterable[int | str] | None = None, variants: Iterable[str] | None = None,
             checked: bool = False) -> tuple[Row, ...]:
        """The rows, sorted by variant (order of the manifest) and SM.

        `sms`: SM numbers (default: all). `variants`: patterns of `fnmatch` for names (default: all). Variants with
        `checked: true` are left out unless `checked`. Raises RowsError when an SM is no target, a pattern matches nothing, a
        list is empty, or no row is left.
        """
        wanted_sms = {target.sm for target in self.targets} if sms is None else self._wanted_sms(sms)
        names = {v.name for v in self.variants if checked or not v.checked}
        if variants is not None:
            names = self._wanted_names(variants, names)
        rows = tuple(Row(variant, self.target(sm)) for variant in self.variants if variant.name in names
                     for sm in variant.sms if sm in wanted_sms)
        if not rows:
            raise RowsError(f"no variant of {_listed(sorted(names))} is built for SM {_listed(sorted(wanted_sms))}; "
                            "widen the SM list or the patterns")
        return rows

    def _wanted_sms(self, sms: Iterable[int | str]) -> set[int]:
        wanted = {self.target(_sm_number(sm)).sm for sm in sms}
        if not wanted:
            raise RowsError(f"the list of SMs is empty; targets are {_listed(t.sm for t in self.targets)}")
        return wanted

    def _wanted_names(self, patterns: Iterable[str], available: set[str]) -> set[str]:
        patterns = (patterns,) if isinstance(patterns, str) else tuple(patterns)
        if not patterns:
            raise RowsError(f"the list of variants is empty; variants are {_listed(v.name for v in self.variants)}")
        wanted: set[str] = set()
        for pattern in patterns:
            matches = {name for name in available if fnmatchcase(name, pattern)}
            if not matches:
                raise self._no_match(pattern)
            wanted |= matches
        return wanted

    def _no_match(self, pattern: str) -> RowsError:
        if any(fnmatchcase(variant.name, pattern) for variant in self.variants):
            return RowsError(f"pattern {pattern!r} matches checked variants only; ask for checked variants too")
        return RowsError(f"pattern {pattern!r} matches no variant; variants are {_listed(v.name for v in self.variants)}")


def _sm_number(sm: int | str) -> int:
    text = str(sm).strip()
    if isinstance(sm, bool) or not text.isascii() or not text.isdigit():
        raise RowsError(f"{sm!r} is not an SM number; write it like 90 or 121")
    return int(text)


def _listed(values: Iterable[Any]) -> str:
    return ", ".join(map(str, values))
