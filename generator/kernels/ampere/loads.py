# SPDX-License-Identifier: Apache-2.0
"""Global to shared memory by cp.async, zero-filling what lies past the logical lengths.

NaN or Inf that lies past kv_len in memory must never meet a multiplication, not even by 0, so rows past the limit and
columns past head_dim arrive as zeros.
"""
from __future__ import annotations

import cutlass.cute as cute
from cutlass import Boolean

from ..ops import Fixed
from .tile import VECTOR, TileShape


class TileLoader(Fixed):
    """One thread's part in loading [rows, head_dim] tiles."""

    def __init__(self, shape: TileShape, thread):
        self.shape = shape
        self.copy = shape.async_copy()
        self.slice = self.copy.get_slice(thread)
        self.first_row = thread // shape.load_threads.per_row
        self.first_unit = thread % shape.load_threads.per_row

    def load(self, target, source, stride, rows: int, row_limit):
        """Start the copy of rows [0, rows) at `source` (row stride in elements) into the shared tile `target`.

        Rows at or past `row_limit` (relative to the tile) become zeros and are not read.
        """
        g, threads = self.shape.g, self.shape.load_threads
        tile = cute.make_tensor(source, cute.make_layout((rows, g.qk_dim), stride=(stride, 1)))
        src, dst = self.slice.partition_S(tile), self.slice.partition_D(target)
        row_steps, unit_steps = cute.size(dst, mode=[1]), cute.size(dst, mode=[2])
        allowed = cute.make_rmem_tensor((1, row_steps, unit_steps), Boolean)
        # Compared with constants: a row number per step would be a register per step throughout the mainloop.
        rows_left = row_limit - self.first_row
        for i in range(row_steps):
            in_rows = rows_left > i * threads.rows
            for k in range(unit_steps):
                allowed[0, i, k] = self._in_columns(in_rows, k)
        cute.copy(self.copy, src, dst, pred=allowed)

    def _in_columns(self, in_rows, step: int):
        """Whether the unit of this step lies inside head_dim; only a padded head_dim needs the test."""
        g, threads = self.shape.g, self.shape.load_threads
        if g.qk_dim == g.head_dim or (step + 1) * threads.per_row * VECTOR <= g.head_dim:
            return in_rows
        return in_rows & (self.first_unit + step * threads.per_row < g.head_dim // VECTOR)


def commit():
    """Close the group of copies that were started since the last one."""
    cute.arch.cp_async_commit_group()


def wait_for_copies():
    """Wait for this thread's copies, then for everybody's; also a barrier on everybody's reads before it."""
    cute.arch.cp_async_wait_group(0)
    cute.arch.sync_threads()
