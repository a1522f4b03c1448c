# SPDX-License-Identifier: Apache-2.0
"""Tiles in shared memory as TMA writes and wgmma reads them, and the two tensor-core products.

A tile of r rows is a row of blocks [r, box], each swizzled over rows of `swizzle` bytes: what one TMA box leaves behind is
at once the K-major operand of Q K^T and, seen transposed, the MN-major operand of P V. No thread ever touches the data.
"""
from __future__ import annotations

import cutlass.cute as cute
from cutlass import Float16, Float32
from cutlass.cute.nvgpu import OperandMajorMode, warpgroup

from ...plans.hopper_geometry import BOX_COLUMNS, ROWS, Geometry
from ..ops import Fixed

#: Rows of the 8-row core matrices that a swizzle pattern spans.
CORE_ROWS = 8
_SWIZZLE_BITS = {64: 3, 32: 2, 16: 1}


def _swizzle(box: int):
    """The swizzle of rows of `box` elements."""
    return cute.make_swizzle(_SWIZZLE_BITS[box], 4, 3)


def _row_atom(box: int):
    return cute.make_composed_layout(_swizzle(box), 0, cute.make_layout((CORE_ROWS, box), stride=(box, 1)))


class Tiles(Fixed):
    """Shared-memory views and tiled products of a kernel, all known at trace time."""

    def __init__(self, geometry: Geometry):
        self.g = geometry

    def rows(self, storage, rows: int, copies: int):
        """`copies` tiles [rows, dim] from `storage` on, with dim contiguous."""
        return self._tensor(storage, cute.tile_to_shape(_row_atom(self.g.box), (rows, self.g.dim, copies), (0, 1, 2)))

    def columns(self, storage, rows: int, copies: int, first: int = 0):
        """The same tiles seen as [value_dim, rows]; `first` is the element offset of the first column."""
        box = self.g.box
        atom = cute.make_composed_layout(_swizzle(box), 0, cute.make_layout((box, CORE_ROWS), stride=(1, box)))
        tile = cute.tile_to_shape(atom, (self.g.value_dim, rows), (1, 0))
        tiles = cute.make_composed_layout(tile.inner, 0, cute.append(tile.outer, cute.make_layout(copies, stride=self.g.kv_elements)))
        return self._tensor(storage + first, tiles)

    def probabilities(self, storage, copies: int):
        """`copies` tiles [64, n] of probabilities, as the A operand of P V."""
        box = max(columns for columns in BOX_COLUMNS if self.g.n % columns == 0)
        return self._tensor(storage, cute.tile_to_shape(_row_atom(box), (ROWS, self.g.n, copies), (0, 1, 2)))

    def _tensor(self, storage, layout):
        return cute.make_tensor(cute.recast_ptr(storage, layout.inner, dtype=Float16), layout.outer)

    def score_mma(self):
        """Q K^T: [64, dim] x [n, dim] -> [64, n], both from shared memory."""
        return self._mma(self.g.n, OperandMajorMode.K, warpgroup.OperandSource.SMEM)

    def value_mma(self):
        """P V: [64, n] x [value_dim, n] -> [64, value_dim], P from registers."""
        return self._mma(self.g.value_dim, OperandMajorMode.MN, warpgroup.OperandSource.RMEM)

    def shared_value_mma(self):
        """The same with P from shared memory."""
        return self._mma(self.g.value_dim, OperandMajorMode.MN, warpgroup.OperandSource.SMEM)

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
