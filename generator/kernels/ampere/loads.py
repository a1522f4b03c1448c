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
    """One thread's part in loading [rows, head_dim] tiles."""

    def __init__(self, shape: TileShape, thread):
        self.shape = shape
        self.copy = shape.async_copy()
        self.part = self.copy.get_slice(thread)
        self.first_row = thread // shape.load_threads.per_row
        self.unit = thread % shape.load_threads.per_row

    @cute.jit
    def load(self, target, source, stride, rows: cutlass.Constexpr, row_limit):
        """Start the copy of rows [0, rows) at `source` (row stride in elements) into the shared tile `target`.

        Rows at or past `row_limit` (relative to the tile) become zeros and are not read.
        """
        if cutlass.const_expr(self.shape.idle_threads):
            if self.unit < self.shape.units:
                self._load(target, source, stride, rows, row_limit)
        else:
            self._load(target, source, stride, rows, row_limit)

    def _load(self, target, source, stride, rows, row_limit):
        shape, threads = self.shape, self.shape.load_threads
        src = self.part.partition_S(shape.walked(source, rows, stride))
        dst = self.part.partition_D(shape.walked(target.iterator, rows, shape.g.row_pitch))
        row_steps, unit_steps = cute.size(dst, mode=[1]), cute.size(dst, mode=[2])
        allowed = cute.make_rmem_tensor((1, row_steps, unit_steps), Boolean)
        # Compared with constants: a row number per step would be a register per step throughout the mainloop.
        rows_left = row_limit - self.first_row
        for i in range(row_steps):
            in_rows = rows_left > i * threads.rows
            if shape.zero_units:
                in_rows = in_rows & (self.unit < shape.units - shape.zero_units)
            for k in range(unit_steps):
                allowed[0, i, k] = in_rows
        cute.copy(self.copy, src, dst, pred=allowed)


def commit():
    """Close the group of copies that were started since the last one."""
    cute.arch.cp_async_commit_group()


def wait_for_copies():
    """Wait for this thread's copies, then for everybody's; also a barrier on everybody's reads before it."""
    cute.arch.cp_async_wait_group(0)
    cute.arch.sync_threads()
