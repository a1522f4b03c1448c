# SPDX-License-Identifier: Apache-2.0
"""Recorded measurements of kernels as a roofline plot in SVG. Needs nothing but the records.

One panel for each group of head dimensions. In it every case is a column at its arithmetic intensity (FLOP per byte of compulsory traffic:
Q, K and V read once, O written once), with a mark for each label and rival. Columns of equal intensity stand side by side.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from xml.sax.saxutils import escape

from bench.goals import speed_of
from bench.report import RIVALS
from bench.report import number as numeral


@dataclass(frozen=True)
class Roof:
    """What a device's datasheet allows: bytes per second from memory, dense float16 FLOP per second."""

    bandwidth: float
    flops: float


ROOFS = {"NVIDIA H200": Roof(4.8e12, 989e12)}
"""By the device's name. The plot of another device has marks only."""

PANELS = (("head_dim 64", (64,)), ("head_dim 72, 80, 96", (72, 80, 96)), ("head_dim 128", (128,)), ("head_dim 256", (256,)),
          ("head_dim 512", (512,)))

STYLES = (("circle", "#0072b2"), ("square", "#d55e00"), ("diamond", "#cc79a7"), ("down", "#8c6d1f"))
"""Shape and colour of our labels, in their order; the colours differ for colour-blind eyes too."""

RIVAL_STYLES = {"flash": ("triangle", "#7a7a7a"), "cudnn": ("cross", "#009e73")}

WIDTH, LEFT, PLOT, TOP, HEIGHT, GAP = 1120, 64, 600, 112, 290, 66
X_RANGE, Y_RANGE = (100.0, 20_000.0), (50.0, 1_200.0)
COLUMN = 15
"""Pixels between neighbouring columns, at least."""

LINE = 15


def svg(document: Mapping[str, Any]) -> str:
    """The plot of a document that bench/kernels.py wrote."""
    labels = [series["label"] for series in document["series"]]
    styles = {**{label: STYLES[place % len(STYLES)] for place, label in enumerate(labels)}, **RIVAL_STYLES}
    panels = [(title, [record for record in document["cases"] if record["head_dim"] in dims]) for title, dims in PANELS]
    panels = [(title, records) for title, records in panels if records]
    roof, y, body = ROOFS.get(document["device"]["name"]), TOP, []
    for title, records in panels:
        height = max(HEIGHT, LINE * (len(records) + 1))
        body += panel(title, records, styles, roof, y, height)
        y += height + GAP
    head = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{y}" viewBox="0 0 {WIDTH} {y}" font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{y}" fill="white"/>',
        text(LEFT, 26, f"Roofline: {document['device']['name']}, float16 attention, medians of one run", size=17),
        *legend(styles, roof),
        text(LEFT, 74, "Columns of equal or nearly equal intensity stand side by side, around the true place; the key is beside each panel.", size=11),
    ]
    return "\n".join([*head, *body, "</svg>"]) + "\n"


def panel(title: str, records: Sequence[Mapping[str, Any]], styles: Mapping[str, tuple[str, str]], roof: Roof | None, top: float,
          height: float) -> list[str]:
    """One pair of axes with the marks of its cases, and beside it what the columns are."""
    def at(tflops: float) -> float:
        return top + height * (1 - _position(tflops, Y_RANGE))

    parts = [text(LEFT, top - 8, title, size=14, weight="bold"), *axes(top, height, at), *(roof_lines(roof, at) if roof else [])]
    ordered = sorted(records, key=lambda record: record["flops"] / record["bytes"])
    places = spread([LEFT + PLOT * _position(record["flops"] / record["bytes"], X_RANGE) for record in ordered])
    for number, (record, x) in enumerate(zip(ordered, places)):
        speeds = {name: speed_of(record, name) for name in styles}
        parts += column(x, {name: at(speed) for name, speed in speeds.items() if speed is not None}, styles, letter(number))
        parts.append(text(LEFT + PLOT + 24, top + LINE * number + 10, f"{letter(number)}   {record['name']}"))
        parts.append(text(WIDTH - 16, top + LINE * number + 10, " / ".join(numeral(speed, 0) for speed in speeds.values()), anchor="end"))
    return parts


def column(x: float, marks: Mapping[str, float], styles: Mapping[str, tuple[str, str]], name: str) -> list[str]:
    """The marks of one case, joined by a line, under its letter."""
    if not marks:
        return []
    highest, lowest = min(marks.values()), max(marks.values())
    parts = [f'<path d="M{x:.1f} {highest:.1f}V{lowest:.1f}" stroke="#bbb"/>', text(x, highest - 9, name, size=11, anchor="middle")]
    return parts + [mark(*styles[label], x, y, label) for label, y in marks.items()]


