# SPDX-License-Identifier: Apache-2.0
"""From the accumulator to O in global memory: normalise, round to fp16, store 16 bytes a thread.

The four threads of a row hold two columns of each 8-column block. Four blocks are transposed among them, so that each
thread stores one whole block (16 bytes) and the row's store is 64 bytes wide. No shared memory, hence no waiting.
"""
from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cutlass import Float16, Int32

from ...plans.hopper_geometry import Geometry
from ..ops import Fixed, select
from .tiles import by_row
from .work import Problem, Work

BLOCK = 8  # columns of an 8-column block, 16 bytes of fp16
GROUP = 4  # threads of a row, hence blocks transposed together


def _transpose(words, lane):
    """4x4 transpose of one word per block among the four threads of a row: word b of thread t becomes word t of thread b."""
    for distance in (1, 2):
        upper = (lane & distance) != 0
        out = list(words)
        for low in (i for i in range(GROUP) if not i & distance):
            high = low + distance
            sent = select(upper, words[low], words[high])
            received = cute.arch.shuffle_sync_bfly(sent, offset=distance)
            out[low] = select(upper, received, words[low])
            out[high] = select(upper, words[high], received)
        words = out
    return words


class Epilogue(Fixed):
    """Writes the rows of one consumer. `thread` is the thread's number in its warpgroup."""

    def __init__(self, geometry: Geometry, thread):
        self.g = geometry
        self.thread = thread

    @cute.jit
    def store(self, problem: Problem, work: Work, first_row, column_group, accumulator, inverse):
        """Rows `first_row` and `first_row` + 8 of this thread, times `inverse` (a factor each); `column_group` counts groups of value_dim columns."""
        rows = by_row(accumulator)
        output = problem.output(work)
        lane = self.thread % GROUP
        for half in cutlass.range_constexpr(2):
            row = first_row + 8 * half
            rows[half, None].store(rows[half, None].load() * inverse[half])
            words = self._words(rows, half, row < work.q_len)
            self._store_row(output, row, column_group * (self.g.value_dim // 2), row < work.rows, words, lane)

    def _words(self, rows, half: int, valid):
        """fp16 pairs of this thread, one per 8-column block; zeros for a row past the query length."""
        packed = cute.make_rmem_tensor(self.g.value_dim // 4, Float16)
        flat = cute.make_tensor(packed.iterator, cute.make_layout((2, self.g.value_dim // 8)))
        for block in range(self.g.value_dim // 8):
            for side in range(2):
                flat[side, block] = rows[half, (side, block)].to(Float16)
        words = cute.recast_tensor(packed, Int32)
        return [select(valid, words[block], Int32(0)) for block in range(min(self.g.head_dim, self.g.value_dim) // BLOCK)]

    @cute.jit
    def _store_row(self, output, row, first_word, exists, words, lane):
        whole = len(words) // GROUP * GROUP
        wide = [_transpose(words[first:first + GROUP], lane) for first in range(0, whole, GROUP)]
        if exists:
            target = cute.recast_ptr(output.at(row), dtype=Int32) + first_word
            for group in cutlass.range_constexpr(len(wide)):
                place = cute.make_tensor(
                    (target + (group * GROUP * GROUP + lane * GROUP)).align(16), cute.make_layout(GROUP)
                )
                vector = cute.make_rmem_tensor(GROUP, Int32)
                for word in cutlass.range_constexpr(GROUP):
                    vector[word] = wide[group][word]
                cute.autovec_copy(vector, place)
            for block in cutlass.range_constexpr(whole, len(words)):
                cute.make_tensor(target + (block * GROUP + lane), cute.make_layout(1))[0] = words[block]
