# SPDX-License-Identifier: Apache-2.0
"""What warps of one block tell each other through shared memory.

With one column group a row of scores lies within one warp and nothing is exchanged. With several, each group holds the scores of
its own keys: the groups combine their row maxima and sums, and every group needs all probabilities for its columns of O.
The probabilities travel through the K tile, which is free from the last read of K until the next K is asked for.
"""
from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32

from ...plans.ampere import ELEMENT_BYTES
from ..ops import Fixed, select
from .mma import Products, store_shared

#: Padding of a row of probabilities, in elements: keeps ldmatrix free of bank conflicts, as in `tile`.
PAD = 8


class Exchange(Fixed):
    """Exchange between the column groups of a block; every method does nothing when there is only one."""

    def __init__(self, geometry, storage):
        self.g = geometry
        self.needed = geometry.column_groups > 1
        self.probabilities = None
        if self.needed:
            layout = cute.make_layout((geometry.m, geometry.n), stride=(geometry.n + PAD, 1))
            self.probabilities = cute.make_tensor(storage + geometry.q_elements, layout)
            area = cute.recast_ptr(storage + geometry.exchange_offset // ELEMENT_BYTES, dtype=Float32)
            self.area = cute.make_tensor(area, cute.make_layout((geometry.column_groups, geometry.m), stride=(geometry.m, 1)))

    def combine(self, values: list, products: Products, thread, combine):
        """Per-row values (one a thread row, equal over the lanes of the row) combined over the groups; two barriers."""
        if not self.needed:
            return values
        group, (first_row, _) = thread // 32 // self.g.row_warps, products.position(thread)
        for row, value in enumerate(values):
            self.area[group, first_row + products.row_offset(row)] = value
        cute.arch.sync_threads()
        combined = []
        for row in range(len(values)):
            tile_row = first_row + products.row_offset(row)
            total = self.area[0, tile_row]
            for other in range(1, self.g.column_groups):
                total = combine(total, self.area[other, tile_row])
            combined.append(total)
        return combined

    def publish_probabilities(self, products: Products, thread):
        """Write this group's probabilities (fp16) where all groups can read them; the caller's next barrier makes them visible."""
        if not self.needed:
            return
        store_shared(products.mma, thread, products.scores, self.probabilities)

    def fetch_probabilities(self, products: Products):
        """Read all probabilities into registers, then let the K tile be overwritten."""
        if not self.needed:
            return
        products.probabilities.fetch_all()
        cute.arch.sync_threads()


def block_hull(intervals, row, rows_in_tile: int, threads: int, thread, storage):
    """Hull (low, high) of the key intervals of the tile's rows, known to every thread; (0, 0) when all are empty.

    `intervals(row)` gives a row's half-open interval, `row` is this thread's row of the tile if it has one
    (thread < rows_in_tile). Uses shared memory and barriers; `storage` may be reused afterwards.
    """
    low, high = intervals(row)
    counts = (thread < rows_in_tile) & (low < high)
    far = Int32(0x7FFFFFFF)
    low, high = select(counts, low, far), select(counts, high, Int32(0))
    for distance in (16, 8, 4, 2, 1):
        low = cutlass.min(low, cute.arch.shuffle_sync_bfly(low, offset=distance))
        high = cutlass.max(high, cute.arch.shuffle_sync_bfly(high, offset=distance))
    warps = threads // 32
    area = cute.make_tensor(cute.recast_ptr(storage, dtype=Int32), cute.make_layout((warps, 2), stride=(2, 1)))
    # Every lane of a warp writes the same value.
    area[thread // 32, 0] = low
    area[thread // 32, 1] = high
    cute.arch.sync_threads()
    for warp in range(warps):
        low, high = cutlass.min(low, area[warp, 0]), cutlass.max(high, area[warp, 1])
    cute.arch.sync_threads()
    return select(low < high, low, Int32(0)), high
