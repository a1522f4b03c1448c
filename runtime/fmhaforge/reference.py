# SPDX-License-Identifier: Apache-2.0
"""Attention from its definition, in float64 and plain Python: slow, short, and independent of every kernel."""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import mul

Vector = Sequence[float]


def attend(query: Vector, keys: Sequence[Vector], values: Sequence[Vector], scale: float, head_dim: int) -> list[float]:
    """softmax(scale * query . keys) * values for one query; exact zeros when there are no keys."""
    if not keys:
        return [0.0] * head_dim
    scores = [scale * math.fsum(map(mul, query, key)) for key in keys]
    top = max(scores)
    weights = [math.exp(score - top) for score in scores]
    total = math.fsum(weights)
    return [math.fsum(map(mul, weights, column)) / total for column in zip(*values)]


def causal(query: int, query_length: int, key_length: int, window: int | None = None) -> range:
    """The keys that a query sees: up to its own position counted from the end, and `window` keys left of that (None: all)."""
    last = query + key_length - query_length
    first = 0 if window is None else max(last - window, 0)
    return range(first, max(min(last + 1, key_length), first))


def vision_block(query: int, query_length: int, key_length: int, window: int | None, begin: int, end: int) -> list[int]:
    """The keys that `causal` gives, and those in begin .. end, both inclusive."""
    block = range(max(begin, 0), min(end, key_length - 1) + 1) if begin >= 0 else range(0)
    return sorted({*causal(query, query_length, key_length, window), *block})


def group_head(query_head: int, num_q_heads: int, num_kv_heads: int) -> int:
    """The key/value head that a query head reads."""
    return query_head // (num_q_heads // num_kv_heads)


