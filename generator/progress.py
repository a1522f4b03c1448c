# SPDX-License-Identifier: Apache-2.0
"""Says what a build is doing: plain lines, or one live line on a terminal; and records what each task cost.

Safe to call from several threads. Keeps everything for the report at the end.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from dataclasses import dataclass
from typing import TextIO


@dataclass(frozen=True)
class Event:
    """One finished task: what it did to what, when (seconds since the build began), what it cost, how it ended."""

    action: str
    name: str
    start: float
    seconds: float
    cpu_seconds: float
    peak_bytes: int
    lane: int
    status: str


@dataclass(frozen=True)
class Failure:
    """One failed task: what, the first useful line, and where the whole log is."""

    action: str
    name: str
    reason: str
    log_path: str


@dataclass
class _Running:
    action: str
    name: str
    start: float
    lane: int


def clock(seconds: float) -> str:
    """Seconds as minutes and seconds: `1:05`."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


class Progress:
    """Follows a build of `total` products. `style`: auto, live, plain or none."""

    def __init__(self, style: str = "auto", stream: TextIO | None = None) -> None:
        self.stream = stream or sys.stdout
        if style == "auto":
            style = "live" if self.stream.isatty() and os.environ.get("TERM") != "dumb" else "plain"
        self.style = style
        self.total = 0
        self.visited = 0
        self.restored = 0
        self.began = time.monotonic()
        self.lock = threading.Lock()
        self.running: dict[int, _Running] = {}
        self.events: list[Event] = []
        self.failures: list[Failure] = []
        self.drawn = False
        self.tickets = 0

    def visit(self) -> None:
        """One more product was looked at, whether it has to be built or not."""
        with self.lock:
            self.visited = min(self.visited + 1, self.total)

    def start(self, action: str, name: str) -> int:
        """A task begins; returns its ticket."""
        with self.lock:
            used = {running.lane for running in self.running.values()}
            lane = next(index for index in range(len(used) + 1) if index not in used)
            self.tickets += 1
            ticket = self.tickets
            self.running[ticket] = _Running(action, name, time.monotonic(), lane)
            self._draw()
            return ticket

    def finish(self, ticket: int, status: str, cpu_seconds: float = 0.0, peak_bytes: int = 0) -> None:
        """A task ended with `status`: built, restored or failed."""
        with self.lock:
            running = self.running.pop(ticket)
            now = time.monotonic()
            self.events.append(Event(running.action, running.name, running.start - self.began, now - running.start, cpu_seconds, peak_bytes,
                                     running.lane, status))
            if self.style == "plain" and status != "restored":
                self._line(f"[{self.visited:{len(str(self.total))}}/{self.total}] {running.action:9} {running.name:44} {now - running.start:6.1f} s"
                           + (f"  {status}" if status != "built" else ""))
            self._draw()

    def fail(self, failure: Failure) -> None:
        """A task failed; it is in the table at the end, and said at once."""
        with self.lock:
            self.failures.append(failure)
            self._clear()
            self._line(f"FAILED {failure.action} {failure.name}: {failure.reason}")
            self._draw()

    def say(self, text: str) -> None:
        """Prints a line, above the live line if there is one."""
        with self.lock:
            self._clear()
            self._line(text)
            self._draw()

    def end(self) -> None:
        """Removes the live line."""
        with self.lock:
            self._clear()
            self.stream.flush()

    def _line(self, text: str) -> None:
        if self.style != "none":
            print(text, file=self.stream, flush=True)

    def _clear(self) -> None:
        if self.drawn:
            self.stream.write("\r\x1b[K")
            self.drawn = False

    def _draw(self) -> None:
        if self.style != "live" or not self.running:
            return
        elapsed = time.monotonic() - self.began
        left = elapsed * (self.total - self.visited) / self.visited if self.visited else 0
        what = ", ".join(f"{running.action} {running.name}" for running in self.running.values())
        text = f"[{self.visited}/{self.total}] {clock(elapsed)}, about {clock(left)} left: {what}"
        width = os.get_terminal_size(self.stream.fileno()).columns if self.stream.isatty() else 120
        self._clear()
        self.stream.write(text[: width - 1])
        self.stream.flush()
        self.drawn = True
