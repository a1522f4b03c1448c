# SPDX-License-Identifier: Apache-2.0
"""Tiles in shared memory as TMA writes and wgmma reads them, and the two tensor-core products.

A tile of r rows is a row of blocks [r, box], each swizzled over rows of `swizzle` bytes: what one TMA box leaves behind is
at once the K-major operand of Q K^T and, seen transposed, the MN-major operand of P V. No thread ever touches the data.
"""
from __future__ import annotations

import cutlass.cute as cute
from cutlass import Float16, Float32
from cutlass.cute.nvgpu import OperandMajorMode, warpgroup

from ...plans.hopper_geometry import BOX, MMA_K, ROWS, Geometry
from ..ops import Fixed

#: Rows of the core matrices that a swizzle pattern spans.
CORE_ROWS = 8


def _atom(columns: int, by_row: bool):
    """The swizzled pattern of 8 rows of `columns` elements (32 or 64), seen as [rows, columns] or as [columns, rows]."""
    swizzle = cute.make_swizzle({64: 3, 32: 2}[columns], 4, 3)
    shape, stride = ((CORE_ROWS, columns), (columns, 1)) if by_row else ((columns, CORE_ROWS), (1, columns))
    return cute.make_composed_layout(swizzle, 0, cute.make_layout(shape, stride=stride))


class Tiles(Fixed):
    """Shared-memory views and tiled products of a kernel, all known at trace time."""

    def __init__(self, geometry: Geometry):
        self.g = geometry

    def rows(self, storage, rows: int, copies: int, stride: int | None = None):
        """`copies` tiles [rows, width] from `storage` on, with columns contiguous; `stride` elements apart, by default one behind the other."""
        tile = cute.tile_to_shape(_atom(BOX, True), (rows, self.g.width), (0, 1))
        return self._tensor(storage, self._copies(tile, copies, stride or rows * self.g.width))

    def _copies(self, tile, copies: int, stride: int):
        return cute.make_composed_layout(tile.inner, 0, cute.append(tile.outer, cute.make_layout(copies, stride=stride)))

    def columns(self, storage, rows: int, copies: int, first: int = 0):
        """A column group's part of the same tiles, seen as [width / columns, rows]; it starts at element offset `first`."""
        tile = cute.tile_to_shape(_atom(BOX, False), (self._group_width, rows), (1, 0))
        return self._tensor(storage + first, self._copies(tile, copies, self.g.kv_elements))

    def probabilities(self, storage, copies: int):
        """`copies` tiles [64, n] of probabilities, as the A operand of P V."""
        columns = min(self.g.n, BOX)
        return self._tensor(storage, cute.tile_to_shape(_atom(columns, True), (ROWS, self.g.n, copies), (0, 1, 2)))

    @property
    def _group_width(self) -> int:
        return self.g.width // self.g.columns

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

    def stored_value_mma(self):
        """P V as it would be over all columns that V takes in shared memory: describes V as an operand, whatever part is computed."""
        return self._mma(self._group_width, OperandMajorMode.MN, warpgroup.OperandSource.RMEM)

    def _mma(self, columns: int, b_major, a_source):
        operation = warpgroup.MmaF16BF16Op(Float16, Float32, (ROWS, columns, MMA_K), a_source, OperandMajorMode.K, b_major)
        return cute.make_tiled_mma(cute.make_mma_atom(operation))


def accumulate(mma, d, a, b, inner: int, clear: bool):
    """Issue d (+)= a b over the first `inner` elements of the inner dimension; asynchronous."""
    atom = cute.make_mma_atom(mma.op)
    for k in range(inner // MMA_K):
        atom.set(warpgroup.Field.ACCUMULATE, not (clear and k == 0))
        cute.gemm(atom, d, a[None, None, k], b[None, None, k], d)


def by_row(accumulator):
    """An accumulator of wgmma as [2 rows of this thread, columns of this thread]."""
    columns = cute.size(accumulator) // 2
    return cute.make_tensor(accumulator.iterator, cute.make_layout((2, (2, columns // 2)), stride=(2, (1, 4))))


def flat(registers):
    """Registers in the order in which accumulators and A operands number them."""
    return cute.make_tensor(registers.iterator, cute.make_layout(cute.size(registers)))
