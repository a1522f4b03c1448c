# SPDX-License-Identifier: Apache-2.0
"""Online softmax that moves its reference only when it must.

Any reference r gives the same result: sum_j exp(s_j - r) v_j / sum_j exp(s_j - r). The running maximum is a good one, since nothing
overflows, but it costs a reduction over the four threads of a row and a pass over O for each key tile. So the reference stays
until a score of the warp's rows exceeds its row's by more than `HEADROOM` in the exponent of 2; then it becomes the maximum, and
what was accumulated is corrected exactly. Probabilities are at most 2^HEADROOM, far inside fp16, and have fp16's relative
precision whatever the reference is.
"""
from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cutlass import Float32

from ..ops import select
from ..softmax import NEG_INF, OnlineSoftmax, exp2, reduce_row

#: Largest exponent (base 2) of a probability.
HEADROOM = 8.0
#: Chains of additions per row: enough that none waits for the exponentials.
CHAINS = 4


class LazySoftmax(OnlineSoftmax):
    """`row_max` is the reference, `reference` the same in the exponent's units, `correction` what the last move multiplies by;
    `inverse` is 1 / sum of the rows that were finished last."""

    def __init__(self, rows: int, scale_log2):
        super().__init__(rows, scale_log2)
        self.reference = cute.make_rmem_tensor(rows, Float32)
        self.correction = cute.make_rmem_tensor(rows, Float32)
        self.inverse = cute.make_rmem_tensor(rows, Float32)

    def reset(self):
        super().reset()
        self.reference.fill(0.0)

    def finish(self):
        """All scores of these rows have been seen: keeps `inverse`, and is ready for other rows."""
        for row in range(self.rows):
            self.inverse[row] = self.inverse_sum(self.total(row))
        self.reset()

    @cute.jit
    def refresh(self, scores):
        """Move the references if the tile asks for it; returns whether they moved, the same for the whole warp.

        The caller then multiplies O's rows by `correction`.
        """
        maxima = [self._thread_max(scores, row) for row in range(self.rows)]
        # A row without keys so far: inf > HEADROOM. A tile that it does not see either: NaN > HEADROOM, false.
        grown = cutlass.Boolean(False)
        for row in cutlass.range_constexpr(self.rows):
            grown = grown | ((maxima[row] - self.row_max[row]) * self.scale_log2 > HEADROOM)
        moved = self._any(grown)
        if moved:
            for row in cutlass.range_constexpr(self.rows):
                self._move(row, maxima[row])
        return moved

    def _any(self, grown):
        """Whether it holds for any row of those that move together."""
        return cute.arch.vote_any_sync(grown)

    def _row_max(self, thread_max, row: int):
        return reduce_row(thread_max, cute.arch.fmax)

    def _thread_max(self, scores, row: int):
        return scores[row, None].load().reduce(cute.ReductionOp.MAX, NEG_INF, 0)

    def _move(self, row: int, thread_max):
        previous = self.row_max[row]
        current = cute.arch.fmax(previous, self._row_max(thread_max, row))
        base = select(current == NEG_INF, Float32(0.0), current)
        self.row_max[row] = current
        self.reference[row] = base * self.scale_log2
        self.correction[row] = exp2((previous - base) * self.scale_log2)
        self.row_sum[row] = self.row_sum[row] * self.correction[row]

    def weigh(self, scores):
        """Scores to probabilities in place, and their sums."""
        for row in range(self.rows):
            probabilities = exp2(scores[row, None].load() * self.scale_log2 - self.reference[row])
            scores[row, None].store(probabilities)
        for row in range(self.rows):
            self.row_sum[row] = self.row_sum[row] + self._sum(scores, row)

    def _sum(self, scores, row: int):
        columns = cute.size(scores, mode=[1])
        chains = [scores[row, chain] for chain in range(CHAINS)]
        for column in range(CHAINS, columns):
            chains[column % CHAINS] = chains[column % CHAINS] + scores[row, column]
        while len(chains) > 1:
            chains = [chains[i] + chains[i + 1] for i in range(0, len(chains) - 1, 2)] + chains[len(chains) // 2 * 2:]
        return chains[0]
