# SPDX-License-Identifier: Apache-2.0
"""A consumer: one warpgroup that computes 64 query rows.

The softmax of one key tile runs on the ordinary units while the tensor cores already multiply: Q K^T of the next tile and
P V of the previous one are in flight together, and with several consumers one computes its softmax while another multiplies
(they take turns at issuing).

    S(0) = Q K(0);  P(0) = softmax S(0)
    for each further tile i:   issue S(i) = Q K(i);  issue O += P(i-1) V(i-1)
                               wait for S(i);  softmax S(i);  wait for O;  O *= correction;  P(i) = S(i)
    O += P(last) V(last)
"""
from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cutlass import Float16, Int32
from cutlass.cute.nvgpu import warpgroup

from ...plans.hopper_geometry import ROWS, WARPGROUP, Geometry
from ..masks import in_interval
from ..ops import Fixed, select
from ..softmax import NEG_INF
from .barriers import PRIVATE, TURN, Barriers
from .epilogue import Epilogue
from .softmax import LazySoftmax
from .tiles import Tiles, accumulate, by_row, flat
from .work import Board, Problem, Work


import os
VAR=os.environ.get("VAR","")


class Consumer(Fixed):
    """State of a consumer: operands in shared memory, accumulators in registers. `number` counts consumers from 0."""

    def __init__(self, geometry: Geometry, problem: Problem, storage, barriers: Barriers, board: Board, thread, number, scale_log2):
        g = geometry
        self.g = g
        self.problem = problem
        self.barriers = barriers
        self.board = board
        self.thread = thread
        self.number = number
        self.tiles = Tiles(g)
        self.score_mma, self.value_mma = self.tiles.score_mma(), self.tiles.value_mma()
        score, value = self.score_mma.get_slice(0), self.value_mma.get_slice(0)
        q = self.tiles.rows(storage + number * g.q_elements, ROWS, 1)
        k = self.tiles.rows(storage + g.k_offset, g.n, g.stages)
        v = self.tiles.columns(storage + g.v_offset, g.n, g.stages)
        self.v_rows = self.tiles.rows(storage + g.v_offset, g.n, g.stages)
        self.q = score.make_fragment_A(score.partition_A(q))[None, None, None, 0]
        self.k = score.make_fragment_B(score.partition_B(k))
        self.v = value.make_fragment_B(value.partition_B(v))
        self.s = score.make_fragment_C(score.partition_shape_C((ROWS, g.n)))
        self.p = value.make_fragment_A(value.partition_shape_A((ROWS, g.n)))
        self.o = value.make_fragment_C(value.partition_shape_C((ROWS, g.dim)))
        self.softmax = LazySoftmax(2, scale_log2)
        self.epilogue = Epilogue(g, thread)

    @cute.jit
    def run(self, block, blocks):
        k_position, v_position, q_position = Int32(0), Int32(0), Int32(0)
        q_ring = self.barriers.q
        self._give_first_turn()
        for _ in cutlass.range(self.problem.turns(block, blocks), unroll=1):
            self.softmax.reset()
            q_ring.wait_full(q_position)
            work = self.board.read(q_position)
            if work.count > 0:
                k_position, v_position = self._attend(work, self.problem.mask(work), k_position, v_position, q_position)
            else:
                self.o.fill(0.0)
                q_ring.release(q_position)
            self.epilogue.store(self.problem, self.board.read(q_position), self.number, self.o, self.softmax)
            q_position = q_position ^ 1

    @cute.jit
    def _attend(self, work: Work, mask, k_position, v_position, q_position):
        g, k_ring, v_ring = self.g, self.barriers.k, self.barriers.v
        tile = work.end - 1
        k_ring.wait_full(k_position)
        warpgroup.fence()
        accumulate(self.score_mma, self.s, self.q, self.k[None, None, None, k_ring.stage(k_position)], clear=True)
        warpgroup.commit_group()
        warpgroup.wait_group(0)
        k_ring.release(k_position)
        k_position = k_ring.next(k_position)
        self._mask(mask, tile, work.first_row)
        self.softmax.refresh(by_row(self.s))
        self.softmax.weigh(by_row(self.s))
        self._keep_probabilities()
        self.o.fill(0.0)
        if work.key_limit < work.end * g.n:
            v_ring.wait_full(v_position)
            self._clear_unused_values(v_ring.stage(v_position), work.key_limit - tile * g.n)
        if cutlass.const_expr("A" in VAR):
            if tile > work.begin:
                k_ring.wait_full(k_position)
        # Right of the whole tiles, the whole tiles, left of them.
        if cutlass.const_expr(self.problem.kind not in ("padding", "bidirectional")):
            right = tile - cutlass.max(cutlass.min(work.whole_end, tile), work.begin)
            for _ in cutlass.range(right, unroll=1):
                tile = tile - 1
                k_position, v_position = self._step(work, mask, tile, k_position, v_position, True)
        whole = tile - cutlass.max(cutlass.min(work.whole_begin, tile), work.begin)
        for _ in cutlass.range(whole, unroll=1):
            tile = tile - 1
            k_position, v_position = self._step(work, mask, tile, k_position, v_position, False)
        if cutlass.const_expr(self.problem.kind in ("sliding_causal", "vision_block")):
            for _ in cutlass.range(tile - work.begin, unroll=1):
                tile = tile - 1
                k_position, v_position = self._step(work, mask, tile, k_position, v_position, True)
        self.barriers.q.release(q_position)
        v_ring.wait_full(v_position)
        warpgroup.fence()
        accumulate(self.value_mma, self.o, self.p, self.v[None, None, None, v_ring.stage(v_position)], clear=False)
        warpgroup.commit_group()
        warpgroup.wait_group(0)
        v_ring.release(v_position)
        return k_position, v_ring.next(v_position)

    @cute.jit
    def _step(self, work: Work, mask, tile, k_position, v_position, masked: cutlass.Constexpr):
        k_ring, v_ring = self.barriers.k, self.barriers.v
        if cutlass.const_expr("A" not in VAR):
            k_ring.wait_full(k_position)
        self._wait_turn()
        warpgroup.fence()
        accumulate(self.score_mma, self.s, self.q, self.k[None, None, None, k_ring.stage(k_position)], clear=True)
        warpgroup.commit_group()
        v_ring.wait_full(v_position)
        warpgroup.fence()
        accumulate(self.value_mma, self.o, self.p, self.v[None, None, None, v_ring.stage(v_position)], clear=False)
        warpgroup.commit_group()
        self._pass_turn()
        warpgroup.wait_group(1)
        k_ring.release(k_position)
        if cutlass.const_expr(masked):
            self._mask(mask, tile, work.first_row)
        moved = self.softmax.refresh(by_row(self.s))
        self.softmax.weigh(by_row(self.s))
        if cutlass.const_expr("A" in VAR):
            if tile > work.begin:
                k_ring.wait_full(k_ring.next(k_position))
        warpgroup.wait_group(0)
        v_ring.release(v_position)
        self._keep_probabilities()
        if moved:
            self._correct()
        return k_ring.next(k_position), v_ring.next(v_position)

    def _correct(self):
        rows = by_row(self.o)
        for row in range(2):
            rows[row, None].store(rows[row, None].load() * self.softmax.correction[row])

    def _keep_probabilities(self):
        flat(self.p).store(flat(self.s).load().to(Float16))

    def _row(self, first_row, half: int):
        """Query row of this thread: 16 rows a warp, 4 threads a row, rows r and r + 8."""
        return first_row + self.number * ROWS + (self.thread // 32) * 16 + (self.thread % 32) // 4 + 8 * half

    def _mask(self, mask, tile, first_row):
        """Scores of keys that the row does not see become -inf."""
        scores = by_row(self.s)
        first = tile * self.g.n + 2 * (self.thread % 4)
        for half in range(2):
            row = self._row(first_row, half)
            low, high = mask.lower(row) - first, mask.upper(row) - first
            for pair in range(self.g.n // 8):
                for side in range(2):
                    column = 8 * pair + side
                    index = (half, (side, pair))
                    seen = Int32(column) < high
                    if self.problem.kind == "sliding_causal":
                        seen = seen & (Int32(column) >= low)
                    scores[index] = select(seen, scores[index], NEG_INF)

    @cute.jit
    def _clear_unused_values(self, stage, valid):
        """Zero the rows of V at or past `valid`: whatever lies there must not meet the zero probabilities (0 x NaN).

        Every consumer writes the same zeros for itself, so they need not wait for one another.
        """
        g = self.g
        unused = (g.n - valid) * g.dim
        for at in cutlass.range(self.thread, unused, WARPGROUP, unroll=1):
            self.v_rows[valid + at // g.dim, at % g.dim, stage] = Float16(0.0)
        cute.arch.fence_view_async_shared()
        cute.arch.barrier(barrier_id=PRIVATE + self.number, number_of_threads=WARPGROUP)

    # Consumers issue in turn: 0, 1, ..., 0. A barrier of two warpgroups hands the turn from one to the next.

    @cute.jit
    def _give_first_turn(self):
        if cutlass.const_expr(self.g.consumers > 1 and "T" not in VAR):
            if self.number == self.g.consumers - 1:
                cute.arch.barrier_arrive(barrier_id=TURN, number_of_threads=2 * WARPGROUP)

    @cute.jit
    def _wait_turn(self):
        if cutlass.const_expr(self.g.consumers > 1 and "T" not in VAR):
            cute.arch.barrier(barrier_id=TURN + self.number, number_of_threads=2 * WARPGROUP)

    @cute.jit
    def _pass_turn(self):
        if cutlass.const_expr(self.g.consumers > 1 and "T" not in VAR):
            following = select(self.number == self.g.consumers - 1, Int32(0), self.number + 1)
            cute.arch.barrier_arrive(barrier_id=TURN + following, number_of_threads=2 * WARPGROUP)
