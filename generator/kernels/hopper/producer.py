# SPDX-License-Identifier: Apache-2.0
"""The producer: one thread that keeps TMA busy, in the order in which the consumers need Q, K and V."""
from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64
from cutlass.experimental import primitives

from ...plans.hopper_geometry import ELEMENT_BYTES, ROWS, Geometry
from ..addressing import PAGE_TOKENS
from ..ops import Fixed
from .barriers import Barriers
from .work import Problem, Work


class Loader(Fixed):
    """Copies tiles from the tensors behind the maps into shared memory."""

    def __init__(self, geometry: Geometry, operation: str, maps, storage):
        self.g = geometry
        self.operation = operation
        self.maps = maps
        self.storage = storage

    def _load(self, tensor_map, offset, rows: int, place, barrier):
        """All boxes of a tile; `place` gives the coordinates of a box from its first column."""
        for box in range(self.g.boxes):
            primitives.cp_async_bulk_tensor_shared_cta_global(
                self.storage + (offset + box * (rows * self.g.box)), tensor_map.get_ptr(), place(box * self.g.box), barrier
            )

    def _place(self, start, row, head, batch):
        """Coordinates in a dense or packed tensor: (column, token, head[, batch])."""
        if self.operation in ("vit", "paged_ragged"):
            return lambda column: [Int32(column), start + row, head]
        return lambda column: [Int32(column), row, head, batch]

    def q(self, work: Work, consumer: int, ring):
        row = work.first_row + consumer * ROWS
        place = self._place(work.lengths.q_start, row, work.head, work.batch)
        self._load(self.maps.q, Int32(consumer * self.g.q_elements), ROWS, place, ring.full(Int32(0)))

    def keys(self, work: Work, tile, page, tensor_map, offset, ring, position):
        """The K or V tile number `tile`; `page` holds it where the keys are paged."""
        first_key = tile * self.g.n
        if self.operation.startswith("paged"):
            place = lambda column: [Int32(column), first_key % PAGE_TOKENS, work.kv_head, page]  # noqa: E731
        else:
            place = self._place(work.lengths.k_start, first_key, work.kv_head, work.batch)
        stage = offset + ring.stage(position) * self.g.kv_elements
        self._load(tensor_map, stage, self.g.n, place, ring.full(position))


class Producer(Fixed):
    """Runs in one thread of the producer warpgroup."""

    def __init__(self, geometry: Geometry, problem: Problem, loader: Loader, barriers: Barriers):
        self.g = geometry
        self.problem = problem
        self.loader = loader
        self.barriers = barriers
        self.paged = problem.operation.startswith("paged")

    @cute.jit
    def run(self, first, step):
        k_position, v_position, q_position = Int32(0), Int32(0), Int32(0)
        for index in cutlass.range(first, self.problem.tiles, step, unroll=1):
            work = self.problem.work(index)
            if work.count > 0:
                k_position = self._keys(work, work.end - 1, 0, k_position)
                self._queries(work, q_position)
                q_position = q_position ^ 1
                for done in cutlass.range(work.count - 1, unroll=1):
                    tile = work.end - 2 - done
                    k_position = self._keys(work, tile, 0, k_position)
                    v_position = self._keys(work, tile + 1, 1, v_position)
                v_position = self._keys(work, work.begin, 1, v_position)

    def _queries(self, work: Work, position):
        for consumer in range(self.g.consumers):
            ring = self.barriers.q[consumer]
            ring.wait_empty(position)
            ring.expect(Int32(0), ELEMENT_BYTES * self.g.q_elements)
            self.loader.q(work, consumer, ring)

    def _keys(self, work: Work, tile, plane: int, position):
        """Load tile number `tile` of K (plane 0) or V (plane 1); returns the ring's next position."""
        page = self._page(work, tile, plane) if self.paged else None
        ring = (self.barriers.k, self.barriers.v)[plane]
        ring.wait_empty(position)
        ring.expect(position, ELEMENT_BYTES * self.g.kv_elements)
        offset = (self.g.k_offset, self.g.v_offset)[plane]
        tensor_map = (self.loader.maps.k, self.loader.maps.v)[plane]
        self.loader.keys(work, tile, page, tensor_map, offset, ring, position)
        return ring.next(position)

    def _page(self, work: Work, tile, plane: int):
        a = self.problem.a
        entry = Int64(work.batch) * a.page_list_stride_batch + Int64(tile * self.g.n // PAGE_TOKENS)
        if plane:
            entry = entry + a.page_list_stride_plane
        return cute.make_tensor(a.page_list + entry, cute.make_layout(1))[0]
