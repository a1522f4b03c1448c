# SPDX-License-Identifier: Apache-2.0
"""What the kernels of each family are to reach, as data, and whether recorded measurements reach it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.kernel_cases import CASES, BenchCase

SM90_GOALS = "SM 90 goals"
ANCHORS = "performance anchors"

TFLOPS, DENSE = "TFLOP/s", "dense"
"""Measures besides the names of rivals and families: the speed itself; the ratio to the same family's dense kernel on the same shape."""


@dataclass(frozen=True)
class Goal:
    """`family` on `case` is to reach `at_least` in `measure`: TFLOP/s, or its speed over that of dense, flash, cudnn or another family."""

    case: str
    family: str
    measure: str
    at_least: float
    source: str


@dataclass(frozen=True)
class Outcome:
    """A goal and what was measured for it (None: not measured)."""

    goal: Goal
    value: float | None

    @property
    def met(self) -> bool | None:
        """None when it was not measured."""
        return None if self.value is None else self.value >= self.goal.at_least


_OVER_CUDNN = {
    "d128 causal 1x2048 32/8": 1.25, "d128 causal 1x8192 32/8": 1.25, "d128 causal 8x2048 32/8": 1.02, "d128 causal 1x32768 32/8": 1.02,
    "d64 causal 8x2048 32/8": 1.02, "d64 causal 8x512 32/8 small tile": 1.02, "d64 causal 1x16384 32/8": 1.15,
    "d256 causal 4x2048 16/8": 1.02, "d256 causal 1x8192 16/8": 1.09, "d256 full 4x2048 16/8 padding": 1.03,
    "d64 full 4x4096 16/16 vit": 1.09, "d72 full 4x4096 16/16 vit": 1.28, "d80 full 4x4096 16/16 vit": 1.27,
    "d128 full 4x4096 16/16 vit": 1.06,
}
_PAGED = tuple(
    f"{shape} {operation}"
    for operation in ("paged", "paged_ragged")
    for shape in ("d64 causal 8x2048 32/8", "d128 causal 8x2048 32/8", "d256 causal 4x2048 16/8")
)
_TFLOPS = {"d128 sliding 1024 8x2048 32/8": 400, "d512 causal 4x2048 16/1": 400, "d512 causal 4x2048 16/1 paged": 400}


def _anchored(case: BenchCase) -> bool:
    return any(value is not None for value in vars(case.anchor).values())


def _over_flash(case: BenchCase) -> tuple[Goal, ...]:
    """The older code's ratio to flash, where both are known."""
    if case.anchor.peer is None or case.anchor.flash is None:
        return ()
    return (Goal(case.name, "ampere", "flash", round(case.anchor.peer / case.anchor.flash, 3), ANCHORS),)


GOALS: tuple[Goal, ...] = (
    *(Goal(case, "hopper", "cudnn", ratio, SM90_GOALS) for case, ratio in _OVER_CUDNN.items()),
    *(Goal(case, "hopper", DENSE, 0.97, SM90_GOALS) for case in _PAGED),
    *(Goal(case, "hopper", TFLOPS, speed, SM90_GOALS) for case, speed in _TFLOPS.items()),
    *(Goal(case.name, "hopper", "ampere", 1.0, SM90_GOALS) for case in CASES if _anchored(case)),
    *(goal for case in CASES for goal in _over_flash(case)),
    *(Goal(case, "ampere", DENSE, 0.95, ANCHORS) for case in _PAGED),
)
"""Every goal, the kernels for SM 90 first."""


def shape(record: Mapping[str, Any]) -> tuple:
    """Records with equal shapes do the same work."""
    return tuple(record[field] for field in ("head_dim", "mask", "batch", "seqlen", "num_q_heads", "num_kv_heads"))


def speed_of(record: Mapping[str, Any], label: str) -> float | None:
    """TFLOP/s of the result with that label; None if it did not run."""
    return record["results"].get(label, {}).get("tflops")


def speed_of_family(record: Mapping[str, Any], family: str) -> float | None:
    """TFLOP/s of the first result of that family; None if none ran."""
    return next((result["tflops"] for result in record["results"].values() if result.get("family") == family), None)


def dense_twin(record: Mapping[str, Any], records: Iterable[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The record of the dense kernel on the same shape; for the small tile that with the small tile. None for a dense record itself."""
    if not record["operation"].startswith("paged"):
        return None
    twins = [other for other in records if other["operation"] == "llm" and shape(other) == shape(record)]
    return next((twin for twin in twins if twin["note"] == record["note"]), twins[0] if twins else None)


def ratio(one: float | None, other: float | None) -> float | None:
    """one / other where both are known."""
    return one / other if one and other else None


def outcomes(records: Sequence[Mapping[str, Any]], goals: Iterable[Goal] = GOALS) -> tuple[Outcome, ...]:
    """Every goal of the families and cases in the records, with its value there."""
    by_name = {record["name"]: record for record in records}
    families = {result.get("family") for record in records for result in record["results"].values()}
    return tuple(
        Outcome(goal, _value(goal, by_name[goal.case], records)) for goal in goals if goal.family in families and goal.case in by_name
    )


def _value(goal: Goal, record: Mapping[str, Any], records: Sequence[Mapping[str, Any]]) -> float | None:
    mine = speed_of_family(record, goal.family)
    if goal.measure == TFLOPS:
        return mine
    if goal.measure == DENSE:
        twin = dense_twin(record, records)
        return ratio(mine, twin and speed_of_family(twin, goal.family))
    return ratio(mine, speed_of_family(record, goal.measure) or speed_of(record, goal.measure))
