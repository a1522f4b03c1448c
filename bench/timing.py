# SPDX-License-Identifier: Apache-2.0
"""Times device work fairly: graphs of several launches over rotating inputs, contenders in turn, medians of device events."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

WARM_ROUNDS = 2


@dataclass(frozen=True)
class Timing:
    """Microseconds per launch over the rounds. `graph` is false when the launches could not be captured."""

    median_us: float
    fastest_us: float
    slowest_us: float
    graph: bool


@dataclass(frozen=True)
class Work:
    """Something to time: `enqueue(i)` enqueues one launch on the current stream, on input set i modulo the number of sets."""

    enqueue: Callable[[int], Any]
    launches: int


def measure(torch: Any, contenders: Mapping[str, Work], rounds: int) -> dict[str, Timing]:
    """Times every contender once per round, so that a drifting clock meets all of them alike."""
    ready = {name: _prepared(torch, work) for name, work in contenders.items()}
    samples: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(WARM_ROUNDS + rounds):
        events = {}
        for name, (replay, _) in ready.items():
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            replay()
            end.record()
            events[name] = begin, end
        torch.cuda.synchronize()
        if number >= WARM_ROUNDS:
            for name, (begin, end) in events.items():
                samples[name].append(1e3 * begin.elapsed_time(end) / contenders[name].launches)
    return {name: Timing(statistics.median(times), min(times), max(times), ready[name][1]) for name, times in samples.items()}


def _prepared(torch: Any, work: Work) -> tuple[Callable[[], None], bool]:
    """(a function that enqueues all launches of `work`, whether it replays a graph)."""
    def eager() -> None:
        for index in range(work.launches):
            work.enqueue(index)

    eager()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            eager()
    except RuntimeError:
        torch.cuda.synchronize()
        return eager, False
    return graph.replay, True
