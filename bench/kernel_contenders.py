# SPDX-License-Identifier: Apache-2.0
"""What is timed in the kernel benchmark: our kernels from one or more bundles, and torch's attention on the same tensors."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bench.kernel_cases import WINDOW, BenchCase, images

PAGE = 128
SET_BYTES = 256 << 20
"""Input sets of one shape together take at least this much, several times the L2 cache, or there are MOST_SETS of them."""

MOST_SETS = 32


@dataclass
class Tensors:
    """Input sets of one shape, [batch, seqlen, heads, head_dim] each, and one output that all contenders share."""

    sets: list[tuple[Any, Any, Any]]
    output: Any


def make_tensors(torch: Any, case: BenchCase, seed: int = 0) -> Tensors:
    """Random normal q, k and v for the shape of `case`."""
    source = torch.Generator("cuda").manual_seed(seed)

    def normal(heads):
        shape = (case.batch, case.seqlen, heads, case.head_dim)
        return torch.randn(shape, generator=source, dtype=torch.float16, device="cuda")

    heads = (case.num_q_heads, case.num_kv_heads, case.num_kv_heads)
    first = tuple(map(normal, heads))
    size = sum(tensor.numel() * tensor.element_size() for tensor in first)
    count = min(max(-(-SET_BYTES // size), 2), MOST_SETS)
    sets = [first, *(tuple(map(normal, heads)) for _ in range(count - 1))]
    return Tensors(sets, torch.full_like(first[0], float("nan")))


def ours(torch: Any, bundle: Any, case: BenchCase, tensors: Tensors, **options: Any) -> tuple[Callable[[int], None], str]:
    """A function that enqueues our kernel for `case` on input set i, and the kernel's family. Raises what the runtime raises when it
    refuses."""
    runner = bundle.runner(
        case.num_q_heads, case.num_kv_heads, case.head_dim, case.batch, case.seqlen, case.seqlen,
        use_small_d64=case.use_small_d64, **options,
    )
    lengths = torch.arange(case.batch + 1, dtype=torch.int32, device="cuda") * case.seqlen
    sliding = case.mask in ("sliding_causal", "vision_block")
    call = _Call(torch, case, runner, tensors, lengths, case.head_dim**-0.5, (WINDOW - 1,) if sliding else ())
    preflight = getattr(runner, f"preflight_{case.operation}")
    support = preflight(_stream(torch), *(call.window if case.mask == "sliding_causal" else ()))
    if support.variants != (case.variant,):
        raise ValueError(f"{case.name}: the runner selects {support.variants}, not {case.variant}")
    return getattr(call, case.operation)(), support.rows[0].family


def rival(torch: Any, backend: str, case: BenchCase, tensors: Tensors) -> Callable[[int], None]:
    """A function that enqueues torch's attention for the shape of `case` with one backend. Raises RuntimeError if it has none.

    A backend without grouped heads gets K and V with their heads repeated, outside the timed region.
    """
    if case.mask not in ("causal", "padding", "bidirectional"):
        raise RuntimeError("no window in torch's fused attention")
    group = case.num_q_heads // case.num_kv_heads
    try:
        return _attention(torch, backend, case, tensors.sets, grouped=group > 1)
    except RuntimeError:
        if group == 1:
            raise
        repeated = [(q, *(part.repeat_interleave(group, 2) for part in (k, v))) for q, k, v in tensors.sets]
        return _attention(torch, backend, case, repeated, grouped=False)


def _attention(torch, backend, case, sets, grouped):
    """torch's attention on `sets`, tried once before it is returned."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    chosen = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}[backend]
    views = [tuple(tensor.transpose(1, 2) for tensor in one) for one in sets]

    def enqueue(index):
        with sdpa_kernel(chosen):
            torch.nn.functional.scaled_dot_product_attention(
                *views[index % len(views)], is_causal=case.mask == "causal", enable_gqa=grouped,
            )

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns at length about each backend that it cannot use
        enqueue(0)
    torch.cuda.synchronize()
    return enqueue


def _stream(torch: Any) -> int:
    return torch.cuda.current_stream().cuda_stream


@dataclass
class _Call:
    """The arguments of one case; each method is named after its operation and returns its `enqueue`."""

    torch: Any
    case: BenchCase
    runner: Any
    tensors: Tensors
    lengths: Any
    scale: float
    window: tuple

    def _dense(self, index):
        return (*self.tensors.sets[index % len(self.tensors.sets)], self.tensors.output)

    def llm(self):
        def enqueue(index):
            self.runner.run(*self._dense(index), self.lengths, _stream(self.torch), self.scale, *self.window)
        return enqueue

    def padding(self):
        def enqueue(index):
            self.runner.run_padding(*self._dense(index), self.lengths, self.lengths, _stream(self.torch), self.scale)
        return enqueue

    def vision_block(self):
        block_begin = self.torch.full((self.case.batch, self.case.seqlen), -1, dtype=self.torch.int32, device="cuda")
        block_end = block_begin.clone()
        for first, last in images(self.case.seqlen):
            block_begin[:, first : last + 1], block_end[:, first : last + 1] = first, last

        def enqueue(index):
            self.runner.run_vision_block(
                *self._dense(index), self.lengths, block_begin, block_end, _stream(self.torch), self.scale, *self.window,
            )
        return enqueue

    def vit(self):
        packed = [self._packed(*self._dense(index)) for index in range(len(self.tensors.sets))]
        total = self.case.batch * self.case.seqlen

        def enqueue(index):
            self.runner.run_vit(
                *packed[index % len(packed)], self.lengths, total, self.case.seqlen, self.case.batch, _stream(self.torch), self.scale,
            )
        return enqueue

    def paged(self):
        pools = self._pools()

        def enqueue(index):
            q, _, _, o = self._dense(index)
            self.runner.run_paged(
                q, *pools[index % len(pools)], o, self.lengths, self.lengths, *self._page_sizes(pools), _stream(self.torch),
                self.scale, *self.window,
            )
        return enqueue

    def paged_ragged(self):
        pools = self._pools()
        packed = [self._packed(q, self.tensors.output) for q, _, _ in self.tensors.sets]

        def enqueue(index):
            q, o = packed[index % len(packed)]
            self.runner.run_paged_ragged(
                q, *pools[index % len(pools)], o, self.lengths, self.lengths, len(q), self.case.seqlen, *self._page_sizes(pools),
                _stream(self.torch), self.scale, *self.window,
            )
        return enqueue

    def _packed(self, *tensors):
        return tuple(tensor.flatten(0, 1) for tensor in tensors)

    def _page_sizes(self, pools):
        return len(pools[0][0]), self.case.seqlen // PAGE, PAGE

    def _pools(self):
        """(pool, page list) per input set: K and V of the set in pages, in random order."""
        torch, case, made = self.torch, self.case, []
        count = case.batch * case.seqlen // PAGE
        for _, k, v in self.tensors.sets:
            place = torch.randperm(2 * count, device="cuda")
            pool = torch.empty((2 * count, PAGE, case.num_kv_heads, case.head_dim), dtype=torch.float16, device="cuda")
            pool[place] = torch.cat([part.view(count, PAGE, case.num_kv_heads, case.head_dim) for part in (k, v)])
            made.append((pool, place.view(2, case.batch, -1).transpose(0, 1).to(torch.int32).contiguous()))
        return made
