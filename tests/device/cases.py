# SPDX-License-Identifier: Apache-2.0
"""Random cases as plain data: every case is a function of its subject and its number, so its id is enough to repeat it.

Attributes that must all be met (GQA ratio, query length, key length, window) cycle with different periods; the rest is drawn
from a generator seeded by the id.
"""

from __future__ import annotations

import hashlib
import math
import random
from dataclasses import dataclass, replace

from tests.device.reference import UNLIMITED
from tests.device.subjects import Subject

PAGE = 128
"""Tokens per page of the pool."""

RATIOS = (1, 2, 3, 4, 6, 7, 8, 16, 32)
"""Query heads per K/V head."""

MOST_HEADS = 32
SCORE_BUDGET = 6_000_000
"""Most scores (heads x queries x keys) of one case; batches are dropped until it is met."""

POISONS = ("nan", "inf", "mixed")
INT32_MAX = (1 << 31) - 1
UNUSED_ENTRIES = (-1, -1, -1, INT32_MAX, -(1 << 31), 1 << 20)
"""What stands in page-list entries that must not be read."""


@dataclass(frozen=True)
class Case:
    """One launch. Lengths are in tokens, gaps in elements.

    `q_lens`/`kv_lens` are the logical lengths per sequence, `seqlen_q`/`seqlen_kv` the physical ones (packed operations: the
    stated maximum). `row_gap` and `batch_gap` widen the strides, `extra_rows` are packed rows outside every sequence.
    """

    subject: Subject
    label: str
    num_q_heads: int
    num_kv_heads: int
    q_lens: tuple[int, ...]
    kv_lens: tuple[int, ...]
    seqlen_q: int
    seqlen_kv: int
    window: int | None = None
    scale: float = 0.125
    row_gap: int = 0
    batch_gap: int = 0
    extra_rows: int = 0
    poison: str = "nan"
    intervals: str = "none"
    share_pages: float = 0.15

    @property
    def id(self) -> str:
        """Names the case; `subject/number` for random ones."""
        return f"{self.subject.name}/{self.label}"

    @property
    def seed(self) -> int:
        """63-bit seed of everything random in the case."""
        return int.from_bytes(hashlib.sha256(self.id.encode()).digest()[:8], "big") >> 1

    @property
    def batch(self) -> int:
        """Number of sequences."""
        return len(self.q_lens)

    @property
    def max_pages(self) -> int:
        """Page-list entries per sequence and plane."""
        return self.seqlen_kv // PAGE

    @property
    def total_q(self) -> int:
        """Rows of packed Q, those outside every sequence included."""
        return sum(self.q_lens) + self.extra_rows


@dataclass(frozen=True)
class PageTable:
    """`entries[b][plane][i]` is a flat page id or an unused value; `used[p]` counts the readable tokens of page p."""

    entries: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]
    used: tuple[int, ...]


