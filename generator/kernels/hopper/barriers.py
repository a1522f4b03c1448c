# SPDX-License-Identifier: Apache-2.0
"""The mbarriers between the producer and the consumers, and the named barriers among consumers.

Every buffer has a *full* barrier (TMA's bytes have landed) and an *empty* barrier (all readers are done). A ring of buffers
is walked by a *position* in [0, 2 x stages): the buffer is position mod stages, the barrier's phase is which half it lies
in. One 32-bit number per walker is all the state there is.
"""
from __future__ import annotations

import cutlass.cute as cute
from cutlass import Int32

from ...plans.hopper_geometry import WARPGROUP, Geometry
from ..ops import Fixed, select

WARPS = WARPGROUP // 32
#: Named barrier 0 is the block's own; one for each consumer follows (turns: two warpgroups, who has it and who gets it), then one for each
#: consumer (private), then two that are joint.
TURN = 1
PRIVATE = 5
#: Two for the consumers that share their rows.
JOINT = 8


class Ring(Fixed):
    """`stages` buffers with their full and empty barriers, from `pointer` on (64-bit elements); `readers` warps release a buffer."""

    def __init__(self, pointer, stages: int, readers: int):
        self.pointer = pointer
        self.stages = stages
        self.readers = readers

    def initialise(self):
        """By one thread, before the block's first barrier."""
        for stage in range(self.stages):
            cute.arch.mbarrier_init(self.pointer + stage, 1)
            cute.arch.mbarrier_init(self.pointer + (self.stages + stage), self.readers)

    def stage(self, position):
        if self.stages == 1:
            return Int32(0)
        return select(position >= self.stages, position - self.stages, position)

    def phase(self, position):
        return select(position >= self.stages, Int32(1), Int32(0))

    def next(self, position):
        return select(position == 2 * self.stages - 1, Int32(0), position + 1)

    def full(self, position):
        return self.pointer + self.stage(position)

    def empty(self, position):
        return self.pointer + (self.stage(position) + self.stages)

    def wait_full(self, position):
        """Consumer: until the buffer's data have landed."""
        cute.arch.mbarrier_wait(self.full(position), self.phase(position))

    def wait_empty(self, position):
        """Producer: until the buffer is free; at once for a fresh ring."""
        cute.arch.mbarrier_wait(self.empty(position), self.phase(position) ^ 1)

    def expect(self, position, byte_count: int):
        """Producer: announce the bytes of the buffer's loads."""
        cute.arch.mbarrier_arrive_and_expect_tx(self.full(position), byte_count)

    def announce(self, position):
        """Producer: the buffer is ready although nothing is loaded into it."""
        cute.arch.mbarrier_arrive(self.full(position))

    def release(self, position):
        """Consumer, all threads: this warp no longer reads the buffer."""
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive(self.empty(position))


class Barriers(Fixed):
    """All barriers of a block: K ring, V ring and Q ring."""

    def __init__(self, pointer, geometry: Geometry):
        g = geometry
        self.k = Ring(pointer, g.stages, WARPS * g.row_groups)
        self.v = Ring(pointer + 2 * g.stages, g.stages, WARPS * g.consumers)
        self.q = Ring(pointer + 4 * g.stages, g.q_stages, WARPS * g.consumers)

    def initialise(self):
        """By one thread, before the block's first barrier."""
        for ring in (self.k, self.v, self.q):
            ring.initialise()
        cute.arch.mbarrier_init_fence()


def wait_turn(number):
    """Consumer `number`: until the turn is its own."""
    cute.arch.barrier(barrier_id=TURN + number, number_of_threads=2 * WARPGROUP)


def give_turn(number):
    """Hands the turn to consumer `number`; by all threads of another warpgroup."""
    cute.arch.barrier_arrive(barrier_id=TURN + number, number_of_threads=2 * WARPGROUP)


def joint_any(flag, consumers: int):
    """Whether `flag` (int32, 0 or not) is set in any thread of the consumers that share rows; also a barrier among them."""
    return cute.arch.inline_ptx(
        "{ .reg .pred seen; setp.ne.s32 seen, {$r0}, 0; barrier.cta.red.or.aligned.pred seen, %d, %d, seen; selp.s32 {$w0}, 1, 0, seen; }"
        % (JOINT, WARPGROUP * consumers),
        write_only_types=[Int32], read_only_args=[flag],
    )


def joint_barrier(consumers: int):
    """Barrier among the consumers that share rows."""
    cute.arch.barrier(barrier_id=JOINT + 1, number_of_threads=WARPGROUP * consumers)
