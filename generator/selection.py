# SPDX-License-Identifier: Apache-2.0
"""Selection rules: which variant serves a call, and the checks that make the answer unique for every call.

Among variants with equal selection keys on one SM, those whose `select` rule holds go before the one without a rule, in the
order of the manifest.
"""

from __future__ import annotations

from collections.abc import Iterable

from generator.model import Select, Variant


def holds(select: Select | None, seqlen_q: int, flags: Iterable[str] = ()) -> bool:
    """Whether a rule holds for a call; no rule always holds. `flags`: the names of the flags that are true."""
    if select is None:
        return True
    return seqlen_q <= select.seqlen_q_at_most and (select.only_if is None or select.only_if in flags)


def choose(candidates: Iterable[Variant], seqlen_q: int, flags: Iterable[str] = ()) -> Variant | None:
    """The variant that serves a call, out of variants with equal selection keys; None when no rule holds."""
    holding = [variant for variant in candidates if holds(variant.select, seqlen_q, flags)]
    return min(holding, key=lambda variant: variant.select is None, default=None)


def check_selection(variants: Iterable[Variant]) -> None:
    """Raises ManifestError unless, for every key and SM, exactly one variant has no rule and each rule can take effect."""
    groups: dict[tuple, list[Variant]] = {}
    for variant in variants:
        for sm in variant.sms:
            groups.setdefault((variant.selection_key(), sm), []).append(variant)
    for (_, sm), group in groups.items():
        _check_group(group, sm)


def _check_group(group: list[Variant], sm: int) -> None:
    unconditional = [variant for variant in group if variant.select is None]
    if not unconditional:
        raise group[0].mark.error(f"{group[0].name} has a select rule, but no variant without one serves the other calls on SM {sm}",
                                  "Add a variant with the same operation, head_dim and mask and no select rule")
    if len(unconditional) > 1:
        first, second = unconditional[:2]
        raise second.mark.error(f"{second.name} serves the same calls as {first.name} (line {first.mark.line}) on SM {sm}",
                                "Give one of them a select rule, or take the SM out of one list")
    ruled = [variant for variant in group if variant.select is not None]
    for index, later in enumerate(ruled):
        for earlier in ruled[:index]:
            if _shadows(earlier.select, later.select):
                raise later.mark.error(f"the select rule of {later.name} never takes effect on SM {sm}: {earlier.name} "
                                       f"(line {earlier.mark.line}) takes all its calls", "Put the narrower rule first")


def _shadows(earlier: Select, later: Select) -> bool:
    return earlier.seqlen_q_at_most >= later.seqlen_q_at_most and earlier.only_if in (None, later.only_if)
