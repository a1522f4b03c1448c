# SPDX-License-Identifier: Apache-2.0
"""The static shape of a kernel: tile sizes, shared-memory layouts, tensor-core tiling, copies.

Shared-memory rows are padded to an odd number of 16-byte units, so eight consecutive rows start in eight different bank
groups: ldmatrix and the 16-byte stores of cp.async are free of conflicts for every head_dim, with plain linear
addresses (a row is a constant away from the next, which costs no address arithmetic in the loop).
"""
from __future__ import annotations

import cutlass.cute as cute
from cutlass import Float16, Float32, Int32, Int64, Uint32
from cutlass.cute.nvgpu import cpasync, warp

from ...plans.ampere import ELEMENT_BYTES, Geometry
from ..addressing import advance
from ..ops import Fixed

VECTOR = 8  # fp16 elements in a 16-byte access
MMA_M, MMA_N, MMA_K = 16, 8, 16
#: Walks of so many rows a thread go in so many strands; shorter ones would pay with registers.
LONG_WALK, STRANDS = 16, 4


class TileShape(Fixed):
    """Everything about a kernel's tiles that is known at trace time."""

    def __init__(self, geometry: Geometry):
        self.g = geometry
        self.load_threads = geometry.load_threads
        #: 16-byte units of a shared row, how many of them are zeros past head_dim, and whether some threads have no unit.
        self.units = geometry.qk_dim // VECTOR
        self.zero_units = self.units - geometry.head_dim // VECTOR
        self.idle_threads = self.units % self.load_threads.per_row != 0

    def shared_tensor(self, storage, offset: int, rows: int, columns: int):
        """A [rows, columns] row-major view of shared memory at an element offset."""
        layout = cute.make_layout((rows, columns), stride=(self.g.row_pitch, 1))
        return cute.make_tensor(storage + offset, layout)

    def place(self, thread) -> "Place":
        """Where a thread begins when the block walks over a tile."""
        return Place(self, thread)

    def shared_sums(self, storage, thread):
        """This thread's row sums in shared memory (neighbouring threads in neighbouring banks), or None for registers."""
        g = self.g
        if not g.shared_sums:
            return None
        first = cute.recast_ptr(storage + g.sums_offset // ELEMENT_BYTES, dtype=Float32)
        return cute.make_tensor(first + thread, cute.make_layout(g.thread_rows, stride=g.threads))

    def transposed(self, tensor, rows: int, columns: int):
        """The [columns, rows] view of a shared tile: V as the B operand of P V."""
        return cute.make_tensor(tensor.iterator, cute.make_layout((columns, rows), stride=(1, self.g.row_pitch)))

    def tiled_mma(self):
        """Warps stacked along M, then `column_groups` along N; each warp takes 16 columns at a time for ldmatrix.x4."""
        g = self.g
        operation = warp.MmaF16BF16Op(Float16, Float32, (MMA_M, MMA_N, MMA_K))
        return cute.make_tiled_mma(
            operation,
            (g.row_warps, g.column_groups, 1),
            permutation_mnk=(g.row_warps * MMA_M, g.column_groups * MMA_N * 2, MMA_K),
        )

    def async_copy(self):
        """Global to shared past L1, 16 bytes a thread, zero-filled where the predicate is false."""
        mode = cpasync.LoadCacheMode.GLOBAL
        return cute.make_copy_atom(cpasync.CopyG2SOp(cache_mode=mode), Float16, num_bits_per_copy=128)

    def vector_copy(self):
        """Shared to registers to global, 16 bytes a thread."""
        return cute.make_copy_atom(cute.nvgpu.CopyUniversalOp(), Float16, num_bits_per_copy=128)


class Place(Fixed):
    """A thread's first 16-byte unit (row, unit of the row) of a tile that the block walks over; `units` are its units of a row.

    Every thread has a unit, in the tile or past its last column.
    """

    def __init__(self, shape: TileShape, thread):
        walk = shape.load_threads
        self.row, self.unit = divide(thread, walk.per_row)
        self.per_row, self.rows = walk.per_row, walk.rows
        self.units = -(-shape.units // walk.per_row)

    def walk(self, pointer, stride, rows: int) -> list:
        """[(rows from this thread's first, address)] of the thread's part of the rows [0, rows) at `pointer` (row stride in elements).

        Each address is an earlier one moved on: one addition, where an address from its row's number would cost three. Long walks go
        in several strands, since copies wait for an addition after an addition.
        """
        integer = Int64 if isinstance(stride, Int64) else Int32
        row, unit = integer(Uint32(self.row)), integer(Uint32(self.unit))  # unsigned: no sign to extend
        count = -(-rows // self.rows)
        strands = STRANDS if count >= LONG_WALK else 1
        addresses = [advance(pointer, row * stride + unit * VECTOR)]
        for step in range(1, count):
            back = strands if step >= strands else 1
            addresses.append(advance(addresses[step - back], integer(stride) * (self.rows * back)))
        return [(step * self.rows, address) for step, address in enumerate(addresses)]

    def vector(self, pointer, unit: int):
        """16 bytes of the thread's unit number `unit` of the row at `pointer`, as copies take them."""
        return cute.make_tensor(pointer + unit * self.per_row * VECTOR, cute.make_layout(((VECTOR, 1), 1)))


def divide(number, by: int):
    """(quotient, remainder) of a number that is not negative and a power of two: a shift and a mask, whatever the compiler knows of the sign."""
    return number >> (by.bit_length() - 1), number & (by - 1)


def matrix_load(transpose: bool):
    """ldmatrix.x4: four 8x8 matrices a warp."""
    return cute.make_copy_atom(warp.LdMatrix8x8x16bOp(transpose=transpose, num_matrices=4), Float16)
