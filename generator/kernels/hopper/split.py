# SPDX-License-Identifier: Apache-2.0
"""Consumers that share their rows: a 512-wide O does not fit into one warpgroup's registers.

Of the two tiles of keys in a step, each consumer computes the scores and probabilities of one, so Q K^T is computed once. Each
multiplies all probabilities with its own half of V's columns: its own from registers, the other's from shared memory, where
both show them to each other in two buffers that alternate. Row references are common to both: they move together.
"""
from __future__ import annotations

import operator

import cutlass.cute as cute
from cutlass import Float16, Float32, Int32
from cutlass.cute.nvgpu import warp

from ...plans.hopper_geometry import ROWS
from ..ops import Fixed, select
from .barriers import joint_any, joint_barrier
from .consumer import Consumer
from .softmax import LazySoftmax


class SharedRows(Fixed):
    """Row values that the consumers of the same rows exchange through shared memory."""

    def __init__(self, pointer, consumers: int, number, thread):
        self.consumers = consumers
        self.number = number
        self.thread = thread
        self.area = cute.make_tensor(pointer, cute.make_layout((ROWS, consumers)))

    def combine(self, value, half: int, combine):
        """`value` (equal in the four threads of a row) combined over the consumers; a barrier among them."""
        row = (self.thread // 32) * 16 + (self.thread % 32) // 4 + 8 * half
        self.area[row, self.number] = value
        joint_barrier(self.consumers)
        for other in range(1, self.consumers):
            value = combine(value, self.area[row, self._other(other)])
        return value

    def _other(self, distance: int):
        following = self.number + distance
        return select(following >= self.consumers, following - self.consumers, following)


class SplitSoftmax(LazySoftmax):
    """Softmax over rows whose scores lie in several consumers."""

    def __init__(self, rows: int, scale_log2, shared: SharedRows):
        super().__init__(rows, scale_log2)
        self.shared = shared

    def _any(self, grown):
        # The vote says what is so anyway, to the compiler: it is the same for the whole warp.
        return cute.arch.vote_any_sync(joint_any(select(grown, Int32(1), Int32(0)), self.shared.consumers) != 0)

    def _row_max(self, thread_max, row: int):
        return self.shared.combine(super()._row_max(thread_max, row), row, cute.arch.fmax)

    def total(self, row: int):
        return self.shared.combine(super().total(row), row, operator.add)


class SplitConsumer(Consumer):
    """One of two consumers of the same rows."""

    def __init__(self, geometry, problem, storage, barriers, board, thread, number, scale_log2):
        pointer = cute.recast_ptr(storage + geometry.exchange_offset, dtype=Float32)
        self.shared = SharedRows(pointer, geometry.columns, number, thread)
        super().__init__(geometry, problem, storage, barriers, board, thread, number, scale_log2)
        self.shared_value_mma = self.tiles.shared_value_mma()
        self.p_tiles = self.tiles.probabilities(storage + geometry.p_offset, 2 * geometry.columns)
        value = self.shared_value_mma.get_slice(0)
        self.p_shared = value.make_fragment_A(value.partition_A(self.p_tiles))
        store = cute.make_copy_atom(warp.StMatrix8x8x16bOp(False, 4), Float16)
        self.p_copy = cute.make_tiled_copy_C(store, self.score_mma)

    @property
    def row_group(self):
        return 0

    @property
    def column_group(self):
        return self.number

    def _make_softmax(self, scale_log2):
        return SplitSoftmax(2, scale_log2, self.shared)

    def _first_k(self):
        return self.number

    def _next_k(self, position):
        return self._skip(self.barriers.k, position)

    def _next_v(self, position):
        return self._skip(self.barriers.v, position)

    def _skip(self, ring, position):
        for _ in range(self.g.columns):
            position = ring.next(position)
        return position

    def _slot(self, position, number):
        """Buffer of the probabilities of consumer `number` for the step at a ring position."""
        ring = self.barriers.v
        return ring.phase(position) * self.g.columns + number

    @cute.jit
    def _issue_values(self, position):
        """This consumer's own tile first: the other's probabilities have had a barrier, but not long ago."""
        other = 1 - self.number
        own_position = position + self.number
        self._multiply_values(self.value_mma, self.p, own_position)
        p_other = self.p_shared[None, None, None, self._slot(position, other)]
        self._multiply_values(self.shared_value_mma, p_other, position + other)

    def _release_values(self, position):
        for tile in range(self.g.columns):
            self.barriers.v.release(position + tile)

    def _keep_probabilities(self, position):
        super()._keep_probabilities(position)
        copy = self.p_copy.get_slice(self.thread)
        rounded = cute.make_tensor(self.p.iterator, self.s.layout)
        target = copy.partition_D(self.p_tiles[None, None, self._slot(position, self.number)])
        cute.copy(self.p_copy, copy.retile(rounded), target)
        cute.arch.fence_view_async_shared()
        joint_barrier(self.g.columns)
