# SPDX-License-Identifier: Apache-2.0
"""Global to shared memory by cp.async, zero-filling what lies past the logical lengths.

NaN or Inf that lies past kv_len in memory must never meet a multiplication, not even by 0, so rows past the limit and
columns past head_dim arrive as zeros.
"""
from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cutlass import Boolean

from ..ops import Fixed
from .tile import TileShape


class TileLoader(Fixed):
    """A block's copies of [rows, head_dim] tiles."""

    def __init__(self, shape: TileShape):
        self.shape = shape
        self.copy = shape.async_copy()

    @cute.jit
    def load(self, thread, target, source, stride, rows: cutlass.Constexpr, row_limit):
        """Start `thread`'s part of the copy of rows [0, rows) at `source` (row stride in elements) into the shared tile `target`.

        Rows at or past `row_limit` (relative to the tile) become zeros and are not read.
        """
        place = self.shape.place(thread)
        if cutlass.const_expr(self.shape.idle_threads):
            if place.unit < self.shape.units:
                self._load(place, target, source, stride, rows, row_limit)
        else:
            self._load(place, target, source, stride, rows, row_limit)

    def _load(self, place, target, source, stride, rows, row_limit):
        shape = self.shape
        # Compared with constants: a row number per step would be a register per step.
        rows_left = row_limit - place.row
        allowed = cute.make_rmem_tensor((1, 1), Boolean)
        sources, targets = place.walk(source, stride, rows), place.walk(target.iterator, shape.g.row_pitch, rows)
        for (row, src), (_, dst) in zip(sources, targets):
            allowed[0, 0] = rows_left > row
            if shape.zero_units:
                allowed[0, 0] = (rows_left > row) & (place.unit < shape.units - shape.zero_units)
            for unit in range(place.units):
                cute.copy(self.copy, place.vector(src, unit), place.vector(dst, unit), pred=allowed)


def commit():
    """Close the group of copies that were started since the last one."""
    cute.arch.cp_async_commit_group()


def wait_for_copies():
    """Wait for this thread's copies, then for everybody's; also a barrier on everybody's reads before it."""
    cute.arch.cp_async_wait_group(0)
    cute.arch.sync_threads()
