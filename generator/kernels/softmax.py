# SPDX-License-Identifier: Apache-2.0
"""Online softmax in FP32 with exact rescaling.

With scores s, running row maximum m and c = scale * log2(e):

    m' = max(m, max_j s_j)        p_j = exp2((s_j - m') c)        correction = exp2((m - m') c)
    sum' = sum * correction + sum_j p_j                           O' = O * correction + P V

A row that has seen no key keeps m = -inf; a finite 0 stands in for it in the exponents, so its p are exp2(-inf) = 0, its sum
stays 0 and its output is exactly 0. (Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018.)
"""
from __future__ import annotations

import operator

import cutlass.cute as cute
from cutlass import Float32

from .ops import Fixed, select

NEG_INF = -Float32.inf
#: Lanes that share a row in the accumulator layout of mma.m16n8k16 and of wgmma.
ROW_LANES = 4


def exp2(x):
    return cute.math.exp2(x, fastmath=True)


def reduce_row(value, combine):
    """Combine a per-thread value over the four lanes that hold one row."""
    value = combine(value, cute.arch.shuffle_sync_bfly(value, offset=2))
    return combine(value, cute.arch.shuffle_sync_bfly(value, offset=1))


class OnlineSoftmax(Fixed):
    """Running maximum and sum of the rows that a thread holds; `scale_log2` is scale * log2(e).

    `row_sum` is a thread's own [rows] FP32 tensor: registers by default, or shared memory where registers are short.
    """

    def __init__(self, rows: int, scale_log2, row_sum=None):
        self.rows = rows
        self.scale_log2 = scale_log2
        self.row_max = cute.make_rmem_tensor(rows, Float32)
        self.row_sum = cute.make_rmem_tensor(rows, Float32) if row_sum is None else row_sum

    def reset(self):
        self.row_max.fill(NEG_INF)
        for row in range(self.rows):
            self.row_sum[row] = Float32(0.0)

    def tile_max(self, scores, row: int):
        """Maximum of a row of scores (a [rows, cols] register tensor) over the lanes that share it."""
        return reduce_row(scores[row, None].load().reduce(cute.ReductionOp.MAX, NEG_INF, 0), cute.arch.fmax)

    def step(self, scores, row: int, tile_max):
        """Turn a row of scores into probabilities in place; returns the correction for that row of O."""
        previous = self.row_max[row]
        current = cute.arch.fmax(previous, tile_max)
        self.row_max[row] = current
        base = select(current == NEG_INF, Float32(0.0), current)
        scaled_base = base * self.scale_log2
        probabilities = exp2(scores[row, None].load() * self.scale_log2 - scaled_base)
        scores[row, None].store(probabilities)
        correction = exp2((previous - base) * self.scale_log2)
        total = probabilities.reduce(cute.ReductionOp.ADD, Float32(0.0), 0)
        self.row_sum[row] = self.row_sum[row] * correction + total
        return correction

    def inverse_sum(self, row_sum):
        """1 / sum, or 1 for a row without keys (its accumulator is exactly 0) and for a NaN sum."""
        unusable = (row_sum == 0.0) | (row_sum != row_sum)
        return select(unusable, Float32(1.0), cute.arch.rcp_approx(row_sum))

    def total(self, row: int):
        """Sum of a row over the lanes that share it."""
        return reduce_row(self.row_sum[row], operator.add)
