# SPDX-License-Identifier: Apache-2.0
"""A case made into arrays: poisoned inputs, a guarded output, what the output has to be, and the verdict on what it is."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from tests.device import cases, reference
from tests.device.cases import PAGE, Case

Array = Any

RELATIVE_BOUND = 4e-4
"""Largest allowed ||o - ref|| / ||ref|| of a case."""

ABSOLUTE_TOLERANCE = RELATIVE_TOLERANCE = 2e-3
"""Every element lies within ABSOLUTE_TOLERANCE + RELATIVE_TOLERANCE * |ref|."""

GUARD = 2048
"""Guard elements before and after every array."""

SENTINEL = 0x7EA5
"""The bits (a NaN with a payload) that O holds before a launch."""

POISON_BITS = {
    "nan": [0x7E00],
    "inf": [0x7C00, 0xFC00],
    "mixed": [0x7E00, 0x7C00, 0xFC00, 0xFE01, 0x7BFF],
}
"""What stands in every place that must not be read: NaN, infinities, and the largest finite value."""


@dataclass(frozen=True)
class Outcome:
    """The verdict on one launch: `violation` is max |o - ref| over the allowed distance, `faults` is empty when all is well."""

    relative_error: float
    violation: float
    faults: tuple[str, ...]


@dataclass
class Strided:
    """A view with gaps inside a flat array with guards. `view` is [..., heads, head_dim]."""

    flat: Array
    view: Array
    strides: tuple[int, ...]
    offset: int


@dataclass
class Problem:
    """The arrays of one launch. Absent arguments are None; `k`/`v` are None for paged operations, `pool` for the others."""

    case: Case
    backend: Any
    q: Strided
    o: Strided
    cu_q: Array
    cu_kv: Array
    k: Strided | None = None
    v: Strided | None = None
    pool: Strided | None = None
    page_list: Array = None
    block_begin: Array = None
    block_end: Array = None
    originals: list[Array] = field(default_factory=list)
    expected: Array = None
    written: Array = None
    blind: Array = None

    @property
    def inputs(self) -> list[Strided]:
        """The float16 inputs."""
        return [part for part in (self.q, self.k, self.v, self.pool) if part is not None]

    def reset(self) -> None:
        """Fills O and everything around it with the sentinel."""
        self.o.flat[...] = self.backend.pattern(len(self.o.flat), [SENTINEL])


def compose(case: Case, backend: Any, guard: int = GUARD, fill=None) -> Problem:
    """Arrays for `case`; `fill(name, values) -> values` may replace the random values of q, k, v or pool."""
    source = backend.random_source(case.seed)
    fill = fill or _unchanged
    q_lens, kv_lens = (backend.long(backend.integers(lengths)) for lengths in (case.q_lens, case.kv_lens))

    def make(name, outer, heads, gap, valid):
        part = _strided(backend, case, outer, heads, gap, POISON_BITS[case.poison], guard)
        values = fill(name, backend.normal(source, (*outer, heads, case.subject.head_dim)))
        part.view[...] = backend.xp.where(valid[..., None, None], values, part.view)
        return part

    q_outer, q_valid = _rows(backend, case, q_lens)
    problem = Problem(
        case=case, backend=backend,
        q=make("q", q_outer, case.num_q_heads, 5, q_valid),
        o=_strided(backend, case, q_outer, case.num_q_heads, 2, [SENTINEL], guard),
        cu_q=backend.integers(cases.cumulative(case.q_lens)), cu_kv=backend.integers(cases.cumulative(case.kv_lens)),
    )
    if case.subject.paged:
        table = cases.page_table(case)
        used = backend.long(backend.integers(table.used))
        problem.pool = make("pool", (len(table.used), PAGE), case.num_kv_heads, 1, backend.arange(PAGE) < used[:, None])
        problem.page_list = backend.integers(table.entries)
    else:
        outer, valid = q_outer, q_valid
        if not case.subject.packed:
            outer = (case.batch, case.seqlen_kv)
            valid = backend.arange(case.seqlen_kv) < kv_lens[:, None]
        problem.k = make("k", outer, case.num_kv_heads, 1, valid)
        problem.v = make("v", outer, case.num_kv_heads, 3, valid)
    if case.subject.operation == "vision_block":
        problem.block_begin, problem.block_end = map(backend.integers, cases.vision_intervals(case))
    problem.originals = [backend.bits(part.flat) + 0 for part in problem.inputs]
    return problem


def expect(problem: Problem) -> None:
    """Computes what O has to hold: values, which rows are written, and which of those see no key."""
    case, backend, xp = problem.case, problem.backend, problem.backend.xp
    outer = tuple(problem.q.view.shape[:-2])
    problem.expected = backend.zeros((*outer, case.num_q_heads, case.subject.head_dim), "float64")
    problem.written = backend.zeros(outer, "bool")
    problem.blind = ~backend.zeros(outer, "bool")
    problem.written[: sum(case.q_lens) if case.subject.packed else case.batch] = True
    starts = cases.cumulative(case.q_lens)
    for index, (q_len, kv_len) in enumerate(zip(case.q_lens, case.kv_lens)):
        rows = slice(starts[index], starts[index] + q_len) if case.subject.packed else (index, slice(q_len))
        allowed = _allowed(problem, index, q_len, kv_len)
        key, value = (backend.double(part) for part in _keys_values(problem, index, kv_len))
        query = backend.double(problem.q.view[rows])
        problem.expected[rows] = reference.attend(xp, query, key, value, allowed, case.scale)
        problem.blind[rows] = ~allowed.any(-1)


def judge(problem: Problem) -> Outcome:
    """Compares O with what `expect` computed, and every guard, gap and input with what `compose` put there."""
    backend, xp = problem.backend, problem.backend.xp
    output = backend.double(problem.o.view)
    written, blind = problem.written[..., None, None], problem.blind[..., None, None]
    finite = xp.isfinite(output)
    distance = xp.abs(xp.where(written & finite, output - problem.expected, 0.0))
    size = xp.where(written, problem.expected, 0.0)
    limit = ABSOLUTE_TOLERANCE + RELATIVE_TOLERANCE * xp.abs(size)
    owned = backend.zeros((len(problem.o.flat),), "bool")
    backend.strided(owned, tuple(problem.o.view.shape), problem.o.strides, problem.o.offset)[...] = written
    untouched = (backend.bits(problem.o.flat) == SENTINEL) | owned
    unchanged = [(backend.bits(part.flat) == old).all() for part, old in zip(problem.inputs, problem.originals)]
    numbers = backend.scalars([
        (distance * distance).sum(), (size * size).sum(), (distance / limit).max(),
        (finite | ~written).all(), ((output == 0) | ~(written & blind)).all(), untouched.all(), *unchanged,
    ])
    return _outcome(*numbers[:6], all(numbers[6:]))


def values_agree(problem: Problem, heads: slice = slice(None)) -> bool:
    """Whether the rows of O that have to be written are right, element by element, in `heads`; looks at nothing else."""
    got = problem.backend.double(problem.o.view)[problem.written][:, heads]
    want = problem.expected[problem.written][:, heads]
    near = abs(got - want) <= ABSOLUTE_TOLERANCE + RELATIVE_TOLERANCE * abs(want)
    blind = problem.blind[problem.written]
    return bool(near.all()) and bool((got[blind] == 0).all())


def _outcome(squared_error, squared_size, violation, finite, zeros, untouched, unchanged):
    error = math.sqrt(squared_error)
    relative = error / math.sqrt(squared_size) if squared_size else (math.inf if error else 0.0)
    faults = [
        text
        for wrong, text in (
            (not finite, "a row that has to be written holds NaN or Inf (or was left unwritten)"),
            (not zeros, "a row that sees no key is not exactly 0"),
            (not untouched, "something was written outside the rows that belong to O"),
            (not unchanged, "an input was overwritten"),
            (not relative <= RELATIVE_BOUND, f"relative error {relative:.3e} is over {RELATIVE_BOUND:.0e}"),
            (not violation <= 1.0, f"an element is off by {violation:.2f} times the allowed distance"),
        )
        if wrong
    ]
    return Outcome(relative if finite else math.inf, violation if finite else math.inf, tuple(faults))


def _unchanged(name, values):
    return values


def _rows(backend, case, q_lens):
    """Leading dimensions of Q and O, and which of their rows are queries."""
    if case.subject.packed:
        total = max(case.total_q, 1)
        return (total,), backend.arange(total) < sum(case.q_lens)
    return (case.batch, case.seqlen_q), backend.arange(case.seqlen_q) < q_lens[:, None]


def _strided(backend, case, outer, heads, gap, bits, guard):
    """A guarded array [*outer, heads, head_dim] full of `bits`; `gap` scales the case's stride gaps."""
    row = heads * case.subject.head_dim + gap * case.row_gap
    strides = (row, case.subject.head_dim, 1)
    if len(outer) == 2:
        strides = (outer[1] * row + gap * case.batch_gap, *strides)
    shape = (*outer, heads, case.subject.head_dim)
    size = 1 + sum(stride * (extent - 1) for stride, extent in zip(strides, shape)) if all(shape) else 0
    flat = backend.pattern(size + 2 * guard, bits)
    return Strided(flat, backend.strided(flat, shape, strides, guard), strides, guard)


def _allowed(problem, index, q_len, kv_len):
    case, backend = problem.case, problem.backend
    window, begin, end = case.window, None, None
    if case.subject.mask == "vision_block":
        window = reference.UNLIMITED if window < 0 else window
        begin, end = (backend.long(part[index, :q_len, None]) for part in (problem.block_begin, problem.block_end))
    rows, keys = backend.arange(q_len)[:, None], backend.arange(kv_len)[None, :]
    return reference.visible(case.subject.mask, rows, keys, q_len, kv_len, window, begin, end)


def _keys_values(problem, index, kv_len):
    """The logical K and V of one sequence, [kv_len, num_kv_heads, head_dim] each."""
    case = problem.case
    if case.subject.paged:
        pages = problem.backend.long(problem.page_list[index, :, : -(-kv_len // PAGE)])
        shape = (-1, case.num_kv_heads, case.subject.head_dim)
        return [problem.pool.view[pages[plane]].reshape(shape)[:kv_len] for plane in (0, 1)]
    if case.subject.packed:
        start = cases.cumulative(case.kv_lens)[index]
        return [part.view[start : start + kv_len] for part in (problem.k, problem.v)]
    return [part.view[index, :kv_len] for part in (problem.k, problem.v)]
