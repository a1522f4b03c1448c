# SPDX-License-Identifier: Apache-2.0
"""Which piece of the problem a block computes: the order of the query tiles, their lengths and their keys.

Tiles are numbered so that, within a *section* of heads, the longest come first and heads that share K and V stand beside each
other. A section is dealt out back and forth (to a block: 0, 2n-1, 2n, ...): with tiles in falling order, all blocks get about the
same amount of work without talking to one another.
"""
from __future__ import annotations

from dataclasses import dataclass, fields
from types import SimpleNamespace
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from ...plans.hopper_geometry import NOTICE_WORDS, Geometry
from ..addressing import PAGE_TOKENS, _dense_rows, _length, _packed_rows, block_intervals
from ..masks import make_mask
from ..ops import Fixed, select

#: K and V bytes of a section are at most this times the query heads per key head: a section is read once for each level of
#: query tiles, and then either L2 holds it or enough arithmetic stands against the traffic.
SECTION_BYTES = 32 << 20
#: A section has at least so many tiles for every block: fewer can't be dealt out evenly.
SECTION_TURNS = 4


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

    Its slots are the positions of the Q ring, twice as many as it has buffers. So a notice, ready when the tile's Q is, stays while consumers
    still store the tile although its Q has made room for a later one. One more slot, `draft`, is the producer's own.
    """

    def __init__(self, pointer, notices: int):
        self.slots = cute.make_tensor(pointer, cute.make_layout((NOTICE_WORDS, notices)))
        self.draft = notices - 1

    def write(self, work: Work, slot):
        for word, field in enumerate(fields(Work)):
            self.slots[word, slot] = Int32(getattr(work, field.name))

    def read(self, slot) -> Work:
        return Work(*(self.slots[word, slot] for word in range(len(fields(Work)))))


class Problem(Fixed):
    """The problem as a list of tiles, and this block's share of them; `a` holds the kernel's arguments by name."""

    def __init__(self, operation: str, mask: str, geometry: Geometry, a: SimpleNamespace, block, blocks):
        self.operation = operation
        self.kind = mask
        self.g = geometry
        self.a = a
        self.block = block
        self.blocks = blocks
        extent = {"vit": "max_seqlen", "paged_ragged": "max_seqlen_q"}.get(operation, "seqlen_q")
        self.row_tiles = (getattr(a, extent) + (geometry.m - 1)) // geometry.m
        self.group = a.num_q_heads // a.num_kv_heads
        self.section = self._section()
        self.per_section = self.section * self.row_tiles
        if self._uneven:
            self.forward, self.backward = self._share(self.per_section, 0), self._share(self.per_section, 1)

    @property
    def packed(self) -> bool:
        return self.operation in ("vit", "paged_ragged")

    @property
    def paged(self) -> bool:
        return self.operation.startswith("paged")

    @property
    def tiles(self):
        return self.row_tiles * self.a.num_q_heads * self.a.batch

    @property
    def _uneven(self) -> bool:
        """Whether tiles differ in length by far, so that their order decides how evenly the blocks are loaded."""
        return self.kind in ("causal", "vision_block")

    def turns(self):
        """How many tiles this block computes."""
        if not self._uneven:
            return self._share(self.tiles, 0)
        whole = self.tiles // self.per_section
        odd = whole & 1
        return whole // 2 * (self.forward + self.backward) + odd * self.forward + self._share(self.tiles - whole * self.per_section, odd)

    def start(self):
        """(section, turn in the section) of this block's first tile. Even problems are one section as far as turns go."""
        return Int32(0), Int32(0)

    def following(self, section, turn):
        """The section and turn after these. No division: a producer works this out while short tiles pass by."""
        if not self._uneven:
            return section, turn + 1
        over = turn + 1 >= select(section & 1 == 0, self.forward, self.backward)
        return select(over, section + 1, section), select(over, Int32(0), turn + 1)

    def _share(self, count, odd):
        """How many of `count` tiles this block gets."""
        rounds = count // self.blocks
        left = count - rounds * self.blocks
        return select(self._column(rounds, odd) < left, rounds + 1, rounds)

    def _dealt(self, turn, odd):
        """Which one it gets in a turn: there and back again, the other way round in an odd section."""
        return turn * self.blocks + self._column(turn, odd)

    def _column(self, turn, odd):
        return select((turn + odd) & 1 == 0, self.block, self.blocks - 1 - self.block)

    def _section(self):
        """Query heads (over all batch entries) that are worked on together: those whose K and V fit into L2, but enough for some turns."""
        if not self._uneven:
            return self.group
        a = self.a
        heads = a.num_q_heads * a.batch
        keys = a.max_pages * PAGE_TOKENS if self.paged else a.seqlen_kv
        fitting = Int32(SECTION_BYTES // (4 * self.g.head_dim)) // cutlass.max(keys, Int32(1))
        least = (SECTION_TURNS * self.blocks + (self.row_tiles - 1)) // self.row_tiles
        wanted = cutlass.max(self.group * cutlass.max(fitting * self.group, Int32(1)), least)
        sections = cutlass.max(heads // wanted, Int32(1))
        evenly = (heads + (sections - 1)) // sections
        return cutlass.min((evenly + (self.group - 1)) // self.group * self.group, heads)

    def place(self, section, turn):
        """(row tile, head, batch) of this block's tile. Each section is dealt out by itself, every other one from the last block on."""
        a = self.a
        if self._uneven:
            within = self._dealt(turn, section & 1)
        else:
            index = self._dealt(turn, 0)
            section = index // self.per_section
            within = index - section * self.per_section
        first_head = section * self.section
        width = cutlass.min(self.section, a.num_q_heads * a.batch - first_head)
        level = within // width
        flat_head = first_head + (within - level * width)
        batch = flat_head // a.num_q_heads
        return self.row_tiles - 1 - level, flat_head - batch * a.num_q_heads, batch

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

    def work(self, section, turn, lane) -> Work:
        """The work of this block's tile; by all lanes of a warp."""
        row_tile, head, batch = self.place(section, turn)
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
