# SPDX-License-Identifier: Apache-2.0
"""The two products of attention on mma.sync: S = Q K^T and O += P V.

Accumulator layout (PTX, mma.m16n8k16): a thread holds rows lane/4 and lane/4 + 8 and columns 2 (lane % 4) + {0, 1} of each 16 x 8
piece. `row_view` shows an accumulator as [rows, columns] of that thread.
"""
from __future__ import annotations

import cutlass.cute as cute
from cutlass import Float16, Float32

from ..ops import Fixed
from .tile import MMA_M, MMA_N, TileShape, matrix_load


def row_view(accumulator):
    """A thread's accumulator ((2, 2), M, N) as a [2 M, 2 N] register tensor."""
    (columns, rows), m, n = accumulator.shape
    layout = cute.make_layout(((rows, m), (columns, n)), stride=((columns, columns * rows), (1, columns * rows * m)))
    return cute.make_tensor(accumulator.iterator, layout)


class Products(Fixed):
    """A thread's operands and accumulators."""

    def __init__(self, shape: TileShape, thread, q, k, v, p):
        g = shape.g
        self.shape = shape
        self.mma = shape.tiled_mma()
        part = self.mma.get_slice(thread)
        load_a = cute.make_tiled_copy_A(matrix_load(False), self.mma)
        load_b = cute.make_tiled_copy_B(matrix_load(False), self.mma)
        load_bt = cute.make_tiled_copy_B(matrix_load(True), self.mma)
        vt = shape.transposed(v, g.n, g.value_dim)

        self.q = _Operand(load_a, thread, q, part.make_fragment_A(part.partition_A(q)))
        self.k = _Operand(load_b, thread, k, part.make_fragment_B(part.partition_B(k)))
        self.v = _Operand(load_bt, thread, vt, part.make_fragment_B(part.partition_B(vt)))
        self.scores = part.make_fragment_C(part.partition_shape_C((g.m, g.n)))
        self.output = part.make_fragment_C(part.partition_shape_C((g.m, g.value_dim)))
        self.probabilities = _shared_probabilities(shape, part, load_a, thread, p)

        warp, lane = thread // 32, thread % 32
        #: This thread's first row and column in a tile.
        self.first_row = (warp % g.row_warps) * MMA_M + lane // 4
        self.first_column = (warp // g.row_warps) * MMA_N + (lane % 4) * 2

    def row_offset(self, row: int) -> int:
        """Tile row of this thread's row `row`, relative to its first."""
        return row % 2 * 8 + row // 2 * MMA_M * self.shape.g.row_warps

    def column_offset(self, column: int) -> int:
        """Tile column of this thread's column `column` of the scores, relative to its first."""
        return column % 2 + column // 2 * MMA_N * self.shape.g.column_groups

    def score(self):
        """S = Q K^T for the tile in shared memory."""
        self.scores.fill(0.0)
        self._accumulate(self.scores, self.q, self.k)

    def accumulate(self):
        """O += P V, P rounded to fp16."""
        half = cute.make_rmem_tensor_like(self.scores, Float16)
        half.store(self.scores.load().to(Float16))
        if self.probabilities is None:
            self._accumulate(self.output, _InRegisters(_as_operand_a(half)), self.v)
        else:
            self._accumulate(self.output, self.probabilities, self.v)

    def _accumulate(self, target, a, b):
        steps = cute.size(b.fragment, mode=[2])
        a.fetch(0)
        b.fetch(0)
        for k in range(steps):
            if k + 1 < steps:
                # Fetch one step ahead, so that ldmatrix runs under the tensor cores.
                a.fetch(k + 1)
                b.fetch(k + 1)
            cute.gemm(self.mma, target, a.fragment[None, None, k], b.fragment[None, None, k], target)


class _Operand(Fixed):
    """An operand in shared memory and the registers that its steps are fetched into."""

    def __init__(self, copy, thread, tensor, fragment):
        part = copy.get_slice(thread)
        self.copy = copy
        self.fragment = fragment
        self.source = part.partition_S(tensor)
        self.target = part.retile(fragment)

    def fetch(self, step: int):
        cute.copy(self.copy, self.source[None, None, step], self.target[None, None, step])


class _InRegisters(Fixed):
    """An operand that is in registers already."""

    def __init__(self, fragment):
        self.fragment = fragment

    def fetch(self, step: int):
        pass


def _as_operand_a(accumulator):
    """An fp16 accumulator ((2, 2), M, N) seen as the A operand ((2, 2, 2), M, N/2): the layouts differ in nothing but grouping."""
    (c, r), m, n = accumulator.shape
    piece = c * r
    layout = cute.make_layout(
        ((c, r, 2), m, n // 2), stride=((1, c, piece * m), piece, piece * m * 2)
    )
    return cute.make_tensor(accumulator.iterator, layout)


def _shared_probabilities(shape, part, load_a, thread, p):
    """P as an A operand in shared memory, when column groups each hold a part of the scores; else None."""
    if p is None:
        return None
    return _Operand(load_a, thread, p, part.make_fragment_A(part.partition_A(p)))
