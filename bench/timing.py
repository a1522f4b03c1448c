# SPDX-License-Identifier: Apache-2.0
"""Times device work fairly: graphs of several launches over rotating inputs, contenders in turn, medians of device events.

One timing lasts TARGET_US or more. A short wait on the device opens each round, so that the host is ahead of it and no timing holds host
time; contenders take turns at being the first. The inputs rotate, so a launch finds in L2 what a layer of a network would: not its own.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any

TARGET_US = 2200.0
"""Device time of one timing, at least."""

MOST_LAUNCHES = 400
"""Launches of one timing, at most."""

WARM_ROUNDS = 2
WARM_US = 50_000.0
"""Untimed rounds in front, at least that many and at least that long: clocks follow the load within some milliseconds."""

LEAD_CYCLES = 2_000_000
"""Device clocks, about a millisecond, that a round waits on the device while the host enqueues it."""

PROBE_US = 1000.0
MOST_PROBES = 16


@dataclass(frozen=True)
class Timing:
    """Microseconds per launch over the rounds. `launches` are those of one timing; `graph` is false when they could not be captured."""

    median_us: float
    fastest_us: float
    slowest_us: float
    launches: int
    graph: bool


@dataclass(frozen=True)
class Work:
    """Something to time: `enqueue(i)` enqueues one launch on the current stream, on input set i modulo `sets`.

    `guess_us` is about what a launch takes; it only chooses how often the launch is tried before its time is known.
    """

    enqueue: Callable[[int], Any]
    sets: int
    guess_us: float


def launches_for(launch_us: float, sets: int) -> int:
    """Launches of one timing, so that it lasts TARGET_US: whole turns through the input sets where there is at least one."""
    wanted = max(1, math.ceil(TARGET_US / launch_us))
    return min(-(-wanted // sets) * sets if wanted >= sets else wanted, MOST_LAUNCHES)


@dataclass(frozen=True)
class _Ready:
    replay: Callable[[], None]
    launches: int
    launch_us: float
    graph: bool


def measure(torch: Any, contenders: Mapping[Hashable, Work], rounds: int, observe: Callable[[], None] = lambda: None) -> dict[Hashable, Timing]:
    """Times every contender once per round, so that a drifting clock meets all of them alike.

    `observe` is called once a round, timed or not, while the device is busy with it.
    """
    ready = {name: _prepared(torch, work) for name, work in contenders.items()}
    round_us = sum(one.launches * one.launch_us for one in ready.values())
    warm = max(WARM_ROUNDS, math.ceil(WARM_US / round_us)) if ready else 0
    samples: dict[Hashable, list[float]] = {name: [] for name in contenders}
    names = list(ready)
    for number in range(warm + rounds if ready else 0):
        first = number % len(names)
        events = _round(torch, {name: ready[name] for name in (*names[first:], *names[:first])})
        observe()
        torch.cuda.synchronize()
        if number >= warm:
            for name, (begin, end) in events.items():
                samples[name].append(1e3 * begin.elapsed_time(end) / ready[name].launches)
    return {
        name: Timing(statistics.median(times), min(times), max(times), ready[name].launches, ready[name].graph)
        for name, times in samples.items()
    }


def _round(torch: Any, ready: Mapping[Hashable, _Ready]) -> dict[Hashable, tuple[Any, Any]]:
    """Enqueues one timing of each contender, in the order given; the events before and after each."""
    torch.cuda._sleep(LEAD_CYCLES)
    return {name: _between(torch, one.replay) for name, one in ready.items()}


def _between(torch: Any, enqueue: Callable[[], None]) -> tuple[Any, Any]:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    enqueue()
    end.record()
    return begin, end


def _prepared(torch: Any, work: Work) -> _Ready:
    """The launches of one timing, in a graph if they can be captured; how many there are is found by trying."""
    def eager(launches: int) -> None:
        for index in range(launches):
            work.enqueue(index)

    probes = max(1, min(MOST_PROBES, round(PROBE_US / work.guess_us)))
    eager(1)
    torch.cuda._sleep(LEAD_CYCLES)
    begin, end = _between(torch, lambda: eager(probes))
    torch.cuda.synchronize()
    launch_us = 1e3 * begin.elapsed_time(end) / probes
    launches = launches_for(launch_us, work.sets)
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            eager(launches)
    except RuntimeError:
        torch.cuda.synchronize()
        return _Ready(lambda: eager(launches), launches, launch_us, False)
    return _Ready(graph.replay, launches, launch_us, True)
