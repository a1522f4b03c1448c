# SPDX-License-Identifier: Apache-2.0
"""Which piece of the problem a block computes: the order of the query tiles, their lengths, keys and places in memory.

Blocks take tiles from a single index, the longest first within a *section* of heads whose K and V fit into the L2 cache
together, so that the last blocks to finish are the short ones and heads that share K and V run beside each other.
"""
from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64

from ...plans.hopper_geometry import ROWS, Geometry
from ..addressing import PAGE_TOKENS, _dense_rows, _length, _packed_rows, block_intervals
from ..masks import make_mask
from ..ops import Fixed

#: Bytes of K and V that a section of heads may take; well under the 50 MB of L2.
SECTION_BYTES = 24 << 20


@dataclass
class Lengths(Fixed):
    """q_start, k_start: first row of the sequence in packed layouts, else 0. rows: rows of O that exist (see `Sequence`)."""

    q_start: Any
    q_len: Any
    k_start: Any
    kv_len: Any
    key_limit: Any
    rows: Any


def lengths(operation: str, a: SimpleNamespace, batch) -> Lengths:
    """The lengths of a batch entry from an operation's kernel arguments."""
    zero = Int32(0)
    if operation == "vit":
        start, length = _length(a.cu_seqlens, batch)
        return Lengths(start, length, start, length, length, length)
    _, kv_len = _length(a.cu_kv_seqlens, batch)
    limit = cutlass.min(kv_len, a.max_pages * PAGE_TOKENS) if operation.startswith("paged") else kv_len
    if operation == "paged_ragged":
        start, q_len = _length(a.cu_q_seqlens, batch)
        return Lengths(start, q_len, zero, kv_len, limit, q_len)
    q_len = a.seqlen_q
    if operation in ("paged", "padding"):
        _, q_len = _length(a.cu_q_seqlens, batch)
        q_len = cutlass.min(q_len, a.seqlen_q)
    return Lengths(zero, q_len, zero, kv_len, limit, a.seqlen_q)


@dataclass
class Work(Fixed):
    """A query tile of one (batch, head) and the key tiles it visits, walked from the last to the first.

    Key tiles [begin, end) are visited; those in [whole_begin, whole_end) need no mask.
    """

    batch: Any
    head: Any
    kv_head: Any
    first_row: Any
    lengths: Lengths
    mask: Any
    begin: Any
    end: Any
    whole_begin: Any
    whole_end: Any

    @property
    def count(self):
        """Key tiles to visit; 0 or less for none."""
        return self.end - self.begin


class Problem(Fixed):
    """The problem as a list of tiles; `a` holds the kernel's arguments by name."""

    def __init__(self, operation: str, mask: str, geometry: Geometry, a: SimpleNamespace):
        self.operation = operation
        self.mask = mask
        self.g = geometry
        self.a = a
        extent = {"vit": "max_seqlen", "paged_ragged": "max_seqlen_q"}.get(operation, "seqlen_q")
        self.row_tiles = (getattr(a, extent) + (geometry.m - 1)) // geometry.m
        self.group = a.num_q_heads // a.num_kv_heads

    @property
    def tiles(self):
        return self.row_tiles * self.a.num_q_heads * self.a.batch

    def _section(self):
        """Heads (over all batch entries) that are worked on together."""
        a = self.a
        keys = {"vit": "max_seqlen"}.get(self.operation, "seqlen_kv")
        keys = getattr(a, keys) if hasattr(a, keys) else a.max_pages * PAGE_TOKENS
        per_head = 4 * self.g.dim * 1
        fitting = Int32(SECTION_BYTES // per_head) // cutlass.max(keys, Int32(1))
        return self.group * cutlass.max(fitting, Int32(1))

    def _place(self, index):
        """(row tile, head, batch) of a tile index."""
        a = self.a
        heads = a.num_q_heads * a.batch
        section = cutlass.min(self._section(), heads)
        per_section = section * self.row_tiles
        first_head = index // per_section * section
        within = index % per_section
        width = cutlass.min(section, heads - first_head)
        flat_head = first_head + within % width
        row_tile = self.row_tiles - 1 - within // width
        return row_tile, flat_head % a.num_q_heads, flat_head // a.num_q_heads

    def work(self, index) -> Work:
        """The work of tile `index` in [0, tiles)."""
        row_tile, head, batch = self._place(index)
        found = lengths(self.operation, self.a, batch)
        window = getattr(self.a, "window_size_left", None)
        mask = make_mask(self.mask, found.q_len, found.kv_len, window)
        first_row = row_tile * self.g.m
        low, high = mask.visited(first_row, self.g.m)
        high = cutlass.min(high, found.key_limit)
        whole_low, whole_high = mask.unmasked(first_row, self.g.m)
        n = self.g.n
        begin = low // n
        end = (high + (n - 1)) // n
        whole_end = cutlass.max(whole_high, Int32(0)) // n
        whole_begin = (whole_low + (n - 1)) // n
        return Work(batch, head, head // self.group, first_row, found, mask, begin, end, whole_begin, whole_end)

    def output(self, work: Work):
        """Rows of O of this head."""
        a, d = self.a, self.g.head_dim
        if self.operation in ("vit", "paged_ragged"):
            return _packed_rows(a.o, a.o_stride_seq, work.lengths.q_start, work.head, d)
        return _dense_rows(a.o, a.o_stride_batch, a.o_stride_seq, work.batch, work.head, d)
