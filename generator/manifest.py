# SPDX-License-Identifier: Apache-2.0
"""Reads `variants.yaml` (schema version 1) into the dataclasses of `generator.model`. docs/manifest.md explains every field.

Imports neither cutlass, CUDA nor SCons.
"""

from __future__ import annotations

import re
from collections.abc import Mapping as AbstractMapping
from dataclasses import dataclass
from pathlib import Path

from generator import fields, strict_yaml
from generator.families import FAMILY_RULES, Tile, TileError
from generator.fields import Fields
from generator.model import (Build, Family, KernelSpec, Manifest, Override, Row, RowsError, Select, Target, Variant)
from generator.operations import DTYPES, KV_LAYOUTS, MASKS, OPERATIONS, Operation
from generator.selection import check_selection
from generator.strict_yaml import ManifestError, Mark, Node

__all__ = ["Build", "Family", "KernelSpec", "Manifest", "ManifestError", "Mark", "Override", "Row", "RowsError", "Select",
           "Target", "Tile", "Variant", "load", "parse"]

SCHEMA_VERSION = 1
ASSEMBLERS = ("cuda12", "cuda13")
PLATFORMS = ("desktop", "tegra")
MAX_NAME = 64

_NAME = re.compile(r"[a-z][a-z0-9]*(?:_[a-z0-9]+)*")
_PTX_TARGET = re.compile(r"sm_[1-9][0-9]{1,2}a?")


def load(path: str | Path) -> Manifest:
    """The manifest in the file `path`. Raises ManifestError (with line and column) or OSError."""
    return _manifest(strict_yaml.load(path), str(path))


def parse(data: bytes, path: str = "variants.yaml") -> Manifest:
    """The manifest in `data`; `path` is used in errors only. Raises ManifestError."""
    return _manifest(strict_yaml.parse(data, path), path)


@dataclass(frozen=True)
class _Context:
    """What the variants refer to."""

    families: AbstractMapping[str, Family]
    targets: AbstractMapping[int, Target]
    sm_sets: AbstractMapping[str, tuple[int, ...]]


def _manifest(node: Node, path: str) -> Manifest:
    top = Fields(node, "the manifest", ("schema_version", "families", "targets", "sm_sets", "variants"))
    version = top.get("schema_version", fields.integer)
    if version != SCHEMA_VERSION:
        raise top.mark_of("schema_version").error(f"schema_version is {version}, this generator reads {SCHEMA_VERSION}",
                                                  "Convert the manifest, or use the generator that it was written for")
    families = _families(top.node("families"))
    targets = _targets(top.node("targets"))
    context = _Context(families, targets, _sm_sets(top.node("sm_sets"), targets))
    variants = _variants(top.node("variants"), context)
    check_selection(variants)
    return Manifest(path, tuple(families.values()), tuple(targets.values()), variants)


def _families(node: Node) -> dict[str, Family]:
    families = {}
    found = fields.mapping(node, "families")
    for name, value in found.entries.items():
        if name not in FAMILY_RULES:
            raise found.keys[name].error(f"unknown family {name!r}", fields.suggestion(name, FAMILY_RULES))
        families[name] = _family(name, value)
    if not families:
        raise node.mark.error("families is empty", "Give at least one family")
    return families


def _family(name: str, node: Node) -> Family:
    entry = Fields(node, f"family {name}", ("ptx_target", "exact"))
    ptx_target = entry.get("ptx_target", fields.string)
    exact = entry.get("exact", fields.boolean)
    if not _PTX_TARGET.fullmatch(ptx_target):
        raise entry.mark_of("ptx_target").error(f"{ptx_target!r} is no PTX target", "Write it like sm_80 or sm_90a")
    if exact != ptx_target.endswith("a"):
        raise entry.mark_of("exact").error(f"family {name}: exact is {str(exact).lower()}, but its PTX target is {ptx_target}",
                                           "Targets with the suffix 'a' are exact, all others are not")
    return Family(name, ptx_target, exact)


