# SPDX-License-Identifier: Apache-2.0
"""A second, slow statement of attention for the tests: one query at a time, its keys listed one by one in plain Python.

It reads a `Problem` the way a kernel does (views, page list, cumulative lengths), never the reference's masks.
"""

from __future__ import annotations

import numpy as np

PAGE = 128


def keys_of(case, query, q_len, kv_len, begin=None, end=None):
    """The keys that row `query` of a sequence sees, as a list, written as loops and comparisons."""
    if query >= q_len:
        return []
    own = query + kv_len - q_len
    seen = []
    for key in range(kv_len):
        mask = case.subject.mask
        window = case.window
        if mask == "vision_block" and window < 0:
            window = 10**9
        if mask in ("padding", "bidirectional"):
            sees = True
        elif mask == "causal":
            sees = key <= own
        else:
            sees = own - window <= key <= own
        if mask == "vision_block" and begin <= key <= end:
            sees = True
        if sees:
            seen.append(key)
    return seen


def run(problem, keys_of=keys_of):
    """Fills `problem.o` as the kernel of the case's operation must."""
    case = problem.case
    for index in range(case.batch):
        q_len = int(problem.cu_q[index + 1] - problem.cu_q[index])
        kv_len = int(problem.cu_kv[index + 1] - problem.cu_kv[index])
        packed = case.subject.packed
        for query in range(q_len if packed else case.seqlen_q):
            row = int(problem.cu_q[index]) + query if packed else (index, query)
            interval = ()
            if problem.block_begin is not None:
                interval = (int(problem.block_begin[index, query]), int(problem.block_end[index, query]))
            seen = keys_of(case, query, q_len, kv_len, *interval)
            problem.o.view[row] = _attend_row(problem, index, row, seen)


def _attend_row(problem, index, row, seen):
    case = problem.case
    out = np.zeros((case.num_q_heads, case.subject.head_dim), np.float32)
    if not seen:
        return out
    key, value = (_gather(problem, index, plane, seen) for plane in (0, 1))
    for head in range(case.num_q_heads):
        source = head // (case.num_q_heads // case.num_kv_heads)
        query = problem.q.view[row][head].astype(np.float64)
        with np.errstate(invalid="ignore", over="ignore"):  # poison that a planted fault lets in
            scores = key[:, source] @ query * case.scale
            weights = np.exp(scores - max(scores))
            out[head] = weights @ value[:, source] / sum(weights)
    return out


def _gather(problem, index, plane, seen):
    if problem.pool is not None:
        pages = problem.page_list[index, plane]
        rows = [problem.pool.view[pages[key // PAGE], key % PAGE] for key in seen]
    else:
        part = problem.v if plane else problem.k
        first = int(problem.cu_kv[index])
        rows = [part.view[first + key] if problem.case.subject.packed else part.view[index, key] for key in seen]
    return np.stack(rows).astype(np.float64)
