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

from generator.families import FAMILY_RULES, Tile, TileError
from generator.model import Manifest

SCHEMA_VERSION = 1
WIDTH = 140
"""Columns that an entry of the manifest is wrapped at."""


class TilesError(ValueError):
    """Candidates or measurements that cannot be used: the message names the place and the remedy."""


@dataclass(frozen=True)
class Candidates:
    """Tiles to compare per variant, for one SM and family. The order is that of the file."""

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
    rule = FAMILY_RULES[document["family"]]
    head_dims = {variant.name: variant.head_dim for variant in manifest.variants if not variant.checked}
    found: dict[str, tuple[Tile, ...]] = {}
    for number, entry in enumerate(document["candidates"]):
        where = f"{path}: candidates[{number}]"
        for pattern in entry["variants"]:
            names = [name for name in head_dims if fnmatchcase(name, pattern)]
            if not names:
                raise TilesError(f"{where}: {pattern!r} matches no variant; correct or remove it")
            for name in names:
                if name in found:
                    raise TilesError(f"{where}: {name} has candidates already; let only one entry match it")
                found[name] = tuple(_tile(rule, values, head_dims[name], where) for values in entry["tiles"])
    return Candidates(document["sm"], document["family"], found)


def _tile(rule, values: Mapping[str, int], head_dim: int, where: str) -> Tile:
    try:
        return rule.tile(values, head_dim)
    except TileError as error:
        raise TilesError(f"{where}: {error}") from None


def winners(records: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, int]]:
    """The best tile of each variant: highest geometric mean of TFLOP/s over the cases that all its tiles were measured in.

    :param records: {variant, case, tile, tflops} each
    :raises TilesError: when a variant's tiles have no case in common
    """
    speeds: dict[str, dict[tuple, dict[str, float]]] = {}
    for record in records:
        tile = tuple(sorted(record["tile"].items()))
        speeds.setdefault(record["variant"], {}).setdefault(tile, {})[record["case"]] = record["tflops"]
    best = {}
    for variant, tiles in speeds.items():
        cases = set.intersection(*(set(cases) for cases in tiles.values()))
        if not cases:
            raise TilesError(f"{variant}: no case was measured with every tile; measure again")
        best[variant] = dict(max(tiles, key=lambda tile: math.fsum(math.log(tiles[tile][case]) for case in cases)))
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
        kept = [_without(override, sm) for override in entry.pop("overrides", [])]
        entry["overrides"] = [{"sms": [sm], "family": family, "tile": dict(tile)}, *(override for override in kept if override["sms"])]
        text = text[:found.start()] + _flow(entry) + text[found.end():]
    return text


def _without(override: dict[str, Any], sm: int) -> dict[str, Any]:
    return {**override, "sms": [other for other in override["sms"] if other != sm]}


def _flow(entry: Mapping[str, Any]) -> str:
    """An entry as it stands in the manifest: flow style, wrapped between fields, one override a line."""
    overrides = entry["overrides"]
    fields = [f"{key}: {_value(value)}" for key, value in entry.items() if key != "overrides"]
    lines = ["  - {"]
    for number, field in enumerate(fields):
        piece = field + ","
        if len(lines[-1]) + len(piece) > WIDTH:
            lines.append("     ")
        lines[-1] += piece if lines[-1].endswith("{") or not lines[-1].strip() else " " + piece
    starts = ["     overrides: [", *["                 "] * (len(overrides) - 1)]
    ends = [","] * (len(overrides) - 1) + ["]}"]
    return "\n".join([*lines, *(start + _value(override) + end for start, override, end in zip(starts, overrides, ends))])


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_value(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_value, value)) + "]"
    return str(value).lower() if isinstance(value, bool) else str(value)
