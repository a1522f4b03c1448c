# SPDX-License-Identifier: Apache-2.0
"""Where cases run: a bundle open on a device, a recorder for the ledger, and one verdict per case and route."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tests.device import cases, launch
from tests.device.cases import Case
from tests.device.ledger import Recorder
from tests.device.problem import Outcome, Problem, compose, expect, judge
from tests.device.subjects import Subject

class DeviceLost(RuntimeError):
    """The device takes no more work after a case; the message says which."""


class Lab:
    """Runs cases on the current device. `touched` holds the (subject, route) pairs of the test in progress.

    `bundles` are the same bundle, opened several times: each loads one kernel at a time, so that several together keep the
    driver's assembler busy. Every subject has its kernels in one of them.
    """

    def __init__(self, bundles: Sequence[Any], backend: Any, routes: tuple[str, ...]):
        self._bundles = tuple(bundles)
        self._home: dict[Subject, int] = {}
        self.backend = backend
        self.routes = routes
        self.recorder = Recorder()
        self.touched: set[tuple[Subject, str]] = set()

    def bundle_of(self, subject: Subject) -> Any:
        """The opened bundle that holds the kernels of `subject`."""
        return self._bundles[self._home.setdefault(subject, len(self._home) % len(self._bundles))]

    def routes_of(self, subject: Subject) -> tuple[str, ...]:
        """The routes to test `subject` by."""
        return tuple(route for route in self.routes if route in subject.routes)

    def runner(self, case: Case, route: str) -> Any:
        """A runner for `case` that is proven to select the case's variant and PTX; its kernel is loaded."""
        runner = launch.runner_for(self.bundle_of(case.subject), case, route)
        support = launch.preflight(runner, case, self.backend.stream())
        chosen = [(row.variant, row.ptx_sha256) for row in support.rows]
        assert chosen == [(case.subject.variant, case.subject.ptx_sha256)], f"{case.id}: the runner selects {support.variants}"
        return runner

    def preload(self, subjects: Iterable[Subject]) -> None:
        """Loads every kernel by every route, several at a time (the driver takes about a second to assemble one)."""
        wanted = [(cases.random_case(subject, 0), route) for subject in subjects for route in self.routes_of(subject)]
        stream = self.backend.stream()

        def load(case, route):
            launch.preflight(launch.runner_for(self.bundle_of(case.subject), case, route), case, stream)

        with ThreadPoolExecutor(len(self._bundles)) as pool:
            list(pool.map(load, *zip(*wanted)))

    def launch(self, problem: Problem, route: str) -> None:
        """Enqueues `problem` on the current stream."""
        self.prepared(problem, route)()

    def prepared(self, problem: Problem, route: str) -> Callable[[], None]:
        """A function that enqueues `problem` on the current stream, for many repeats."""
        self.touched.add((problem.case.subject, route))
        runner, stream = self.runner(problem.case, route), self.backend.stream()
        return lambda: launch.launch(runner, problem, stream)

    def prepare(self, case: Case, fill=None) -> Problem:
        """The arrays of `case` on the device, with what O has to hold."""
        problem = compose(case, self.backend, fill=fill)
        expect(problem)
        return problem

    def verdicts(self, problem: Problem, record: bool = True) -> dict[str, Outcome]:
        """Runs `problem` by every route of its subject; outcomes go to the recorder unless `record` is false."""
        found = {}
        for route in self.routes_of(problem.case.subject):
            problem.reset()
            try:
                self.launch(problem, route)
                outcome = judge(problem)
            except Exception as error:  # a refused launch is this case's fault, and the others still count
                outcome = Outcome(math.inf, math.inf, (f"{type(error).__name__}: {error}",))
                self._still_alive(problem.case, route, outcome)
            found[route] = outcome
            if record:
                self.recorder.add(problem.case.subject, route, problem.case.id, outcome)
        return found

    def faults(self, case: Case, fill=None, record: bool = True) -> list[str]:
        """One line per fault of `case` on any route; empty when it passes."""
        verdicts = self.verdicts(self.prepare(case, fill), record)
        return [f"{case.id} [{route}]: {fault}" for route, outcome in verdicts.items() for fault in outcome.faults]

    def alive(self) -> bool:
        """Whether the device still takes work."""
        try:
            self.backend.synchronise()
        except Exception:
            return False
        return True

    def _still_alive(self, case: Case, route: str, outcome: Outcome) -> None:
        if not self.alive():
            self.recorder.add(case.subject, route, case.id, outcome)
            raise DeviceLost(f"{case.id} [{route}] broke the device: {outcome.faults[0]}")