def random_case(subject: Subject, number: int) -> Case:
    """The random case `number` (0, 1, ...) of `subject`."""
    rng = random.Random(f"{subject.name}/{number}/shape")
    ratio = RATIOS[number % len(RATIOS)]
    num_kv_heads = rng.choice([count for count in (1, 1, 2, 3, 4, 8) if count * ratio <= MOST_HEADS])
    edge = _within(subject, _pick(_query_edges(subject, rng), number))
    batch = rng.choice((1, 1, 2, 2, 3, 4))
    if subject.own_q_lengths:
        q_lens = (edge, *(_within(subject, rng.choice((0, *_query_edges(subject, rng)))) for _ in range(batch - 1)))
    else:
        q_lens = (edge,) * batch
    if subject.operation == "vit":
        kv_lens = q_lens
    else:
        first = _pick(_key_edges(subject, edge, rng), number)
        kv_lens = (first, *(rng.choice(_key_edges(subject, length, rng)) for length in q_lens[1:]))
    q_lens, kv_lens = _affordable(q_lens, kv_lens, ratio * num_kv_heads)
    seqlen_q, seqlen_kv = _extents(subject, q_lens, kv_lens, rng)
    return Case(
        subject=subject, label=str(number), num_q_heads=ratio * num_kv_heads, num_kv_heads=num_kv_heads,
        q_lens=q_lens, kv_lens=kv_lens, seqlen_q=seqlen_q, seqlen_kv=seqlen_kv,
        window=_window(subject, max(kv_lens), number, rng),
        scale=_scale(subject, number, rng),
        row_gap=8 * rng.choice((0, rng.randint(1, 5))),
        batch_gap=8 * rng.choice((0, rng.randint(1, 40))),
        extra_rows=rng.choice((0, 1, 17, 130)) if subject.packed else 0,
        poison=_pick(POISONS, number // len(RATIOS)),
        intervals=_pick(("owned", "arbitrary", "none", "whole", "mixed"), number // 2),
    )


def page_table(case: Case) -> PageTable:
    """Scrambled pages: K and V pages from one pool, some shared, some dead, unused entries filled with what must not be read."""
    rng = random.Random(f"{case.id}/pages")
    needed = [-(-length // PAGE) for length in case.kv_lens]
    total = 2 * (sum(needed) + rng.randint(1, 3))
    free = list(range(total))
    rng.shuffle(free)
    used = [0] * total
    entries = []
    for length, count in zip(case.kv_lens, needed):
        planes = []
        for _ in range(2):
            line = []
            for i in range(count):
                taken = [page for page in range(total) if used[page]]
                page = rng.choice(taken) if taken and rng.random() < case.share_pages else free.pop()
                used[page] = max(used[page], min(PAGE, length - i * PAGE))
                line.append(page)
            dead = [page for page in range(total) if not used[page]]
            line += [rng.choice((*UNUSED_ENTRIES, *dead[:2])) for _ in range(case.max_pages - count)]
            planes.append(tuple(line))
        entries.append(tuple(planes))
    return PageTable(tuple(entries), tuple(used))


def vision_intervals(case: Case) -> tuple[list[list[int]], list[list[int]]]:
    """`(begin, end)`, each [batch][seqlen_q]: inclusive key intervals of the kind `case.intervals`."""
    rng = random.Random(f"{case.id}/intervals")
    begins, ends = [], []
    for kv_len in case.kv_lens:
        kind = rng.choice(("owned", "arbitrary", "none", "whole")) if case.intervals == "mixed" else case.intervals
        pairs = _INTERVALS[kind](case.seqlen_q, kv_len, rng)
        begins.append([pair[0] for pair in pairs])
        ends.append([pair[1] for pair in pairs])
    return begins, ends


def cumulative(lengths: tuple[int, ...]) -> list[int]:
    """Prefix sums starting at 0."""
    sums = [0]
    for length in lengths:
        sums.append(sums[-1] + length)
    return sums


def renamed(case: Case, label: str, **changes) -> Case:
    """A copy of `case` under another label with `changes` applied."""
    return replace(case, label=label, **changes)


def _pick(choices, number):
    return choices[number % len(choices)]


def _within(subject, length):
    """`length` brought into the range that selects the variant (its lower end binds only where all rows are queries)."""
    if not subject.own_q_lengths:
        length = max(length, subject.seqlen_q_min)
    return length if subject.seqlen_q_max is None else min(length, subject.seqlen_q_max)


def _query_edges(subject, rng):
    m = subject.tile_m
    last = subject.seqlen_q_max or subject.seqlen_q_min - 1 + rng.randint(1, min(3 * m, 384))
    return (1, m - 1, m, m + 1, 2 * m - 1, 2 * m, 2 * m + 1, rng.randint(1, m), rng.randint(m, 4 * m + 3), max(last, 1))


def _key_edges(subject, q_len, rng):
    n = subject.tile_n
    return (
        q_len,
        q_len + n - 1,
        q_len + n,
        q_len + n + 1,
        q_len + rng.randint(1, 6 * n),
        rng.randint(0, max(q_len - 1, 0)),
        max(q_len - 1, 0),
        rng.choice((n - 1, n, n + 1, 2 * n - 1, 2 * n, 2 * n + 1)),
        rng.choice((PAGE - 1, PAGE, PAGE + 1, 3 * PAGE - 1, 3 * PAGE, 3 * PAGE + 1)),
        1,
        0,
    )


def _affordable(q_lens, kv_lens, heads):
    """The leading sequences whose scores fit the budget, at least one."""
    count, spent = 0, 0
    for q_len, kv_len in zip(q_lens, kv_lens):
        spent += heads * q_len * kv_len
        if count and spent > SCORE_BUDGET:
            break
        count += 1
    return q_lens[:count], kv_lens[:count]


def _extents(subject, q_lens, kv_lens, rng):
    """Physical lengths that hold the logical ones, with slack where the operation has its own lengths."""
    seqlen_q = max(*q_lens, 1)
    if subject.own_q_lengths:
        seqlen_q = max(seqlen_q + rng.choice((0, 0, 1, subject.tile_m - 1, subject.tile_m)), subject.seqlen_q_min)
        seqlen_q = _within(subject, seqlen_q)
    if subject.operation == "vit":
        return seqlen_q, seqlen_q
    if subject.paged:
        return seqlen_q, PAGE * (max(-(-max(kv_lens) // PAGE), 1) + rng.randint(0, 2))
    return seqlen_q, max(*kv_lens, 1) + rng.choice((0, 1, 7, subject.tile_n))


def _window(subject, longest, number, rng):
    if not subject.sliding:
        return None
    n = subject.tile_n
    choices = (0, 1, n - 1, n, n + 1, longest + rng.choice((0, 1, UNLIMITED - longest)), rng.randint(0, 3 * n))
    if subject.mask == "vision_block":
        choices += (-1,)
    return _pick(choices, number)


def _scale(subject, number, rng):
    named = {0: 0.05, 1: 2.0, 2: 1.0, 3: max(1 / math.sqrt(subject.head_dim), 0.05)}
    return named.get(number % 13, math.exp(rng.uniform(math.log(0.05), math.log(2.0))))


def _owned_intervals(rows, kv_len, rng):
    """Runs of rows that share one interval holding their own positions, as an image's tokens do."""
    offset, pairs = kv_len - rows, []
    while len(pairs) < rows:
        run = min(rng.randint(1, 48), rows - len(pairs))
        first, last = len(pairs) + offset, len(pairs) + run - 1 + offset
        pairs += [(first, last) if rng.random() < 0.6 and first >= 0 else (-1, -1)] * run
    return pairs


def _arbitrary_intervals(rows, kv_len, rng):
    """Any pair at all: overlapping, empty, reversed, past the end, before the start, with the extreme values."""
    low, high = (-(1 << 31), -7, -1, 0), (kv_len - 1, kv_len, kv_len + 9, INT32_MAX)

    def end(extremes):
        return rng.choice(extremes) if rng.random() < 0.15 else rng.randint(-4, kv_len + 4)

    return [(end(low), end(high)) if rng.random() < 0.8 else (-1, -1) for _ in range(rows)]


def _no_intervals(rows, kv_len, rng):
    return [(-1, -1)] * rows


def _whole_intervals(rows, kv_len, rng):
    return [(0, kv_len - 1)] * rows


_INTERVALS = {
    "owned": _owned_intervals, "arbitrary": _arbitrary_intervals, "none": _no_intervals, "whole": _whole_intervals,
}
