# SPDX-License-Identifier: Apache-2.0
"""Which keys a query row may see.

Every mask of the family is, per query row, an interval of keys ``[lower(row), upper(row))``; the vision-block mask adds a
second interval that is OR'ed. Rows and keys are counted from the start of their sequence, and ``offset = kv_len - q_len``
aligns the last row with the last key (bottom-right alignment). From the row intervals follow, per query tile,

* the *visited* key range: the hull of what its rows see, so that nothing outside it is loaded, and
* the *unmasked* key range: what every row sees, so that tiles inside it need no per-element test.

A mask is chosen at trace time (`make_mask`) and knows nothing of tiles, warps or registers: both kernel families share it.
Formulas: docs/numerics.md, "Masks".
"""
from __future__ import annotations

import cutlass
from cutlass import Boolean, Int32

from .ops import Fixed, select

NO_WINDOW = 1 << 30


class FullMask(Fixed):
    """Every row sees every key (padding and bidirectional masks)."""

    has_second_interval = False

    def __init__(self, q_len, offset, key_limit):
        self.q_len = q_len
        self.offset = offset
        self.key_limit = key_limit

    def lower(self, row):
        return Int32(0)

    def upper(self, row):
        return self.key_limit

    def visited(self, first_row, rows):
        """Key range that the rows [first_row, first_row + rows) can see at all, cut at q_len."""
        last_row = cutlass.min(first_row + rows, self.q_len) - 1
        low, high = self.lower(first_row), self.upper(last_row)
        # A tile past the last query row sees nothing.
        return low, select(first_row < self.q_len, high, Int32(0))

    def unmasked(self, first_row, rows):
        """Key range that every row of the tile sees."""
        return self.lower(first_row + (rows - 1)), self.upper(first_row)


class CausalMask(FullMask):
    """Keys up to the row's own position."""

    def upper(self, row):
        return cutlass.min(row + self.offset + 1, self.key_limit)


class SlidingCausalMask(CausalMask):
    """Keys up to the row's own position and at most `window` to its left (so window + 1 keys)."""

    def __init__(self, q_len, offset, key_limit, window):
        super().__init__(q_len, offset, key_limit)
        # Clamped so that row + offset - window cannot leave int32; -1 keeps "no key at all" for negative windows.
        self.window = cutlass.max(cutlass.min(window, Int32(NO_WINDOW)), Int32(-1))

    def lower(self, row):
        return cutlass.max(row + self.offset - self.window, Int32(0))


class VisionBlockMask(SlidingCausalMask):
    """Sliding causal, OR the row's own block ``begin <= key <= end`` (both inclusive; an empty interval is no block).

    `blocks` reads a row's interval; `hull` is the hull of the tile's block intervals, found by the caller, which knows
    its threads.
    """

    has_second_interval = True

    def __init__(self, q_len, offset, key_limit, window, blocks):
        super().__init__(q_len, offset, key_limit, window)
        self.blocks = blocks
        self.hull = None

    def second_interval(self, row):
        """Half-open key interval of the row's block, cut to [0, key_limit); empty as (0, 0)."""
        begin, end = self.blocks(row)
        begin = cutlass.max(begin, Int32(0))
        end = cutlass.min(end, self.key_limit - 1) + 1
        some = begin < end
        return select(some, begin, Int32(0)), select(some, end, Int32(0))

    def visited(self, first_row, rows):
        low, high = super().visited(first_row, rows)
        block_low, block_high = self.hull
        sliding_empty = low >= high
        block_empty = block_low >= block_high
        both_low = cutlass.min(low, block_low)
        both_high = cutlass.max(high, block_high)
        low = select(sliding_empty, block_low, select(block_empty, low, both_low))
        high = select(sliding_empty, block_high, select(block_empty, high, both_high))
        return low, high


def in_interval(key, low, high) -> Boolean:
    """low <= key < high, as one unsigned comparison (an empty interval must come as high <= low)."""
    width = cutlass.max(high - low, Int32(0))
    return cutlass.Uint32(key - low) < cutlass.Uint32(width)


def make_mask(kind: str, q_len, offset, key_limit, window=None, blocks=None):
    """The mask object of a manifest mask name.

    `offset` is kv_len - q_len; `key_limit` ends the keys that exist (kv_len, never past the memory).

    :param kind: ``causal``, ``sliding_causal``, ``padding``, ``bidirectional`` or ``vision_block``
    :raises ValueError: for another name
    """
    if kind in ("padding", "bidirectional"):
        return FullMask(q_len, offset, key_limit)
    if kind == "causal":
        return CausalMask(q_len, offset, key_limit)
    if kind == "sliding_causal":
        return SlidingCausalMask(q_len, offset, key_limit, window)
    if kind == "vision_block":
        return VisionBlockMask(q_len, offset, key_limit, window, blocks)
    raise ValueError(f"no mask named {kind!r}")
