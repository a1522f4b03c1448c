# SPDX-License-Identifier: Apache-2.0
"""Attention in float64, from its definition: which keys a query sees, and the softmax over exactly those.

Every function works on numpy arrays and on torch tensors; `xp` is the module that made them. Nothing here knows about tiles,
running maxima or base-2 exponentials.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

Array = Any

UNLIMITED = 1 << 30
"""A window that hides nothing."""


def visible(
    mask: str, q: Array, k: Array, q_len: int, kv_len: int,
    window: int | None = None, begin: Array = None, end: Array = None,
) -> Array:
    """Which key each query of one sequence sees, bool [rows, keys].

    `q` [rows, 1] and `k` [1, keys] are integer positions in the sequence of `q_len` queries and `kv_len` keys. `window` counts
    the keys to the left of the query's own position (which is `q + kv_len - q_len`); `begin`/`end` [rows, 1] are the inclusive
    intervals of the mask `vision_block`.
    """
    exists = (q < q_len) & (k < kv_len)
    position = q + (kv_len - q_len)
    causal = exists & (k <= position)
    if mask in ("padding", "bidirectional"):
        return exists
    if mask == "causal":
        return causal
    in_window = causal & (k >= position - window)
    if mask == "sliding_causal":
        return in_window
    if mask == "vision_block":
        return in_window | (exists & (begin <= k) & (k <= end))
    raise ValueError(f"unknown mask {mask!r}")


def attend(xp: ModuleType, q: Array, k: Array, v: Array, allowed: Array, scale: float) -> Array:
    """softmax(scale * q k^T over the allowed keys) v for one sequence; a query without a key gives zeros.

    `q` [rows, num_q_heads, head_dim], `k` and `v` [keys, num_kv_heads, head_dim], all float64; `allowed` bool [rows, keys].
    Query head h reads K/V head `h // (num_q_heads / num_kv_heads)`. Returns [rows, num_q_heads, head_dim].
    """
    rows, num_q_heads, head_dim = q.shape
    keys, num_kv_heads, _ = k.shape
    if keys == 0:
        return xp.zeros_like(q)
    grouped = q.reshape(rows, num_kv_heads, num_q_heads // num_kv_heads, head_dim)
    scores = xp.where(allowed, xp.einsum("qhgd,khd->hgqk", grouped, k) * scale, float("-inf"))
    highest = xp.amax(scores, axis=-1, keepdims=True)
    weights = xp.exp(scores - xp.where(xp.isfinite(highest), highest, 0.0))
    total = weights.sum(axis=-1, keepdims=True)
    weights = weights / xp.where(total > 0, total, 1.0)
    return xp.einsum("hgqk,khd->qhgd", weights, v).reshape(rows, num_q_heads, head_dim)
