# SPDX-License-Identifier: Apache-2.0
"""Recorded measurements of kernels as Markdown: every case with its ratios, and which goals are met. Needs nothing but the records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bench.goals import TFLOPS, Outcome, dense_twin, outcomes, ratio, speed_of

RIVALS = {"flash": "flash", "cudnn": "cuDNN"}
"""torch's backends, and how they are written."""


def markdown(document: Mapping[str, Any]) -> str:
    """The whole report of a document that bench/kernels.py wrote."""
    records, labels = document["cases"], [series["label"] for series in document["series"]]
    found = outcomes(records)
    parts = [heading(document), lines_of(case_table(records, labels))]
    if found:
        parts += [verdict(found), lines_of(goal_table(found))]
    refused = refusals(records, labels)
    return "\n\n".join(parts + (["\n".join(refused)] if refused else [])) + "\n"


def heading(document: Mapping[str, Any]) -> str:
    """What was measured on what."""
    device = document["device"]
    return (
        f"{device['name']}, driver {device['driver'] or 'unknown'}, torch {device['torch']}, CUDA {device['cuda']}, cuDNN {device['cudnn']}; one run, medians of "
        f"{document['rounds']} rounds, TFLOP/s. Causal work counts as half, sliding work as what lies inside the window."
    )


def case_table(records: Sequence[Mapping[str, Any]], labels: Sequence[str]) -> list[list[str]]:
    """Heading and rows: TFLOP/s of every label and rival, then the first label's ratio to each of the others and to dense."""
    others = [*labels[1:], *RIVALS]
    written = [RIVALS.get(name, name) for name in (*labels, *RIVALS)]
    rows = [["case", *written, *(f"{labels[0]} / {RIVALS.get(name, name)}" for name in others), "/ dense", "floor"]]
    for record in records:
        mine, twin = speed_of(record, labels[0]), dense_twin(record, records)
        rows.append([
            record["name"], *(number(speed_of(record, name), 1) for name in (*labels, *RIVALS)),
            *(number(ratio(mine, speed_of(record, name)), 2) for name in others),
            number(ratio(mine, twin and speed_of(twin, labels[0])), 3), number(record["anchor"]["floor"], 0),
        ])
    return rows


def goal_table(found: Iterable[Outcome]) -> list[list[str]]:
    """Heading and rows: what is to be reached and what was."""
    words = {True: "met", False: "**missed**", None: "not measured"}
    rows = [["goal", "case", "value", "at least", "", "source"]]
    for outcome in found:
        goal = outcome.goal
        digits = 0 if goal.measure == TFLOPS else 3
        name = f"{goal.family}, {TFLOPS}" if goal.measure == TFLOPS else f"{goal.family} / {RIVALS.get(goal.measure, goal.measure)}"
        rows.append([name, goal.case, number(outcome.value, digits), number(goal.at_least, digits), words[outcome.met], goal.source])
    return rows


def verdict(found: Sequence[Outcome]) -> str:
    """How many goals are met, in a sentence."""
    met, missed = (sum(outcome.met is wanted for outcome in found) for wanted in (True, False))
    left = len(found) - met - missed
    return f"{met} of {len(found)} goals met, {missed} missed" + (f", {left} not measured." if left else ".")


def refusals(records: Iterable[Mapping[str, Any]], labels: Iterable[str]) -> list[str]:
    """A line for each case that one of our own kernels refused."""
    return [
        f"* {record['name']}: {label} refused: {record['results'][label]['refused']}"
        for record in records for label in labels if "refused" in record["results"].get(label, {})
    ]


def number(value: float | None, digits: int) -> str:
    """A number as text; `-` for None."""
    return "-" if value is None else f"{value:.{digits}f}"


def lines_of(rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table whose columns also line up as plain text: text to the left, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    right = [all(_is_number(cell) for cell in column[1:]) for column in zip(*rows)]

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.rjust(wide) if to_right else cell.ljust(wide) for cell, wide, to_right in zip(cells, widths, right)) + " |"

    rule = "|" + "|".join("-" * (wide + 1) + ":" if to_right else "-" * (wide + 2) for wide, to_right in zip(widths, right)) + "|"
    return "\n".join([line(rows[0]), rule, *map(line, rows[1:])])


def _is_number(cell: str) -> bool:
    return cell == "-" or cell.replace(".", "", 1).isdigit()
