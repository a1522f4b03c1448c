# SPDX-License-Identifier: Apache-2.0
"""Attention on mma.sync, read from top to bottom: load, multiply, mask, softmax, accumulate, store.

A block owns `m` query rows of one head and walks over the key tiles that its rows can see. While S = Q K^T of a tile is computed and
turned into probabilities, its V is on the way; while O += P V is computed, the next K is. One K and one V buffer are enough
for that, and two blocks an SM hide what is left.
"""
from __future__ import annotations

import operator
from types import SimpleNamespace

import cutlass
import cutlass.cute as cute
from cutlass import Float16

from ...plans.ampere import geometry, kernel_parameters
from .. import addressing
from ..masks import in_interval, make_mask
from ..ops import Fixed, select
from ..softmax import NEG_INF, OnlineSoftmax
from . import epilogue
from .exchange import Exchange, block_hull
from .loads import TileLoader, commit, wait_for_copies
from .mma import Products, row_view
from .tile import TileShape


class Attention(Fixed):
    """The kernel of one spec; `kernel` is what is traced."""

    def __init__(self, spec):
        self.spec = spec
        self.g = geometry(spec)
        self.names = [parameter.name for parameter in kernel_parameters(spec)]
        self.longest_first = spec.mask in ("causal", "sliding_causal", "vision_block")

    @cute.kernel
    def kernel(self, arguments):
        a = SimpleNamespace(**dict(zip(self.names, arguments)))
        thread, _, _ = cute.arch.thread_idx()
        tile, head, batch = cute.arch.block_idx()
        if cutlass.const_expr(self.longest_first):
            # Under a causal mask the last rows see the most keys: start with them, so that short tiles fill the tail.
            tile = cute.arch.grid_dim()[0] - 1 - tile
        first_row = tile * self.g.m
        sequence = addressing.sequence(self.spec.operation, a, batch, head, self.spec.head_dim)
        if first_row < sequence.rows:
            self.attend(a, sequence, batch, first_row, thread)

    @cute.jit
    def attend(self, a, sequence, batch, first_row, thread):
        """One query tile of one head."""
        g = self.g
        shape = TileShape(g)
        storage = cute.arch.get_dyn_smem(Float16, alignment=16)
        s_q = shape.shared_tensor(storage, 0, g.m, g.qk_dim)
        s_k = shape.shared_tensor(storage, g.q_elements, g.n, g.qk_dim)
        s_v = shape.shared_tensor(storage, g.q_elements + g.kv_elements, g.n, g.qk_dim)
        s_o = shape.shared_tensor(storage, 0, g.m, g.value_dim)

        mask = self.mask(a, sequence, batch, first_row, thread, storage)
        low, high = mask.visited(first_row, g.m)
        high = cutlass.min(high, sequence.key_limit)
        low_full, high_full = mask.unmasked(first_row, g.m)
        first_tile = low // g.n
        end_tile = select(low < high, (high + (g.n - 1)) // g.n, first_tile)

        loader = TileLoader(shape, thread)
        exchange = Exchange(g, storage, g.q_elements, g.q_elements + 2 * g.kv_elements)
        products = Products(shape, thread, s_q, s_k, s_v, exchange.probabilities)
        softmax = OnlineSoftmax(cute.size(row_view(products.scores), mode=[0]), a.scale_log2)
        keys, k_stride, v_stride = sequence.keys, *sequence.keys.strides

        loader.load(s_q, sequence.q.at(first_row), sequence.q.stride, g.m, sequence.q_len - first_row)
        if first_tile < end_tile:
            first_key = first_tile * g.n
            loader.load(s_k, keys.k_tile(first_key), k_stride, g.n, sequence.key_limit - first_key)
        commit()

        for j in cutlass.range(first_tile, end_tile, unroll=1):
            first_key = j * g.n
            wait_for_copies()
            loader.load(s_v, keys.v_tile(first_key), v_stride, g.n, sequence.key_limit - first_key)
            commit()

            products.score()
            if (first_key < low_full) | (first_key + g.n > cutlass.min(high_full, sequence.key_limit)):
                apply_mask(mask, products, first_row, first_key, sequence.key_limit)
            self.weigh(softmax, products, exchange, thread)

            wait_for_copies()
            exchange.fetch_probabilities(products)
            next_key = first_key + g.n
            if j + 1 < end_tile:
                loader.load(s_k, keys.k_tile(next_key), k_stride, g.n, sequence.key_limit - next_key)
            commit()
            products.accumulate()

        epilogue.normalise(products, self.inverse_sums(softmax, products, exchange, thread))
        wait_for_copies()
        epilogue.stage(products, s_o, thread)
        cute.arch.sync_threads()
        epilogue.store(shape, s_o, sequence.o, first_row, sequence.rows, sequence.q_len, thread)

    def mask(self, a, sequence, batch, first_row, thread, storage):
        """The mask of this block; a vision-block mask also learns the hull of its rows' intervals."""
        kind = self.spec.mask
        window = getattr(a, "window_size_left", None)
        blocks = addressing.block_intervals(a, batch) if kind == "vision_block" else None
        mask = make_mask(kind, sequence.q_len, sequence.kv_len, window, blocks)
        if mask.has_second_interval:
            mask.hull = block_hull(mask.second_interval, first_row + thread, self.g.m, self.g.threads, thread, storage)
        return mask

    def weigh(self, softmax, products, exchange, thread):
        """Scores to probabilities, and the correction of what was accumulated so far."""
        scores, output = row_view(products.scores), row_view(products.output)
        maxima = [softmax.tile_max(scores, row) for row in range(softmax.rows)]
        maxima = exchange.combine(maxima, products, thread, cute.arch.fmax)
        for row, tile_max in enumerate(maxima):
            correction = softmax.step(scores, row, tile_max)
            output[row, None].store(output[row, None].load() * correction)
        exchange.publish_probabilities(products, thread)

    def inverse_sums(self, softmax, products, exchange, thread):
        """1 / row sum per row of this thread."""
        sums = [softmax.total(row) for row in range(softmax.rows)]
        return [softmax.inverse_sum(total) for total in exchange.combine(sums, products, thread, operator.add)]


def apply_mask(mask, products, first_row, first_key, key_limit):
    """Replace the scores of keys that a row does not see by -inf."""
    scores = row_view(products.scores)
    column = first_key + products.first_column
    for r in range(cute.size(scores, mode=[0])):
        row = first_row + products.first_row + products.row_offset(r)
        low, high = mask.lower(row), cutlass.min(mask.upper(row), key_limit)
        second = mask.second_interval(row) if mask.has_second_interval else None
        for c in range(cute.size(scores, mode=[1])):
            key = column + products.column_offset(c)
            seen = in_interval(key, low, high)
            if second is not None:
                seen = seen | in_interval(key, second[0], second[1])
            scores[r, c] = select(seen, scores[r, c], NEG_INF)


def build(spec) -> Attention:
    """The kernel of a spec of family `ampere`."""
    return Attention(spec)
