# SPDX-License-Identifier: Apache-2.0
"""Cases with a name: shapes that broke attention kernels elsewhere, as data."""

from __future__ import annotations

from collections.abc import Iterator

from tests.device.cases import PAGE, Case
from tests.device.subjects import Subject


def case(subject: Subject, label: str, q_lens: tuple[int, ...], kv_lens: tuple[int, ...], **changes) -> Case:
    """A case with the physical extents that its lengths need; any field can be given instead."""
    seqlen_q = max(*q_lens, 1)
    if subject.own_q_lengths:
        seqlen_q = max(seqlen_q, subject.seqlen_q_min)
    seqlen_kv = max(*kv_lens, 1)
    if subject.paged:
        seqlen_kv = -(-seqlen_kv // PAGE) * PAGE
    if subject.operation == "vit":
        seqlen_kv = seqlen_q
    window = {"sliding_causal": 1 << 20, "vision_block": -1}.get(subject.mask)
    values = dict(
        num_q_heads=4, num_kv_heads=2, seqlen_q=seqlen_q, seqlen_kv=seqlen_kv, window=window, scale=0.125, poison="mixed",
        intervals="arbitrary",
    )
    return Case(subject=subject, label=label, q_lens=q_lens, kv_lens=kv_lens, **{**values, **changes})


def named_cases(subject: Subject) -> Iterator[Case]:
    """The named cases that the operation of `subject` has."""
    if subject.operation == "vit":
        yield from _vit(subject)
        return
    if subject.own_q_lengths:
        yield case(subject, "cu_q 0,0,17,17 cu_k 0,5,5,40", (0, 17, 0), (5, 0, 35))
        yield case(subject, "all queries, no keys", (65, 33), (0, 0))
        yield case(subject, "no queries, all keys", (0, 0), (65, 33))
        yield case(subject, "queries 200 and 7, keys 128 and 300", (200, 7), (128, 300))
    else:
        yield case(subject, "no keys in a long tensor", (70, 70), (0, 0), seqlen_kv=100)
        yield case(subject, "one sequence without keys", (70, 70, 70), (70, 0, 131))
        if not subject.paged:
            yield case(subject, "Sk 0", (70, 70), (0, 0), seqlen_kv=0)
    yield case(subject, "Sq 200 Sk 128", (200,), (128,))
    yield case(subject, "32 query heads on one", (33,) * 2, (97,) * 2, num_q_heads=32, num_kv_heads=1)
    yield case(subject, "32 query heads on 32", (33,) * 2, (97,) * 2, num_q_heads=32, num_kv_heads=32)
    if subject.sliding:
        yield from _windows(subject)


def _windows(subject: Subject) -> Iterator[Case]:
    n = subject.tile_n
    for window in (0, 1, n - 1, n, n + 1, 3 * n):
        keys = window + 1
        yield case(subject, f"window {window}, Sk one more", (keys,), (keys,), window=window)
        yield case(subject, f"window {window}, Sk two more", (keys + 1,), (keys + 1,), window=window)
    yield case(subject, "window hides the first blocks", (2 * n,), (9 * n,), window=n // 2)
    if subject.operation == "llm":
        yield case(subject, "negative window", (70,), (131,), window=-1)


def _vit(subject: Subject) -> Iterator[Case]:
    yield case(subject, "all sequences empty", (0, 0, 0), (0, 0, 0), extra_rows=9)
    yield case(subject, "max_seqlen far too large", (3, 60, 1), (3, 60, 1), seqlen_q=5000, seqlen_kv=5000, extra_rows=70)
    yield case(subject, "empty sequences around", (0, 65, 0, 0, 7, 0), (0, 65, 0, 0, 7, 0))
    yield case(subject, "32 query heads on one", (33, 64), (33, 64), num_q_heads=32, num_kv_heads=1)
