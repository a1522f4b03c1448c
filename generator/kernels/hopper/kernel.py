# SPDX-License-Identifier: Apache-2.0
"""The kernel: barriers set up, then one producer and its consumers, each looping over the block's query tiles."""
from __future__ import annotations

from types import SimpleNamespace

import cutlass
import cutlass.cute as cute
from cutlass import Float16, GridConstant, Int32, Int64
from cutlass.experimental.cuda import TensorMap

from ...plans.hopper_geometry import WARPGROUP, Geometry
from ..ops import Fixed
from .barriers import Barriers
from .consumer import Consumer
from .producer import Loader, Producer
from .work import Problem


class HopperAttention(Fixed):
    """A kernel of one operation, mask and geometry; `names` are the parameters after the tensor maps, in order."""

    def __init__(self, operation: str, mask: str, geometry: Geometry, names: tuple[str, ...]):
        self.operation = operation
        self.mask = mask
        self.g = geometry
        self.names = names

    @cute.kernel
    def dense(self, q: GridConstant[TensorMap], k: GridConstant[TensorMap], v: GridConstant[TensorMap], values):
        self._run(SimpleNamespace(q=q, k=k, v=v), values)

    @cute.kernel
    def paged(self, q: GridConstant[TensorMap], pool: GridConstant[TensorMap], values):
        self._run(SimpleNamespace(q=q, k=pool, v=pool), values)

    @cute.jit
    def _run(self, maps, values):
        g = self.g
        a = SimpleNamespace(**dict(zip(self.names, values)))
        storage = cute.arch.get_dyn_smem(Float16, alignment=1024)
        barriers = Barriers(cute.recast_ptr(storage + g.barrier_offset, dtype=Int64), g)
        problem = Problem(self.operation, self.mask, g, a)
        thread, _, _ = cute.arch.thread_idx()
        first, _, _ = cute.arch.block_idx()
        step, _, _ = cute.arch.grid_dim()
        if thread == 0:
            barriers.initialise()
        cute.arch.sync_threads()
        group = cute.arch.make_warp_uniform(thread // WARPGROUP)
        if group == 0:
            cute.arch.setmaxregister_decrease(g.producer_registers)
            if thread == 0:
                Producer(g, problem, Loader(g, self.operation, maps, storage), barriers).run(first, step)
        else:
            cute.arch.setmaxregister_increase(g.consumer_registers)
            Consumer(g, problem, storage, barriers, thread % WARPGROUP, group - 1, a.scale_log2).run(first, step)
