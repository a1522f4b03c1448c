# SPDX-License-Identifier: Apache-2.0
"""Registers to global memory: normalise, round to fp16, transpose through shared memory, store 16 bytes a thread."""
from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from ..ops import select
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
    src = part.partition_S(shape.walked(source.iterator, g.m, g.row_pitch))
    dst = part.partition_D(shape.walked(rows.at(first_row), g.m, rows.stride))
    # Threads without a unit of the row, or with one of the zeros past head_dim, store nothing.
    limit = row_limit
    if cutlass.const_expr(shape.idle_threads or shape.zero_units):
        limit = select(thread % threads.per_row < g.head_dim // VECTOR, row_limit, Int32(0))
    for i in cutlass.range_constexpr(cute.size(src, mode=[1])):
        row = first_row + thread // threads.per_row + i * threads.rows
        if row < limit:
            for k in cutlass.range_constexpr(cute.size(src, mode=[2])):
                held = cute.make_rmem_tensor_like(src[None, i, k])
                cute.copy(copy, src[None, i, k], held)
                if row >= valid_rows:
                    held.fill(0.0)
                cute.copy(copy, held, dst[None, i, k])
