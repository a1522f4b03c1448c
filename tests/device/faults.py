# SPDX-License-Identifier: Apache-2.0
"""Faults for checked kernels: wrong page ids and lengths planted in a problem, and what has to be reported and written.

A case has three sequences. The faulty one stands between two others where the layout allows that: with packed queries a wrong query
length moves all later rows, so there the last or the first one is faulty.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from fmhaforge import FaultReported
from tests.device.cases import INT32_MAX, PAGE, Case, cumulative
from tests.device.named import case
from tests.device.problem import Outcome, Problem, judge
from tests.device.subjects import Subject

INT32_MIN = -(1 << 31)

ZEROS, UNTOUCHED, FINITE = "zeros", "untouched", "finite"
"""What becomes of the faulty sequence's rows."""


@dataclass(frozen=True)
class Report:
    """What a checked kernel has to say; the fields as in `fmhaforge.FaultReported`."""

    kind: str
    batch: int
    entry: int
    value: int


@dataclass(frozen=True)
class Fault:
    """One fault: `plant(problem)` puts it into the arrays and gives the report; `rows` tells what O holds for that sequence."""

    name: str
    rows: str
    plant: Callable[[Problem], Report]


def faulty_case(subject: Subject, fault: Fault) -> Case:
    """The case for a fault. Every page of every sequence is followed, and no two entries name the same page."""
    made = case(subject, f"fault {fault.name}", (40, 33, 29), (70, 2 * PAGE + 5, 3 * PAGE), share_pages=0.0, row_gap=8, batch_gap=16)
    return replace(made, seqlen_q=128, seqlen_kv=4 * PAGE, extra_rows=11 * subject.packed)


def faults(subject: Subject) -> Iterator[Fault]:
    """Every fault that the operation of `subject` can meet."""
    for plane, name in enumerate("kv"):
        for entry, value in ((0, -1), (2, -1), (1, None), (2, INT32_MAX), (1, INT32_MIN)):
            shown = "one past the pool" if value is None else value
            yield Fault(f"{name} page {entry} is {shown}", FINITE, _page(plane, entry, value))
    yield Fault("kv_len over capacity", ZEROS, _kv_length(4 * PAGE + 1))
    yield Fault("kv_len far over capacity", ZEROS, _kv_length(1 << 30))
    yield Fault("kv_len negative", ZEROS, _kv_length(-1))
    if subject.packed:
        yield Fault("q_len over max_q_seqlen", UNTOUCHED, _last_q_length(lambda problem: problem.case.seqlen_q + 1))
        yield Fault("q_len past the rows", UNTOUCHED, _last_q_length(lambda problem: 29 + problem.case.extra_rows + 1))
        yield Fault("q_len negative", UNTOUCHED, _last_q_length(lambda problem: -5))
        yield Fault("first row negative", UNTOUCHED, _negative_start)
    else:
        yield Fault("q_len over seqlen_q", ZEROS, _q_length(129))
        yield Fault("q_len far over seqlen_q", ZEROS, _q_length(1 << 30))
        yield Fault("q_len negative", ZEROS, _q_length(-1))


def reported_by(launch: Callable[[], None]) -> Report | None:
    """What the kernel says when `launch()` runs it; None when it says nothing."""
    try:
        launch()
    except FaultReported as error:
        return Report(error.kind, error.batch, error.entry, error.value)
    return None


def findings(problem: Problem, rows: str, report: Report, found: Report | None) -> tuple[str, ...]:
    """What is wrong after a launch that had to give `report` and gave `found`, with O written as `rows` says."""
    wrong = () if found == report else (f"{found} instead of {report}",)
    return wrong + _judge(problem, report, rows).faults


def _judge(problem: Problem, report: Report, rows: str) -> Outcome:
    """The verdict on a launch with a fault: the other sequences as ever, the faulty one's rows as `rows` says.

    Rows of which only FINITE is asked are otherwise taken as they are.
    """
    own = _rows_of(problem, report.batch)
    if rows == UNTOUCHED:
        problem.written[own] = False
    elif rows == ZEROS:
        problem.expected[own], problem.blind[own] = 0.0, True
    else:
        problem.expected[own], problem.blind[own] = problem.backend.double(problem.o.view[own]), False
    return judge(problem)


def _rows_of(problem: Problem, index: int) -> object:
    """The index of a sequence's rows in O: all of them where O has a place for each sequence."""
    if not problem.case.subject.packed:
        return index
    starts = cumulative(problem.case.q_lens)
    return slice(starts[index], starts[index + 1])


def _page(plane: int, entry: int, value: int | None) -> Callable[[Problem], Report]:
    def plant(problem: Problem) -> Report:
        wrong = len(problem.pool.view) if value is None else value
        problem.page_list[1, plane, entry] = wrong
        return Report(("k-page", "v-page")[plane], 1, entry, wrong)
    return plant


def _kv_length(length: int) -> Callable[[Problem], Report]:
    def plant(problem: Problem) -> Report:
        problem.cu_kv = _sums_with(problem, problem.case.kv_lens, 1, length)
        return Report("kv-length", 1, 0, length)
    return plant


def _q_length(length: int) -> Callable[[Problem], Report]:
    def plant(problem: Problem) -> Report:
        problem.cu_q = _sums_with(problem, problem.case.q_lens, 1, length)
        return Report("q-length", 1, 0, length)
    return plant


def _last_q_length(length_of: Callable[[Problem], int]) -> Callable[[Problem], Report]:
    def plant(problem: Problem) -> Report:
        last, length = problem.case.batch - 1, length_of(problem)
        problem.cu_q = _sums_with(problem, problem.case.q_lens, last, length)
        return Report("q-length", last, 0, length)
    return plant


def _negative_start(problem: Problem) -> Report:
    sums = cumulative(problem.case.q_lens)
    problem.cu_q = problem.backend.integers([-1, *sums[1:]])
    return Report("q-length", 0, 0, sums[1] + 1)


def _sums_with(problem: Problem, lengths: Sequence[int], index: int, length: int):
    """The cumulative lengths with one of them replaced; those of the others stay as they are."""
    return problem.backend.integers(cumulative((*lengths[:index], length, *lengths[index + 1 :])))
