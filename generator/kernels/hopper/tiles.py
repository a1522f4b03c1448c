# SPDX-License-Identifier: Apache-2.0
"""Tiles in shared memory as TMA writes and wgmma reads them, and the two tensor-core products.

A tile of r rows is a row of blocks [r, box], each swizzled over rows of `swizzle` bytes: what one TMA box leaves behind is
at once the K-major operand of Q K^T and, seen transposed, the MN-major operand of P V. No thread ever touches the data.
"""
from __future__ import annotations

import cutlass.cute as cute
from cutlass import Float16, Float32
from cutlass.cute.nvgpu import OperandMajorMode, warpgroup

from ..ops import Fixed
from ...plans.hopper_geometry import ROWS, Geometry

#: Rows of the 8-row core matrices that a swizzle pattern spans.
CORE_ROWS = 8
_SWIZZLE_BITS = {128: 3, 64: 2, 32: 1}


class Tiles(Fixed):
    """Shared-memory views and tiled products of a kernel, all known at trace time."""

    def __init__(self, geometry: Geometry):
        self.g = geometry

    def _swizzle(self):
        return cute.make_swizzle(_SWIZZLE_BITS[self.g.swizzle], 4, 3)

    def rows(self, storage, rows: int, copies: int):
        """`copies` tiles [rows, dim] from `storage` on, with dim contiguous."""
        box = self.g.box
        atom = cute.make_composed_layout(self._swizzle(), 0, cute.make_layout((CORE_ROWS, box), stride=(box, 1)))
        return self._tensor(storage, cute.tile_to_shape(atom, (rows, self.g.dim, copies), (0, 1, 2)))

    def columns(self, storage, rows: int, copies: int):
        """The same tiles seen as [dim, rows]."""
        box = self.g.box
        atom = cute.make_composed_layout(self._swizzle(), 0, cute.make_layout((box, CORE_ROWS), stride=(1, box)))
        return self._tensor(storage, cute.tile_to_shape(atom, (self.g.dim, rows, copies), (1, 0, 2)))

    def _tensor(self, storage, layout):
        return cute.make_tensor(cute.recast_ptr(storage, layout.inner, dtype=Float16), layout.outer)

    def score_mma(self):
        """Q K^T: [64, dim] x [n, dim] -> [64, n], both from shared memory."""
        return self._mma(self.g.n, OperandMajorMode.K, warpgroup.OperandSource.SMEM)

    def value_mma(self):
        """P V: [64, n] x [dim, n] -> [64, dim], P from registers."""
        return self._mma(self.g.dim, OperandMajorMode.MN, warpgroup.OperandSource.RMEM)

    def _mma(self, columns: int, b_major, a_source):
        operation = warpgroup.MmaF16BF16Op(Float16, Float32, (ROWS, columns, 16), a_source, OperandMajorMode.K, b_major)
        return cute.make_tiled_mma(cute.make_mma_atom(operation))


def accumulate(mma, d, a, b, clear: bool):
    """Issue d (+)= a b over all steps of the inner dimension; asynchronous."""
    atom = cute.make_mma_atom(mma.op)
    for k in range(cute.size(a, mode=[2])):
        atom.set(warpgroup.Field.ACCUMULATE, not (clear and k == 0))
        cute.gemm(atom, d, a[None, None, k], b[None, None, k], d)


def by_row(accumulator):
    """An accumulator of wgmma as [2 rows of this thread, columns of this thread]."""
    columns = cute.size(accumulator) // 2
    return cute.make_tensor(accumulator.iterator, cute.make_layout((2, (2, columns // 2)), stride=(2, (1, 4))))


def flat(registers):
    """Registers in the order in which accumulators and A operands number them."""
    return cute.make_tensor(registers.iterator, cute.make_layout(cute.size(registers)))
