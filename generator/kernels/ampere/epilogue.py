# SPDX-License-Identifier: Apache-2.0
"""Registers to global memory: normalise, round to fp16, transpose through shared memory, store 16 bytes a thread."""
from __future__ import annotations

import cutlass
import cutlass.cute as cute

from .mma import Products, row_view
from .tile import VECTOR, TileShape


def normalise(products: Products, inverse_sums):
    """O = accumulator x 1 / row sum."""
    output = row_view(products.output)
    for row, inverse in enumerate(inverse_sums):
        output[row, None].store(output[row, None].load() * inverse)


@cute.jit
def store(shape: TileShape, source, rows, first_row, row_limit, valid_rows, thread):
    """Store rows [0, m) of the staged tile at `rows` from `first_row` on; nothing at or past `row_limit`, zeros from `valid_rows` on."""
    g, threads = shape.g, shape.load_threads
    copy = shape.vector_copy()
    part = copy.get_slice(thread)
    tile = cute.make_tensor(rows.at(first_row), cute.make_layout((g.m, g.qk_dim), stride=(rows.stride, 1)))
    src, dst = part.partition_S(source), part.partition_D(tile)
    unit = thread % threads.per_row
    for i in cutlass.range_constexpr(cute.size(src, mode=[1])):
        row = first_row + thread // threads.per_row + i * threads.rows
        if row < row_limit:
            for k in cutlass.range_constexpr(cute.size(src, mode=[2])):
                held = cute.make_rmem_tensor_like(src[None, i, k])
                cute.copy(copy, src[None, i, k], held)
                if row >= valid_rows:
                    held.fill(0.0)
                if cutlass.const_expr((k + 1) * threads.per_row * VECTOR <= g.head_dim):
                    cute.copy(copy, held, dst[None, i, k])
                else:
                    if unit + k * threads.per_row < g.head_dim // VECTOR:
                        cute.copy(copy, held, dst[None, i, k])
