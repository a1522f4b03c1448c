# SPDX-License-Identifier: Apache-2.0
"""Attention on mma.sync, read from top to bottom: load, multiply, mask, softmax, accumulate, store.

A block owns `m` query rows of one head and walks over the key tiles that its rows can see. While S = Q K^T of a tile is computed, its
V is on the way; while S is turned into probabilities and O += P V is computed, the next K is. One K and one V buffer are enough for
that, and a second block on the SM hides what is left.
"""
from __future__ import annotations

import operator
from types import SimpleNamespace

import cutlass
import cutlass.cute as cute
from cutlass import Float16, Int32

from ...plans.ampere import geometry, kernel_parameters
from .. import addressing
from ..fault_report import FaultReport
from ..masks import SlidingCausalMask, in_interval, make_mask
from ..ops import Fixed, reread, select
from ..softmax import NEG_INF, OnlineSoftmax
from . import epilogue
from .exchange import Exchange, block_hull
from .loads import TileLoader, commit, wait_for_copies
from .mma import Products, row_view, store_shared
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
        head, tile, batch = cute.arch.block_idx()
        first_row = self.first_row(tile)
        sequence = self.sequence(a, batch, head, thread)
        if first_row < sequence.rows:
            self.attend(a, sequence, batch, first_row, thread)

    def sequence(self, a, batch, head, thread):
        """The rows and keys of (batch, query head); a checked kernel verifies them on the way."""
        report = FaultReport(a.fault_report, batch, thread) if self.spec.checked else None
        return addressing.sequence(self.spec.operation, a, batch, head, self.spec.head_dim, report)

    def load_tile(self, loader, thread, target, rows, stride):
        """Start `thread`'s part of the copy of a K or V tile: `rows` is (address, how many rows exist).

        In the mainloop threads read their number anew: what they derive from it lives no longer than the copy.
        """
        loader.load(thread, target, rows[0], stride, self.g.n, rows[1])

    def first_row(self, tile):
        """First query row of a block. Under a causal mask the last rows see the most keys and go first, so that short tiles fill the tail."""
        return (cute.arch.grid_dim()[1] - 1 - tile if self.longest_first else tile) * self.g.m

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
        low_full, high_full = mask.unmasked(first_row, g.m)
        first_tile = low // g.n
        end_tile = select(low < high, (high + (g.n - 1)) // g.n, first_tile)

        loader = TileLoader(shape)
        exchange = Exchange(g, storage)
        products = Products(shape, thread, s_q, s_k, s_v, exchange.probabilities)
        softmax = OnlineSoftmax(g.thread_rows, a.scale_log2, shape.shared_sums(storage, thread))
        softmax.reset()
        products.output.fill(0.0)
        keys, k_stride, v_stride = sequence.keys, *sequence.keys.strides

        loader.load(thread, s_q, sequence.q.at(first_row), sequence.q.stride, g.m, sequence.q_len - first_row)
        if first_tile < end_tile:
            first_key = first_tile * g.n
            self.load_tile(loader, thread, s_k, keys.k_tile(first_key), k_stride)
        commit()

        for j in cutlass.range(first_tile, end_tile, unroll=1):
            first_key = j * g.n
            # The page is looked up before the wait, so that both latencies are one.
            v_rows = keys.v_tile(first_key)
            wait_for_copies()
            self.load_tile(loader, reread("tid.x"), s_v, v_rows, v_stride)
            commit()

            products.score()
            if (first_key < low_full) | (first_key + g.n > high_full):
                self.apply_mask(mask, products, first_key)
            if cutlass.const_expr(g.softmax_first):
                self.weigh(softmax, products, exchange, thread)

            wait_for_copies()
            exchange.fetch_probabilities(products)
            next_key = first_key + g.n
            if j + 1 < end_tile:
                self.load_tile(loader, reread("tid.x"), s_k, keys.k_tile(next_key), k_stride)
            commit()
            if cutlass.const_expr(not g.softmax_first):
                self.weigh(softmax, products, exchange, thread)
            products.accumulate()

        epilogue.normalise(products, self.inverse_sums(softmax, products, exchange, thread))
        wait_for_copies()
        store_shared(products.mma, thread, products.output, s_o)
        cute.arch.sync_threads()
        self.store(a, shape, s_o)

    def store(self, a, shape, staged):
        """Write the staged output tile. Its place is worked out only now: the mainloop has no registers to spare for it."""
        head, batch, thread = reread("ctaid.x"), reread("ctaid.z"), reread("tid.x")
        sequence = self.sequence(a, batch, head, thread)
        first_row = self.first_row(reread("ctaid.y"))
        epilogue.store(shape, staged, sequence.o, first_row, sequence.rows, sequence.q_len, thread)

    def mask(self, a, sequence, batch, first_row, thread, storage):
        """The mask of this block; a vision-block mask also learns the hull of its rows' intervals."""
        kind = self.spec.mask
        window = getattr(a, "window_size_left", None)
        blocks = addressing.block_intervals(a, batch) if kind == "vision_block" else None
        mask = make_mask(kind, sequence.q_len, sequence.offset, sequence.keys.limit, window, blocks)
        if mask.has_second_interval:
            mask.hull = block_hull(mask.second_interval, first_row + thread, self.g.m, self.g.threads, thread, storage)
        return mask

    def apply_mask(self, mask, products, first_key):
        """Replace the scores of keys that a row does not see by -inf.

        The rows' places are read anew, so that their bounds are worked out here and not kept in registers throughout the loop.
        """
        scores = row_view(products.scores)
        row_in_tile, column = products.position(reread("tid.x"))
        first_row = self.first_row(reread("ctaid.y")) + row_in_tile
        # Relative to this thread's first key of the tile.
        first_key = first_key + column
        windowed = isinstance(mask, SlidingCausalMask)
        for r in range(cute.size(scores, mode=[0])):
            row = first_row + products.row_offset(r)
            low, high = mask.lower(row) - first_key, mask.upper(row) - first_key
            if mask.has_second_interval:
                block_low, block_high = (end - first_key for end in mask.second_interval(row))
            for c in range(cute.size(scores, mode=[1])):
                key = Int32(products.column_offset(c))
                # Without a window every interval begins with the first key, and one comparison with a constant is enough.
                seen = in_interval(key, low, high) if windowed else key < high
                if mask.has_second_interval:
                    seen = seen | in_interval(key, block_low, block_high)
                scores[r, c] = select(seen, scores[r, c], NEG_INF)

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


def build(spec) -> Attention:
    """The kernel of a spec of family `ampere`."""
    return Attention(spec)
