# SPDX-License-Identifier: Apache-2.0
"""The producer: one warp that keeps TMA busy, in the order in which the consumers need Q, K and V.

    K(0) Q   K(1) V(0)   K(2) V(1)   ...   [K(0) Q of the next query tile]   V(last)

A load waits until consumers have released what was in its buffer. They do that after multiplications which need nothing that comes later in
this order, so nobody waits without end, however few buffers there are.
"""
from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64
from cutlass.experimental import primitives

from ...plans.hopper_geometry import BOX, ELEMENT_BYTES, ROWS, Geometry
from ..addressing import PAGE_TOKENS
from ..ops import Fixed
from .barriers import Barriers
from .work import Board, Problem, Work


class Producer(Fixed):
    """Runs in one warp of the producer warpgroup. `maps` holds the tensor maps q, k and v."""

    def __init__(self, geometry: Geometry, problem: Problem, maps, storage, barriers: Barriers, board: Board, lane):
        self.g = geometry
        self.problem = problem
        self.maps = maps
        self.storage = storage
        self.barriers = barriers
        self.board = board
        self.lane = lane

    @cute.jit
    def run(self):
        k_position, v_position, q_position = Int32(0), Int32(0), Int32(0)
        turns = self.problem.turns()
        section, place = self.problem.start()
        begun = Int32(0)
        self._draft(section, place)
        for turn in cutlass.range(turns, unroll=1):
            work = self.board.read(self.board.draft)
            more = turn + 1 < turns
            if more:
                section, place = self.problem.following(section, place)
            if work.count > 0:
                v_page = work.v_page
                if begun == 0:
                    k_position = self._begin(work, k_position, q_position)
                for done in cutlass.range(work.count - 1, unroll=1):
                    step = work.end - 2 - done
                    k_position = self._keys(work, step, self._page(work, step, 0), k_position)
                    v_position = self._values(work, step + 1, v_page, v_position)
                    v_page = self._page(work, step, 1)
                # Finding out about the next tile takes a while: do it while the ring is full anyway.
                begun = Int32(0)
                if more:
                    k_position, begun = self._prepare(section, place, k_position, self.barriers.q.next(q_position))
                v_position = self._values(work, work.begin, v_page, v_position)
            else:
                self.barriers.q.wait_empty(q_position)
                with cute.arch.elect_one():
                    self.board.write(work, q_position)
                    self.barriers.q.announce(q_position)
                begun = Int32(0)
                if more:
                    self._draft(section, place)
            q_position = self.barriers.q.next(q_position)

    @cute.jit
    def _prepare(self, section, turn, k_position, q_position):
        """Find out what the next query tile is, and begin it if its Q has a buffer of its own; returns the position in the K ring, and 1 if begun."""
        self._draft(section, turn)
        begun = Int32(0)
        if cutlass.const_expr(self.g.q_stages > 1):
            work = self.board.read(self.board.draft)
            if work.count > 0:
                begun = Int32(1)
                k_position = self._begin(work, k_position, q_position)
        return k_position, begun

    def _begin(self, work: Work, k_position, q_position):
        """The first keys and the queries of a query tile."""
        k_position = self._keys(work, work.end - 1, work.k_page, k_position)
        self._queries(work, q_position)
        return k_position

    @cute.jit
    def _draft(self, section, turn):
        """Write down the work of a turn for this warp itself, with the pages that it starts with."""
        work = self.problem.work(section, turn, self.lane)
        k_page, v_page = Int32(0), Int32(0)
        if work.count > 0:
            k_page, v_page = self._page(work, work.end - 1, 0), self._page(work, work.end - 1, 1)
        work.k_page, work.v_page = k_page, v_page
        cute.arch.sync_warp()
        with cute.arch.elect_one():
            self.board.write(work, self.board.draft)
        cute.arch.sync_warp()

    def _queries(self, work: Work, position):
        """The query tile and its notice."""
        g, ring = self.g, self.barriers.q
        ring.wait_empty(position)
        with cute.arch.elect_one():
            self.board.write(work, position)
            ring.expect(position, ELEMENT_BYTES * g.row_groups * g.q_elements)
            for group in range(g.row_groups):
                place = self._place(work.q_start, work.first_row + group * ROWS, work.head, work.batch, self.problem.packed)
                tile = ring.stage(position) * g.row_groups + group
                self._load(self.maps.q, tile * g.q_elements, ROWS, place, ring.full(position))

    def _keys(self, work: Work, step, page, position):
        return self._step(work, step, page, self.maps.k, self.g.k_offset, self.barriers.k, position)

    def _values(self, work: Work, step, page, position):
        return self._step(work, step, page, self.maps.v, self.g.v_offset, self.barriers.v, position)

    def _step(self, work: Work, step, page, tensor_map, offset: int, ring, position):
        """Load the tiles of a step of K or V, from `page` of the pool if there is one; returns the ring's next position."""
        g, packed = self.g, self.problem.packed
        kv_head = work.head // self.problem.group
        for tile in range(g.columns):
            first_key = step * g.step + tile * g.n
            if self.problem.paged:
                place = self._place(0, first_key % PAGE_TOKENS, kv_head, page, False)
            else:
                place = self._place(work.q_start if packed else 0, first_key, kv_head, work.batch, packed)
            ring.wait_empty(position)
            with cute.arch.elect_one():
                ring.expect(position, ELEMENT_BYTES * g.kv_elements)
                self._load(tensor_map, offset + ring.stage(position) * g.kv_elements, g.n, place, ring.full(position))
            position = ring.next(position)
        return position

    def _page(self, work: Work, step, plane: int):
        """Page of the pool that holds the keys (plane 0) or values (plane 1) of a step; 0 without a pool.

        Asked for a step ahead where that is possible: the answer comes from global memory.
        """
        if not self.problem.paged:
            return Int32(0)
        a = self.problem.a
        entry = Int64(work.batch) * a.page_list_stride_batch + Int64(step * self.g.step // PAGE_TOKENS)
        if plane:
            entry = entry + a.page_list_stride_plane
        return cute.make_tensor(a.page_list + entry, cute.make_layout(1))[0]

    def _place(self, start, row, head, batch, packed: bool):
        """Coordinates of a row in a tensor map after the column: (token, head[, batch or page])."""
        return [start + row, head] if packed else [row, head, batch]

    def _load(self, tensor_map, offset, rows: int, place, barrier):
        """All boxes of a tile."""
        for box in range(self.g.boxes):
            primitives.cp_async_bulk_tensor_shared_cta_global(
                self.storage + (offset + box * (rows * BOX)),
                tensor_map.get_ptr(), [Int32(box * BOX), *place], barrier,
            )
