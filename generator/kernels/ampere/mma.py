# SPDX-License-Identifier: Apache-2.0
"""The two products of attention on mma.sync: S = Q K^T and O += P V.

Accumulator layout (PTX, mma.m16n8k16): a thread holds rows lane/4 and lane/4 + 8 and columns 2 (lane % 4) + {0, 1} of each 16 x 8
piece. `row_view` shows an accumulator as [rows, columns] of that thread.
"""
from __future__ import annotations

import cutlass.cute as cute
from cutlass import Float16

from ..ops import Fixed
from .tile import MMA_M, MMA_N, TileShape, divide, matrix_load

COLUMN_PIECES = 4


def row_view(accumulator):
    """A thread's accumulator ((2, 2), M, N) as a [2 M, 2 N] register tensor."""
    (columns, rows), m, n = accumulator.shape
    layout = cute.make_layout(((rows, m), (columns, n)), stride=((columns, columns * rows), (1, columns * rows * m)))
    return cute.make_tensor(accumulator.iterator, layout)


def rounded(accumulator):
    """An FP32 accumulator as a register tensor of fp16."""
    half = cute.make_rmem_tensor_like(accumulator, Float16)
    half.store(accumulator.load().to(Float16))
    return half


def store_shared(mma, thread, accumulator, target):
    """Write an accumulator as fp16 into the shared tile that it is the tile of."""
    store = cute.make_tiled_copy_C(cute.make_copy_atom(cute.nvgpu.CopyUniversalOp(), Float16), mma)
    part = store.get_slice(thread)
    cute.copy(store, part.retile(rounded(accumulator)), part.partition_D(target))


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

        self.q = _OperandA(load_a, thread, q, part.make_fragment_A(part.partition_A(q)))
        self.k = _OperandB(load_b, thread, k, part.make_fragment_B(part.partition_B(k)))
        self.v = _OperandB(load_bt, thread, vt, part.make_fragment_B(part.partition_B(vt)))
        self.scores = part.make_fragment_C(part.partition_shape_C((g.m, g.n)))
        self.output = part.make_fragment_C(part.partition_shape_C((g.m, g.value_dim)))
        self.probabilities = _shared_probabilities(shape, part, load_a, thread, p)

    def position(self, thread):
        """(row, column) in a tile of a thread's first accumulator element."""
        warp, lane = divide(thread, 32)
        column_group, row_warp = divide(warp, self.shape.g.row_warps)
        row, pair = divide(lane, 4)
        return row_warp * MMA_M + row, column_group * MMA_N + pair * 2

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
        if self.probabilities is None:
            probabilities = _as_operand_a(rounded(self.scores))
        else:
            probabilities = self.probabilities.fragment
        self._accumulate(self.output, _InRegisters(probabilities), self.v)

    def _accumulate(self, target, a, b):
        """target += A B in pieces of one k step and a few columns; each piece is fetched while the one before is multiplied."""
        pieces = [(k, c) for k in range(b.steps) for c in range(b.chunks)]
        chunked = cute.logical_divide(target, (None, None, b.chunk))
        a.fetch(0)
        b.fetch(*pieces[0])
        for (k, c), following in zip(pieces, [*pieces[1:], None]):
            if following is not None:
                if following[0] != k:
                    a.fetch(following[0])
                b.fetch(*following)
            piece = chunked[None, None, (None, c)]
            cute.gemm(self.mma, piece, a.fragment[None, None, k], b.piece(k, c), piece)


class _OperandA(Fixed):
    """Rows of an operand in shared memory and the registers that its k steps are fetched into."""

    def __init__(self, copy, thread, tensor, fragment):
        part = copy.get_slice(thread)
        self.copy = copy
        self.fragment = fragment
        self.source = part.partition_S(tensor)
        self.target = part.retile(fragment)

    def fetch(self, step: int):
        cute.copy(self.copy, self.source[None, None, step], self.target[None, None, step])

    def fetch_all(self):
        cute.copy(self.copy, self.source, self.target)


class _OperandB(Fixed):
    """Columns of an operand in shared memory, fetched in pieces of one k step and at most COLUMN_PIECES x 16 columns of a warp.

    Small pieces bound the registers that wait for the tensor cores: a whole k step of a 128-wide V would be 32 of them, twice.
    """

    def __init__(self, copy, thread, tensor, fragment):
        part = copy.get_slice(thread)
        source, target = part.partition_S(tensor), part.retile(fragment)
        loads = cute.size(target, mode=[1])
        self.copy = copy
        self.steps = cute.size(fragment, mode=[2])
        self.loads = next(n for n in (COLUMN_PIECES, 2, 1) if loads % n == 0)
        self.chunks = loads // self.loads
        #: Tensor-core columns (of 8) in a piece.
        self.chunk = cute.size(fragment, mode=[1]) // self.chunks
        self.source = cute.logical_divide(source, (None, self.loads, None))
        self.target = cute.logical_divide(target, (None, self.loads, None))
        self.pieces = cute.logical_divide(fragment, (None, self.chunk, None))

    def fetch(self, step: int, chunk: int):
        where = (None, (None, chunk), step)
        cute.copy(self.copy, self.source[where], self.target[where])

    def piece(self, step: int, chunk: int):
        return self.pieces[None, (None, chunk), step]


class _InRegisters(Fixed):
    """An A operand that is in registers already."""

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
    return _OperandA(load_a, thread, p, part.make_fragment_A(part.partition_A(p)))
