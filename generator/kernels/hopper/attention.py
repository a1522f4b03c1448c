# SPDX-License-Identifier: Apache-2.0
"""The kernel: barriers set up, then one producer and its consumers, each looping over the block's query tiles.

              +-------- full --------+         Q, K, V: a ring of buffers each
    producer -+-> Q, K, V in shared  +-> consumer 0 (64 rows)   S = Q K^T, softmax, O += P V, store
    (1 warp,  |                      +-> consumer 1 (64 rows)
     TMA)  <--+------- empty --------+   ...

docs/kernels.md draws the timeline.
"""
from __future__ import annotations

from types import SimpleNamespace

import cutlass
import cutlass.cute as cute
from cutlass import Float16, GridConstant, Int32, Int64
from cutlass.experimental.cuda import TensorMap

from ...plans.hopper import scalar_parameters
from ...plans.hopper_geometry import WARPGROUP, geometry
from ..ops import Fixed
from .barriers import Barriers, give_turn
from .consumer import Consumer
from .producer import Producer
from .split import SplitConsumer
from .tensor_maps import placeholder
from .work import Board, Problem


class Attention(Fixed):
    """The kernel of one spec; a subclass says which tensor maps come before the other parameters."""

    #: Makes the stand-in for a tensor map that tracing needs.
    map_placeholder = staticmethod(placeholder)

    def __init__(self, spec):
        self.spec = spec
        self.g = geometry(spec)
        # The blocks of an SM share its registers evenly; a block's warpgroups then divide its part among themselves.
        self.launch_options = {"min_blocks_per_mp": self.g.blocks_per_sm}
        if self.g.blocks_per_sm > 1:
            # The toolchain would ask a driver for the size of shared memory, to prefer a part of it at its own launches, which are never made.
            self.launch_options["preferred_smem_carveout"] = 100
        self.names = [parameter.name for parameter in scalar_parameters(spec)]

    @cute.jit
    def attend(self, maps, values):
        g = self.g
        a = SimpleNamespace(**dict(zip(self.names, values)))
        storage = cute.arch.get_dyn_smem(Float16, alignment=1024)
        barriers = Barriers(cute.recast_ptr(storage + g.barrier_offset, dtype=Int64), g)
        board = Board(cute.recast_ptr(storage + g.notice_offset, dtype=Int32), g.notices)
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        blocks, _, _ = cute.arch.grid_dim()
        problem = Problem(self.spec.operation, self.spec.mask, g, a, block, blocks)
        if thread == 0:
            barriers.initialise()
        cute.arch.sync_threads()
        group = cute.arch.make_warp_uniform(thread // WARPGROUP)
        if group == 0:
            cute.arch.setmaxregister_decrease(g.producer_registers)
            if cutlass.const_expr(g.in_turns):
                give_turn(0)
            if thread < 32:
                Producer(g, problem, maps, storage, barriers, board, thread).run()
        else:
            cute.arch.setmaxregister_increase(g.consumer_registers)
            role = SplitConsumer if g.columns > 1 else Consumer
            role(g, problem, storage, barriers, board, thread % WARPGROUP, group - 1, a.scale_log2).run()


class DenseAttention(Attention):
    """K and V are tensors of their own, dense or packed."""

    @cute.kernel
    def kernel(self, q: GridConstant[TensorMap], k: GridConstant[TensorMap], v: GridConstant[TensorMap], values):
        self.attend(SimpleNamespace(q=q, k=k, v=v), values)


class PagedAttention(Attention):
    """K and V are pages of one pool."""

    @cute.kernel
    def kernel(self, q: GridConstant[TensorMap], pool: GridConstant[TensorMap], values):
        self.attend(SimpleNamespace(q=q, k=pool, v=pool), values)


def build(spec) -> Attention:
    """The kernel of a spec of family `hopper`.

    :raises ValueError: for a checked kernel: those are of family `ampere` only
    """
    if spec.checked:
        raise ValueError("family hopper has no checked kernels; use family ampere")
    return (PagedAttention if spec.kv_layout == "paged" else DenseAttention)(spec)
