# SPDX-License-Identifier: Apache-2.0
"""The static shape of a kernel: tile sizes, shared-memory layouts, tensor-core tiling, copies.

Shared-memory rows are padded to an odd number of 16-byte units, so eight consecutive rows start in eight different bank
groups: ldmatrix and the 16-byte stores of cp.async are free of conflicts for every head_dim, with plain linear
addresses (a row is a constant away from the next, which costs no address arithmetic in the loop).
"""
from __future__ import annotations

import cutlass.cute as cute
from cutlass import Float16, Float32
from cutlass.cute.nvgpu import cpasync, warp

from ...plans.ampere import ELEMENT_BYTES, Geometry
from ..ops import Fixed

VECTOR = 8  # fp16 elements in a 16-byte access
MMA_M, MMA_N, MMA_K = 16, 8, 16


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

    def walked(self, pointer, rows: int, stride):
        """[rows, columns] at a pointer as the copying threads walk over it: every thread has a column, used or not."""
        per_row = self.load_threads.per_row
        columns = -(-self.units // per_row) * per_row * VECTOR
        return cute.make_tensor(pointer, cute.make_layout((rows, columns), stride=(stride, 1)))

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
        return self._tiled(cute.make_copy_atom(cpasync.CopyG2SOp(cache_mode=mode), Float16, num_bits_per_copy=128))

    def vector_copy(self):
        """Shared to registers to global, 16 bytes a thread."""
        return self._tiled(cute.make_copy_atom(cute.nvgpu.CopyUniversalOp(), Float16, num_bits_per_copy=128))

    def _tiled(self, atom):
        t = self.load_threads
        return cute.make_tiled_copy_tv(
            atom, cute.make_layout((t.rows, t.per_row), stride=(t.per_row, 1)), cute.make_layout((1, VECTOR))
        )


def matrix_load(transpose: bool):
    """ldmatrix.x4: four 8x8 matrices a warp."""
    return cute.make_copy_atom(warp.LdMatrix8x8x16bOp(transpose=transpose, num_matrices=4), Float16)
