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
    g, copy, place = shape.g, shape.vector_copy(), shape.place(thread)
    # Threads without a unit of the row, or with one of the zeros past head_dim, store nothing.
    limit = row_limit
    if cutlass.const_expr(shape.idle_threads or shape.zero_units):
        limit = select(place.unit < g.head_dim // VECTOR, row_limit, Int32(0))
    sources, targets = place.walk(source.iterator, g.row_pitch, g.m), place.walk(rows.at(first_row), rows.stride, g.m)
    for (step, src), (_, dst) in zip(sources, targets):
        row = first_row + place.row + step
        if row < limit:
            for unit in cutlass.range_constexpr(place.units):
                staged = place.vector(src, unit)
                held = cute.make_rmem_tensor_like(staged)
                cute.copy(copy, staged, held)
                if row >= valid_rows:
                    held.fill(0.0)
                cute.copy(copy, held, place.vector(dst, unit))
