# SPDX-License-Identifier: Apache-2.0
"""A consumer: one warpgroup that computes 64 query rows.

The softmax of one key tile runs on the ordinary units while the tensor cores already multiply: Q K^T of the next tile and
P V of the previous one are in flight together, and with several consumers one computes its softmax while another multiplies
(they take turns at issuing).

    S(0) = Q K(0);  P(0) = softmax S(0)
    for each further tile i:   issue S(i) = Q K(i);  issue O += P(i-1) V(i-1)
                               wait for S(i);  softmax S(i);  wait for O;  correct O if the reference moved;  P(i) = S(i)
    O += P(last) V(last)

With two Q buffers the next query tile begins where this one ends, as if its first key tile were one more of this one's:

                               issue S(0) of the next;  issue O += P(last) V(last)
                               wait for S(0);  softmax S(0) as that of new rows;  wait for O;  P(0) = S(0);  store O
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
from .barriers import PRIVATE, Barriers, give_turn, wait_turn
from .epilogue import Epilogue
from .softmax import LazySoftmax
from .tiles import Tiles, accumulate, by_row, flat
from .work import Board, Problem, Work


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
        q = self.tiles.rows(storage + self.row_group * g.q_elements, ROWS, g.q_stages, g.row_groups * g.q_elements)
        k = self.tiles.rows(storage + g.k_offset, g.n, g.stages)
        v = self.tiles.columns(storage + g.v_offset, g.n, g.stages, self.column_group * (g.n * g.width // g.columns))
        self.v_rows = self.tiles.rows(storage + g.v_offset, g.n, g.stages)
        self.q = score.make_fragment_A(score.partition_A(q))
        self.k = score.make_fragment_B(score.partition_B(k))
        stored = self.tiles.stored_value_mma().get_slice(0)
        self.v = stored.make_fragment_B(stored.partition_B(v))
        self.s = score.make_fragment_C(score.partition_shape_C((ROWS, g.n)))
        self.p = value.make_fragment_A(value.partition_shape_A((ROWS, g.n)))
        self.o = value.make_fragment_C(value.partition_shape_C((ROWS, g.value_dim)))
        self.softmax = self._make_softmax(scale_log2)
        self.epilogue = Epilogue(g, thread)

    # What a consumer that shares its rows does differently (see split.py).

    @property
    def row_group(self):
        """Which 64 rows of the block's tile are this consumer's."""
        return self.number

    @property
    def column_group(self):
        """Which of O's columns, and which tile of a step's keys, are this consumer's."""
        return 0

    def _make_softmax(self, scale_log2):
        return LazySoftmax(2, scale_log2)

    def _first_k(self):
        """Position in the K ring of this consumer's first tile."""
        return Int32(0)

    def _next_k(self, position):
        return self.barriers.k.next(position)

    def _next_v(self, position):
        return self.barriers.v.next(position)

    def _issue_values(self, position):
        """Issue O += P V for the step whose V starts at `position`; the caller commits."""
        self._multiply_values(self.value_mma, self.p, position)

    def _release_values(self, position):
        self.barriers.v.release(position)

    @cute.jit
    def run(self):
        k_position, v_position, q_position = self._first_k(), Int32(0), Int32(0)
        ring, turns = self.barriers.q, self.problem.turns()
        begun = Int32(0)
        self.softmax.reset()
        for turn in cutlass.range(turns, unroll=1):
            ring.wait_full(q_position)
            work, following = self.board.read(q_position), ring.next(q_position)
            if work.count > 0:
                rules = self._rules(work)
                if begun == 0:
                    k_position = self._first(work, rules, k_position, q_position)
                k_position, v_position = self._attend(work, rules, k_position, v_position, q_position)
                ring.release(q_position)
                begun = self._followed(turn + 1 < turns, following)
                if begun != 0:
                    k_position = self._change(self.board.read(following), k_position, v_position, following)
                else:
                    self._finish(v_position)
                v_position = self._next_v(v_position)
            else:
                begun = Int32(0)
                self.o.fill(0.0)
                self.softmax.finish()
                ring.release(q_position)
            self._store(self.board.read(q_position))
            q_position = following

    def _store(self, work: Work):
        self.epilogue.store(self.problem, work, self._row(work.first_row, 0), self.column_group, self.o, self.softmax.inverse)

    def _rules(self, work: Work):
        """Which keys the rows of a query tile see: the mask, and the second interval of this thread's rows if the mask has one."""
        mask = self.problem.mask(work)
        return mask, [mask.second_interval(self._row(work.first_row, half)) for half in range(2)] if mask.has_second_interval else None

    @cute.jit
    def _followed(self, more, position):
        """1 if the next query tile, at `position` of the Q ring, is to begin while this one ends, else 0."""
        followed = Int32(0)
        if cutlass.const_expr(self.g.q_stages > 1):
            if more:
                self.barriers.q.wait_full(position)
                followed = select(self.board.read(position).count > 0, Int32(1), Int32(0))
        return followed

    @cute.jit
    def _attend(self, work: Work, rules, k_position, v_position, q_position):
        """All key tiles of a query tile but the first, which is done; the last one's values are left over."""
        self.o.fill(0.0)
        step = work.end - 1
        if work.key_limit < work.end * self.g.step:
            position = v_position
            for tile in cutlass.range_constexpr(self.g.columns):
                self._clear_unused_values(position, work.key_limit - (step * self.g.step + tile * self.g.n))
                position = self.barriers.v.next(position)
        # Right of the whole tiles, the whole tiles, left of them.
        if cutlass.const_expr(self.problem.kind not in ("padding", "bidirectional")):
            right = step - cutlass.max(cutlass.min(work.whole_end, step), work.begin)
            for _ in cutlass.range(right, unroll=1):
                step = step - 1
                k_position, v_position = self._step(work, rules, step, k_position, v_position, q_position, True)
        whole = step - cutlass.max(cutlass.min(work.whole_begin, step), work.begin)
        for _ in cutlass.range(whole, unroll=1):
            step = step - 1
            k_position, v_position = self._step(work, rules, step, k_position, v_position, q_position, False)
        if cutlass.const_expr(self.problem.kind in ("sliding_causal", "vision_block")):
            for _ in cutlass.range(step - work.begin, unroll=1):
                step = step - 1
                k_position, v_position = self._step(work, rules, step, k_position, v_position, q_position, True)
        return k_position, v_position

    @cute.jit
    def _first(self, work: Work, rules, k_position, q_position):
        """The first key tile of a query tile that begins by itself."""
        self.barriers.k.wait_full(k_position)
        self._issue_scores(k_position, q_position)
        warpgroup.wait_group(0)
        self.barriers.k.release(k_position)
        self._weigh_first(work, rules)
        self._keep_probabilities(k_position)
        return self._next_k(k_position)

    def _weigh_first(self, work: Work, rules):
        """Scores of a query tile's first key tile, which holds the end of the keys, to probabilities."""
        self._mask(rules, work.end - 1, work.first_row)
        self.softmax.refresh(by_row(self.s))
        self.softmax.weigh(by_row(self.s))

    @cute.jit
    def _step(self, work: Work, rules, step, k_position, v_position, q_position, masked: cutlass.Constexpr):
        """A further key tile, with the previous one's values."""
        self._issue(k_position, v_position, q_position)
        if cutlass.const_expr(masked):
            self._mask(rules, step, work.first_row)
        moved = self.softmax.refresh(by_row(self.s))
        self.softmax.weigh(by_row(self.s))
        warpgroup.wait_group(0)
        self._release_values(v_position)
        self._keep_probabilities(k_position)
        if moved:
            self._correct()
        return self._next_k(k_position), self._next_v(v_position)

    @cute.jit
    def _change(self, work: Work, k_position, v_position, q_position):
        """The first key tile of the next query tile, `work`, with this one's last values: leaves O and `inverse` of this one, P of the next."""
        self._issue(k_position, v_position, q_position)
        self.softmax.finish()
        self._weigh_first(work, self._rules(work))
        warpgroup.wait_group(0)
        self._release_values(v_position)
        self._keep_probabilities(k_position)
        return self._next_k(k_position)

    @cute.jit
    def _finish(self, v_position):
        """The last values of a query tile by themselves."""
        self._issue_values(v_position)
        warpgroup.commit_group()
        self.softmax.finish()
        warpgroup.wait_group(0)
        self._release_values(v_position)

    def _issue(self, k_position, v_position, q_position):
        """Issue the scores of a key tile and the values of the one before, when it is this consumer's turn; wait for the scores."""
        self.barriers.k.wait_full(k_position)
        self._wait_turn()
        self._issue_scores(k_position, q_position)
        self._issue_values(v_position)
        warpgroup.commit_group()
        self._pass_turn()
        warpgroup.wait_group(1)
        self.barriers.k.release(k_position)

    def _issue_scores(self, k_position, q_position):
        """Issue S = Q K^T as a group of its own."""
        q = self.q[None, None, None, self.barriers.q.stage(q_position)]
        warpgroup.fence()
        accumulate(self.score_mma, self.s, q, self.k[None, None, None, self.barriers.k.stage(k_position)], self.g.dim, clear=True)
        warpgroup.commit_group()

    def _multiply_values(self, mma, p, position):
        """Issue O += P V for the tile of V at `position`."""
        self.barriers.v.wait_full(position)
        warpgroup.fence()
        accumulate(mma, self.o, p, self.v[None, None, None, self.barriers.v.stage(position)], self.g.n, clear=False)

    def _keep_probabilities(self, position):
        """Round the probabilities to fp16, for P V of the next step."""
        flat(self.p).store(flat(self.s).load().to(Float16))

    def _correct(self):
        rows = by_row(self.o)
        for row in range(2):
            rows[row, None].store(rows[row, None].load() * self.softmax.correction[row])

    def _row(self, first_row, half: int):
        """Query row of this thread: 16 rows a warp, 4 threads a row, rows r and r + 8."""
        return first_row + self.row_group * ROWS + (self.thread // 32) * 16 + (self.thread % 32) // 4 + 8 * half

    def _mask(self, rules, step, first_row):
        """Scores of keys that the row does not see become -inf."""
        mask, blocks = rules
        scores = by_row(self.s)
        first = step * self.g.step + self.column_group * self.g.n + 2 * (self.thread % 4)
        for half in range(2):
            row = self._row(first_row, half)
            low, high = mask.lower(row) - first, mask.upper(row) - first
            for pair in range(self.g.n // 8):
                for side in range(2):
                    column, index = Int32(8 * pair + side), (half, (side, pair))
                    if blocks is not None:
                        block_low, block_high = blocks[half]
                        seen = in_interval(column, low, high) | in_interval(column + first, block_low, block_high)
                    elif self.problem.kind == "sliding_causal":
                        seen = (column < high) & (column >= low)
                    else:
                        seen = column < high
                    scores[index] = select(seen, scores[index], NEG_INF)

    @cute.jit
    def _clear_unused_values(self, position, valid):
        """Zero the rows of V at or past `valid`: whatever lies there must not meet the zero probabilities (0 x NaN).

        Every consumer writes the same zeros for itself, so they need not wait for one another.
        """
        g = self.g
        self.barriers.v.wait_full(position)
        stage, first = self.barriers.v.stage(position), cutlass.max(valid, Int32(0))
        # Rows by all threads together: a loop that some threads leave earlier than others costs the mainloop its uniform registers.
        for row in cutlass.range(first, g.n, unroll=1):
            for column in cutlass.range_constexpr(0, g.head_dim, WARPGROUP):
                if self.thread < g.head_dim - column:
                    self.v_rows[row, column + self.thread, stage] = Float16(0.0)
        cute.arch.fence_view_async_shared()
        cute.arch.barrier(barrier_id=PRIVATE + self.number, number_of_threads=WARPGROUP)

    # Consumers issue in turn: 0, 1, ..., 0.

    @cute.jit
    def _wait_turn(self):
        if cutlass.const_expr(self.g.in_turns):
            wait_turn(self.number)

    @cute.jit
    def _pass_turn(self):
        if cutlass.const_expr(self.g.in_turns):
            give_turn(select(self.number == self.g.consumers - 1, Int32(0), self.number + 1))