def _targets(node: Node) -> dict[int, Target]:
    targets: dict[int, Target] = {}
    places: dict[int, Fields] = {}
    for item in fields.items(node, "targets"):
        entry = Fields(item, "a target", ("sm", "assembler", "platform", "smem_limit"), ("same_part",))
        sm = entry.get("sm", fields.integer, least=10)
        if sm in targets:
            raise entry.mark_of("sm").error(f"SM {sm} is a target twice", "Remove one of them")
        targets[sm] = Target(
            sm, entry.get("assembler", fields.choice, known=ASSEMBLERS), entry.get("platform", fields.choice, known=PLATFORMS),
            entry.get("smem_limit", fields.integer), entry.get("same_part", fields.integer))
        places[sm] = entry
    for target in targets.values():
        _check_same_part(target, targets, places[target.sm].mark_of("same_part"))
    return targets


def _check_same_part(target: Target, targets: dict[int, Target], mark: Mark) -> None:
    if target.same_part is None:
        return
    other = targets.get(target.same_part)
    if other is None or other is target:
        raise mark.error(f"same_part of SM {target.sm} is {target.same_part}, which is no other target",
                         f"Name one of {_listed(sm for sm in targets if sm != target.sm)}, or leave it out")
    if other.same_part != target.sm:
        raise mark.error(f"SM {target.sm} says it is the same part as {other.sm}, but SM {other.sm} does not say so",
                         f"Add same_part: {target.sm} to SM {other.sm}")


def _sm_sets(node: Node, targets: dict[int, Target]) -> dict[str, tuple[int, ...]]:
    found = fields.mapping(node, "sm_sets")
    return {name: _sm_list(value, f"SM set {name}", tuple(targets), "is no target")
            for name, value in found.entries.items()}


def _sm_list(node: Node, what: str, allowed: tuple[int, ...], refusal: str) -> tuple[int, ...]:
    sms: set[int] = set()
    for item in fields.items(node, what):
        sm = fields.integer(item, f"an SM of {what}")
        if sm not in allowed:
            raise item.mark.error(f"SM {sm} of {what} {refusal}", f"Known: {_listed(allowed)}")
        if sm in sms:
            raise item.mark.error(f"SM {sm} stands twice in {what}", "Remove one of them")
        sms.add(sm)
    return tuple(sorted(sms))


# --- variants ----------------------------------------------------------------------------------------------------------

_REQUIRED = ("name", "operation", "head_dim", "mask", "kv_layout", "dtype", "abi_class", "family", "tile", "sms")
_OPTIONAL = ("select", "overrides", "checked")
VARIANT_FIELDS = _REQUIRED + _OPTIONAL
"""Every field that a variant may have."""


def _variants(node: Node, context: _Context) -> tuple[Variant, ...]:
    variants: dict[str, Variant] = {}
    for item in fields.items(node, "variants"):
        entry = Fields(item, "a variant", _REQUIRED, _OPTIONAL)
        name = _variant_name(entry)
        if name in variants:
            raise entry.mark_of("name").error(f"variant {name} is defined twice, first in line {variants[name].mark.line}",
                                              "Rename or remove one of them")
        variants[name] = _variant(name, entry, context)
    return tuple(variants.values())


def _variant_name(entry: Fields) -> str:
    name = entry.get("name", fields.string)
    if not _NAME.fullmatch(name) or len(name) > MAX_NAME:
        raise entry.mark_of("name").error(f"{name[:80]!r} can't be a variant's name", "Use lower-case words and digits joined by "
                                          f"single underscores, at most {MAX_NAME} characters")
    return name


def _variant(name: str, entry: Fields, context: _Context) -> Variant:
    operation = OPERATIONS[entry.get("operation", fields.choice, known=OPERATIONS)]
    head_dim = entry.get("head_dim", fields.integer)
    if head_dim % 8:
        raise entry.mark_of("head_dim").error(f"head_dim {head_dim} is not divisible by 8",
                                              "Rows are moved 16 bytes at a time: use a multiple of 8")
    mask = entry.get("mask", fields.choice, known=MASKS)
    _require(entry, "mask", mask, operation.masks, operation)
    kv_layout = entry.get("kv_layout", fields.choice, known=KV_LAYOUTS)
    _require(entry, "kv_layout", kv_layout, (operation.kv_layout,), operation)
    abi_class = entry.get("abi_class", fields.choice, known=tuple(o.abi_class for o in OPERATIONS.values()))
    _require(entry, "abi_class", abi_class, (operation.abi_class,), operation)
    sms = _variant_sms(entry.node("sms"), name, context)
    build = _build(entry, head_dim, context.families, default=None)
    overrides = _overrides(entry, name, head_dim, sms, build, context)
    variant = Variant(
        name, operation.name, head_dim, mask, kv_layout, entry.get("dtype", fields.choice, known=DTYPES), abi_class, build, sms,
        _select(entry, operation), overrides, entry.get("checked", fields.boolean, False), entry.mark)
    for sm in sms:
        _check_family_serves(variant.build_for(sm), sm)
    return variant


