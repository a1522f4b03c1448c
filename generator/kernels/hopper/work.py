# SPDX-License-Identifier: Apache-2.0
"""Which piece of the problem a block computes: the order of the query tiles, their lengths and their keys.

Tiles are numbered so that, within a *section* of heads, the longest come first and heads that share K and V stand beside each
other. A block walks over its tiles back and forth (0, 2n-1, 2n, ...): with tiles in falling order, all blocks get about the
same amount of work without talking to one another.
"""
from __future__ import annotations

from dataclasses import dataclass, fields
from types import SimpleNamespace
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from ...plans.hopper_geometry import NOTICE_WORDS, NOTICES, Geometry
from ..addressing import PAGE_TOKENS, _dense_rows, _length, _packed_rows, block_intervals
from ..masks import make_mask
from ..ops import Fixed, select

#: The notice that only the producer reads.
DRAFT = NOTICES - 1
#: K and V bytes of a section are at most this times the query heads per key head: a section is read once for each level of
#: query tiles, and then either L2 holds it or enough arithmetic stands against the traffic.
SECTION_BYTES = 32 << 20


@dataclass
class Work(Fixed):
    """A query tile of one (batch, head), its sequence's lengths (as in `Sequence`) and the key tiles that it visits.

    q_start: first row of the sequence in a packed Q and O, else 0. Key tiles [begin, end) are visited, from the last to the
    first; those in [whole_begin, whole_end) need no mask. A key tile is one step of the consumers.
    """

    batch: Any
    head: Any
    q_start: Any
    first_row: Any
    q_len: Any
    offset: Any
    key_limit: Any
    rows: Any
    begin: Any
    end: Any
    whole_begin: Any
    whole_end: Any
    k_page: Any
    v_page: Any

    @property
    def count(self):
        """Key tiles to visit; 0 or less for none."""
        return self.end - self.begin


class Board(Fixed):
    """Where the producer writes down what the next query tile is, so that the consumers need not find out themselves.

    A notice is ready when the tile's Q is, and stays until the Q after next is asked for; DRAFT is the producer's own.
    """

    def __init__(self, pointer):
        self.slots = cute.make_tensor(pointer, cute.make_layout((NOTICE_WORDS, NOTICES)))

    def write(self, work: Work, slot):
        for word, field in enumerate(fields(Work)):
            self.slots[word, slot] = Int32(getattr(work, field.name))

    def read(self, slot) -> Work:
        return Work(*(self.slots[word, slot] for word in range(len(fields(Work)))))


class Problem(Fixed):
    """The problem as a list of tiles; `a` holds the kernel's arguments by name."""

    def __init__(self, operation: str, mask: str, geometry: Geometry, a: SimpleNamespace):
        self.operation = operation
        self.kind = mask
        self.g = geometry
        self.a = a
        extent = {"vit": "max_seqlen", "paged_ragged": "max_seqlen_q"}.get(operation, "seqlen_q")
        self.row_tiles = (getattr(a, extent) + (geometry.m - 1)) // geometry.m
        self.group = a.num_q_heads // a.num_kv_heads

    @property
    def packed(self) -> bool:
        return self.operation in ("vit", "paged_ragged")

    @property
    def paged(self) -> bool:
        return self.operation.startswith("paged")

    @property
    def tiles(self):
        return self.row_tiles * self.a.num_q_heads * self.a.batch

    def turns(self, block, blocks):
        """How many tiles a block computes."""
        rounds = self.tiles // blocks
        left = self.tiles - rounds * blocks
        return select(self._column(rounds, block, blocks) < left, rounds + 1, rounds)

    def index(self, turn, block, blocks):
        """The tile of a block's turn."""
        return turn * blocks + self._column(turn, block, blocks)

    def _column(self, turn, block, blocks):
        return select(turn % 2 == 0, block, blocks - 1 - block)

    def _section(self):
        """Query heads (over all batch entries) that are worked on together."""
        if self.kind not in ("causal", "vision_block"):
            return self.group
        a = self.a
        keys = a.max_pages * PAGE_TOKENS if self.paged else a.seqlen_kv
        fitting = Int32(SECTION_BYTES // (4 * self.g.head_dim)) // cutlass.max(keys, Int32(1))
        return self.group * cutlass.max(fitting * self.group, Int32(1))

    def _place(self, index):
        """(row tile, head, batch) of a tile number."""
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

    def _lengths(self, batch):
        """(q_start, q_len, offset, key_limit, rows) of a batch entry."""
        a, zero = self.a, Int32(0)
        if self.operation == "vit":
            start, length = _length(a.cu_seqlens, batch)
            return start, length, zero, length, length
        _, kv_len = _length(a.cu_kv_seqlens, batch)
        limit = cutlass.min(kv_len, a.max_pages * PAGE_TOKENS if self.paged else a.seqlen_kv)
        if self.operation == "paged_ragged":
            start, q_len = _length(a.cu_q_seqlens, batch)
            return start, q_len, kv_len - q_len, limit, q_len
        # Without query lengths every physical row is a valid row.
        q_len = a.seqlen_q
        if self.operation in ("paged", "padding"):
            _, q_len = _length(a.cu_q_seqlens, batch)
        return zero, cutlass.min(q_len, a.seqlen_q), kv_len - q_len, limit, a.seqlen_q

    def work(self, index, lane) -> Work:
        """The work of tile `index` in [0, tiles); by all lanes of a warp."""
        row_tile, head, batch = self._place(index)
        rows, step = self.g.m, self.g.step
        first_row = row_tile * rows
        lengths = self._lengths(batch)
        work = Work(batch, head, lengths[0], first_row, *lengths[1:], *(Int32(0) for _ in range(6)))
        mask = self.mask(work)
        if mask.has_second_interval:
            mask.hull = warp_hull(mask.second_interval, first_row, rows, work.q_len, lane)
        low, high = mask.visited(first_row, rows)
        whole_low, whole_high = mask.unmasked(first_row, rows)
        work.begin, work.end = low // step, (high + (step - 1)) // step
        work.whole_begin, work.whole_end = (whole_low + (step - 1)) // step, cutlass.max(whole_high, Int32(0)) // step
        return work

    def mask(self, work: Work):
        blocks = block_intervals(self.a, work.batch) if self.kind == "vision_block" else None
        return make_mask(self.kind, work.q_len, work.offset, work.key_limit, getattr(self.a, "window_size_left", None), blocks)

    def output(self, work: Work):
        """Rows of O of this head."""
        a, d = self.a, self.g.head_dim
        if self.packed:
            return _packed_rows(a.o, a.o_stride_seq, work.q_start, work.head, d)
        return _dense_rows(a.o, a.o_stride_batch, a.o_stride_seq, work.batch, work.head, d)


def warp_hull(intervals, first_row, rows: int, q_len, lane):
    """Hull (low, high) of the key intervals of the rows [first_row, first_row + rows) below q_len; high <= low when all are empty."""
    low, high = Int32(0x7FFFFFFF), Int32(0)
    for start in range(0, rows, 32):
        row = first_row + start + lane
        row_low, row_high = intervals(row)
        counts = (row < q_len) & (row_low < row_high)
        low = select(counts, cutlass.min(low, row_low), low)
        high = select(counts, cutlass.max(high, row_high), high)
    for distance in (16, 8, 4, 2, 1):
        low = cutlass.min(low, cute.arch.shuffle_sync_bfly(low, offset=distance))
        high = cutlass.max(high, cute.arch.shuffle_sync_bfly(high, offset=distance))
    return low, high