def axes(top: float, height: float, at) -> list[str]:
    """Frame, grid and numbers, both axes logarithmic."""
    bottom = top + height
    parts = [f'<rect x="{LEFT}" y="{top}" width="{PLOT}" height="{height}" fill="none" stroke="#333"/>']
    for value in _ticks(*X_RANGE):
        x = LEFT + PLOT * _position(value, X_RANGE)
        parts += [f'<path d="M{x:.1f} {top}V{bottom}" stroke="#e4e4e4"/>', text(x, bottom + 15, f"{value:,.0f}", size=11, anchor="middle")]
    for value in _ticks(*Y_RANGE):
        parts += [f'<path d="M{LEFT} {at(value):.1f}H{LEFT + PLOT}" stroke="#e4e4e4"/>', text(LEFT - 6, at(value) + 4, f"{value:,.0f}", size=11, anchor="end")]
    parts.append(text(LEFT + PLOT / 2, bottom + 31, "FLOP per byte of compulsory traffic", anchor="middle"))
    middle = top + height / 2
    parts.append(f'<text x="16" y="{middle:.1f}" text-anchor="middle" transform="rotate(-90 16 {middle:.1f})">TFLOP/s</text>')
    return parts


def roof_lines(roof: Roof, at) -> list[str]:
    """Memory bandwidth up to the ridge, the tensor cores' peak after it."""
    ridge = roof.flops / roof.bandwidth
    start, x = X_RANGE[0], LEFT + PLOT * _position(ridge, X_RANGE)
    peak = at(roof.flops / 1e12)
    return [
        f'<path d="M{LEFT} {at(roof.bandwidth * start / 1e12):.1f}L{x:.1f} {peak:.1f}H{LEFT + PLOT}" fill="none" stroke="black" stroke-width="1.5"/>',
        text(LEFT + PLOT - 6, peak - 6, f"{roof.flops / 1e12:,.0f} TFLOP/s dense fp16, {roof.bandwidth / 1e12:g} TB/s", size=11, anchor="end"),
    ]


def legend(styles: Mapping[str, tuple[str, str]], roof: Roof | None) -> list[str]:
    """A mark and a word for each label and rival, in the order of the numbers beside the panels."""
    parts, x = [], LEFT + 6
    for label, style in styles.items():
        word = RIVALS.get(label, label)
        parts += [mark(*style, x, 50, label), text(x + 12, 54, word)]
        x += 34 + 8 * len(word)
    if roof:
        parts += [f'<path d="M{x} 50h24" stroke="black" stroke-width="1.5"/>', text(x + 30, 54, "roofs of the datasheet")]
    parts.append(text(WIDTH - 16, 54, "TFLOP/s: " + " / ".join(RIVALS.get(label, label) for label in styles), anchor="end"))
    return parts


def mark(kind: str, colour: str, x: float, y: float, title: str) -> str:
    """A mark of about 9 pixels around (x, y)."""
    paths = {
        "square": "m-4 -4h8v8h-8z", "diamond": "m0 -5.5l5.5 5.5l-5.5 5.5l-5.5 -5.5z", "triangle": "m0 -5l5 9h-10z", "down": "m0 5l5 -9h-10z",
        "circle": "m-4.5 0a4.5 4.5 0 1 0 9 0a4.5 4.5 0 1 0 -9 0z",
    }
    tip = f"<title>{escape(title)}</title>"
    if kind == "cross":
        return f'<path d="M{x:.1f} {y:.1f}m-4 -4l8 8m0 -8l-8 8" stroke="{colour}" stroke-width="2.2" fill="none">{tip}</path>'
    return f'<path d="M{x:.1f} {y:.1f}{paths[kind]}" fill="{colour}" stroke="white" stroke-width="0.7">{tip}</path>'


def text(x: float, y: float, words: str, size: int = 12, anchor: str = "start", weight: str = "normal") -> str:
    """A line of text."""
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" font-weight="{weight}">{escape(words)}</text>'


def spread(places: Sequence[float]) -> list[float]:
    """The places, in order, moved as little as is needed for COLUMN between neighbours; those that crowd stay around their mean."""
    groups: list[list[float]] = []
    for place in places:
        groups.append([place])
        while len(groups) > 1 and _middle(groups[-1]) - _middle(groups[-2]) < COLUMN * (len(groups[-1]) + len(groups[-2])) / 2:
            last = groups.pop()
            groups[-1] += last
    return [_middle(group) + COLUMN * (number - (len(group) - 1) / 2) for group in groups for number in range(len(group))]


def _middle(group: Sequence[float]) -> float:
    return sum(group) / len(group)


def letter(number: int) -> str:
    """a, b, ... z, aa, ab, ..."""
    return (letter(number // 26 - 1) if number >= 26 else "") + chr(ord("a") + number % 26)


def _position(value: float, span: tuple[float, float]) -> float:
    """0 to 1 within a logarithmic axis; what lies outside is put on its edge."""
    return min(max(math.log(value / span[0]) / math.log(span[1] / span[0]), 0.0), 1.0)


def _ticks(low: float, high: float) -> list[float]:
    """1, 2 and 5 times the powers of ten within the range."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    return [value for power in powers for digit in (1, 2, 5) if low <= (value := digit * 10.0**power) <= high]