def _require(entry: Fields, field: str, value: str, allowed: tuple[str, ...], operation: Operation) -> None:
    if value not in allowed:
        raise entry.mark_of(field).error(f"operation {operation.name} does not go with {field} {value!r}",
                                         f"Use {' or '.join(allowed)}, or another operation")


def _variant_sms(node: Node, name: str, context: _Context) -> tuple[int, ...]:
    if isinstance(node, strict_yaml.Scalar) and isinstance(node.value, str):
        return context.sm_sets[fields.choice(node, "SM set", known=context.sm_sets)]
    return _sm_list(node, f"sms of {name}", tuple(context.targets), "is no target")


def _build(entry: Fields, head_dim: int, families: AbstractMapping[str, Family], default: Build | None) -> Build:
    if default is not None and not entry.has("family"):
        family = default.family
    else:
        family = families[entry.get("family", fields.choice, known=families)]
    if not entry.has("tile") and default is not None and default.family == family:
        return Build(family, default.tile, entry.mark)
    if not entry.has("tile"):
        raise entry.mark_of("family").error(f"the override changes the family to {family.name} but gives no tile", "Add tile: {...}")
    return Build(family, _tile(entry.node("tile"), family, head_dim), entry.mark_of("tile"))


def _tile(node: Node, family: Family, head_dim: int) -> Tile:
    found = fields.mapping(node, "tile")
    values = {name: fields.integer(value, f"tile field {name}", least=0) for name, value in found.entries.items()}
    rule = FAMILY_RULES[family.name]
    try:
        return rule.tile(values, head_dim)
    except TileError as error:
        mark = node.mark
        if error.field in found.keys:
            known = error.field in {f.name for f in rule.fields}
            mark = found.entries[error.field].mark if known else found.keys[error.field]
        raise mark.error(error.reason, error.remedy) from None


def _overrides(entry: Fields, name: str, head_dim: int, sms: tuple[int, ...], build: Build,
               context: _Context) -> tuple[Override, ...]:
    if not entry.has("overrides"):
        return ()
    overrides: list[Override] = []
    taken: set[int] = set()
    for item in fields.items(entry.node("overrides"), f"overrides of {name}"):
        fields_ = Fields(item, "an override", ("sms",), ("family", "tile"))
        if not fields_.has("family") and not fields_.has("tile"):
            raise item.mark.error("the override changes nothing", "Give a family, a tile or both")
        override_sms = _sm_list(fields_.node("sms"), f"an override of {name}", sms, "is not in the variant's SM list")
        twice = taken.intersection(override_sms)
        if twice:
            raise fields_.mark_of("sms").error(f"SM {min(twice)} is overridden twice in {name}", "Keep one override for an SM")
        taken.update(override_sms)
        overrides.append(Override(override_sms, _build(fields_, head_dim, context.families, build)))
    return tuple(overrides)


def _check_family_serves(build: Build, sm: int) -> None:
    family = build.family
    if family.exact and family.ptx_sm != sm:
        raise build.mark.error(f"family {family.name} is exact ({family.ptx_target}) and can't be built for SM {sm}",
                               f"Use it for SM {family.ptx_sm} only, in an override")
    if sm < family.ptx_sm:
        raise build.mark.error(f"family {family.name} ({family.ptx_target}) can't be built for SM {sm}, which is older",
                               f"Remove SM {sm} or use another family for it")


def _select(entry: Fields, operation: Operation) -> Select | None:
    if not entry.has("select"):
        return None
    rule = Fields(entry.node("select"), "select", ("seqlen_q_at_most",), ("only_if",))
    only_if = rule.get("only_if", fields.string)
    if only_if is not None and only_if not in operation.flags:
        raise rule.mark_of("only_if").error(f"operation {operation.name} has no flag {only_if!r}",
                                            f"Its flags: {_listed(operation.flags) or 'none; leave only_if out'}")
    return Select(rule.get("seqlen_q_at_most", fields.integer, least=0), only_if)


def _listed(values) -> str:
    return ", ".join(map(str, values))
