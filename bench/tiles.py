# SPDX-License-Identifier: Apache-2.0
"""Candidate tiles, the best of them by measurement, and a manifest's text with other tiles in it."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import yaml

from bench.errors import BenchError
from generator.families import FAMILY_RULES, Tile, TileError
from generator.model import Manifest, Variant

SCHEMA_VERSION = 1
BASE = "base"
"""In a file of candidates: the tile that the variant has where no override says otherwise."""

MARGIN = 1.01
"""A tile replaces the manifest's only if it is faster by more than this factor: less may be chance, and every change costs a validation."""

_OVERRIDES = "overrides: ["


class TilesError(BenchError):
    """Candidates or measurements that cannot be used: the message names the place and the remedy."""


@dataclass(frozen=True)
class Candidates:
    """Tiles to compare per variant, for one SM and family: the manifest's own first, if it has one of that family, then those of the file.

    A variant that has nothing but the manifest's own is left out.
    """

    sm: int
    family: str
    tiles: Mapping[str, tuple[Tile, ...]]

    @property
    def rounds(self) -> int:
        """Bundles needed for every candidate to be in one."""
        return max(map(len, self.tiles.values()), default=0)

    def of_round(self, number: int) -> dict[str, Tile]:
        """The candidate of each variant that has that many."""
        return {name: tiles[number] for name, tiles in self.tiles.items() if number < len(tiles)}


def read_candidates(path: Path, manifest: Manifest) -> Candidates:
    """The candidates in a file. Raises TilesError when a pattern matches no variant or two, or a tile is refused."""
    document = yaml.safe_load(path.read_text(encoding="utf-8"))
    if document.get("schema_version") != SCHEMA_VERSION:
        raise TilesError(f"{path}: schema_version is {document.get('schema_version')!r}, this reads {SCHEMA_VERSION}")
    sm, family = document["sm"], document["family"]
    variants = {variant.name: variant for variant in manifest.variants if not variant.checked}
    own = present(manifest, sm, family)
    found: dict[str, tuple[Tile, ...]] = {}
    for number, entry in enumerate(document["candidates"]):
        where = f"{path}: candidates[{number}]"
        for pattern in entry["variants"]:
            names = [name for name in variants if fnmatchcase(name, pattern)]
            if not names:
                raise TilesError(f"{where}: {pattern!r} matches no variant; correct or remove it")
            for name in names:
                if name in found:
                    raise TilesError(f"{where}: {name} has candidates already; let only one entry match it")
                listed = (_tile(family, values, variants[name], where) for values in entry["tiles"])
                found[name] = tuple(dict.fromkeys((*([own[name]] if name in own else []), *listed)))
    return Candidates(sm, family, {name: tiles for name, tiles in found.items() if tiles != (own.get(name),)})


def present(manifest: Manifest, sm: int, family: str) -> dict[str, Tile]:
    """The manifest's tiles for an SM, of the variants that it builds with that family there."""
    return {row.variant.name: row.tile for row in manifest.rows(sms=[sm]) if row.family.name == family}


def _tile(family: str, values: Mapping[str, int] | str, variant: Variant, where: str) -> Tile:
    if values == BASE:
        if variant.family.name != family:
            raise TilesError(f"{where}: the base tile of {variant.name} is of family {variant.family.name}, not {family}; give a tile instead")
        return variant.tile
    try:
        return FAMILY_RULES[family].tile(values, variant.head_dim)
    except TileError as error:
        raise TilesError(f"{where}: {error}") from None


def winners(records: Iterable[Mapping[str, Any]], own: Mapping[str, Mapping[str, int]]) -> dict[str, dict[str, int]]:
    """The best tile of each variant: highest geometric mean of TFLOP/s over the cases that all its tiles were measured in.

    The manifest's own tile stays unless another is better by MARGIN.

    :param records: {variant, case, tile, tflops} each
    :param own: the manifest's tiles (`present`); may lack variants
    :raises TilesError: when a variant's tiles have no case in common, or its own tile was not measured
    """
    measured: dict[str, dict[frozenset, dict[str, float]]] = {}
    written = {}
    for record in records:
        tile = frozenset(record["tile"].items())
        written[tile] = dict(record["tile"])
        measured.setdefault(record["variant"], {}).setdefault(tile, {})[record["case"]] = record["tflops"]
    best = {}
    for variant, tiles in measured.items():
        cases = set.intersection(*(set(cases) for cases in tiles.values()))
        if not cases:
            raise TilesError(f"{variant}: no case was measured with every tile; measure again")
        means = {tile: math.fsum(math.log(speeds[case]) for case in cases) / len(cases) for tile, speeds in tiles.items()}
        if variant in own:
            kept = frozenset(own[variant].items())
            if kept not in means:
                raise TilesError(f"{variant}: the manifest's tile {dict(own[variant])} was not measured; build and measure again")
            means[kept] += math.log(MARGIN)
        best[variant] = written[max(means, key=means.__getitem__)]
    return best


def with_tiles(text: str, sm: int, family: str, tiles: Mapping[str, Mapping[str, int]]) -> str:
    """The text of a manifest in which the named variants are built with that family and tile for `sm`; all else stays, comments too.

    :raises TilesError: when a variant has no entry of its own that starts a line
    """
    for name, tile in tiles.items():
        found = re.search(rf"^  - \{{name: {re.escape(name)},.*?\}}$(?=\n(?:  - |\n|  #|\Z))", text, re.MULTILINE | re.DOTALL)
        if found is None:
            raise TilesError(f"the manifest has no entry for {name} of the form '  - {{name: {name}, ...}}'")
        entry = yaml.safe_load(found.group(0))[0]
        before = entry.get("overrides", [])
        others = [_without(override, sm) for override in before]
        overrides = [{"sms": [sm], "family": family, "tile": _written(tile, family, before)}, *(other for other in others if other["sms"])]
        fields = re.sub(rf",\s*{re.escape(_OVERRIDES)}.*", "", found.group(0).removesuffix("}"), flags=re.DOTALL)
        text = text[:found.start()] + f"{fields},\n{_lines(overrides)}" + text[found.end():]
    return text


def _without(override: dict[str, Any], sm: int) -> dict[str, Any]:
    return {**override, "sms": [other for other in override["sms"] if other != sm]}


def _written(tile: Mapping[str, int], family: str, before: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """A tile without the fields that have their default, unless the manifest writes them in the variant's tile of that family."""
    named = {field for override in before if override.get("family") == family for field in override.get("tile", ())}
    return {field: value for field, value in tile.items() if field in named or value != FAMILY_RULES[family].field(field).default}


def _lines(overrides: Iterable[Mapping[str, Any]]) -> str:
    """The end of an entry as it stands in the manifest: one override a line."""
    return f"     {_OVERRIDES}" + f",\n{' ' * (5 + len(_OVERRIDES))}".join(map(_value, overrides)) + "]}"


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_value(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_value, value)) + "]"
    return str(value).lower() if isinstance(value, bool) else str(value)
