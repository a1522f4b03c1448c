# SPDX-License-Identifier: Apache-2.0
"""The runner: attention on device tensors, with the functions, argument orders and checks of `CuteDslFMHAV2Runner`."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from . import checked_launch, checked_report, layout, scalars
from .driver import Place
from .dtypes import INT_MAX, MaskType
from .errors import ArgumentError, DeviceError, UnsupportedError
from .fault_codes import FAULT_REPORT
from .launch import BoundPlan
from .loader import Kernel
from .metadata import Operation, Row
from .names import public_name
from .query import ROUTE_CUBIN, ROUTES, Query, Support, request_problem, select
from .request import dtype_of, family_of
from .scalars import extent, flag
from .streams import stream_handle
from .tensors import TensorView, view

if TYPE_CHECKING:
    from .bundle import Bundle

_KEPT = 1024
"""Selections and layouts that a runner keeps for calls of the same shape."""


_NONE: Mapping = MappingProxyType({})


class Runner:
    """Runs one attention shape from a bundle; made by `Bundle.runner`. Thread-safe.

    Tensors are objects with `__cuda_array_interface__` or `__dlpack__`, or addresses as integers. Sizes that the runner was not
    given are taken from the tensors; bare addresses need all of them and mean packed tensors. Streams are handles (0 is the
    default stream), or stream objects of torch, cupy or cuda.core. Work is enqueued and not waited for: the caller orders the
    streams and keeps the memory alive until the work is done.

    A runner made with `checked=True` takes the checked variants: it waits for each launch and raises FaultReported when the kernel met
    a page id or a length that would have led it astray; such a launch cannot be captured in a graph.

    Every function raises an ArgumentError naming the argument when a precondition does not hold, UnsupportedError when no row
    serves the request, LoadError when a row cannot be loaded, and DriverError when the launch fails.
    """

    def __init__(self, bundle: Bundle, num_q_heads: int, num_kv_heads: int, head_dim: int, batch_size: int = 0, seqlen_q: int = 0,
                 kv_seqlen: int = 0, use_small_d64: bool = True, device: int | None = None, *, dtype: str = "float16",
                 route: str = ROUTE_CUBIN, row_sm: int | None = None, family: str | None = None, checked: bool = False):
        self._bundle = bundle
        self._driver = bundle.driver
        self._heads = {"num_q_heads": extent("num_q_heads", num_q_heads, 1), "num_kv_heads": extent("num_kv_heads", num_kv_heads, 1)}
        self._check_heads()
        self._head_dim = extent("head_dim", head_dim, 1)
        stated = {"batch": extent("batch_size", batch_size), "seqlen_q": extent("seqlen_q", seqlen_q),
                  "seqlen_kv": extent("kv_seqlen", kv_seqlen)}
        self._sizes = {name: value for name, value in stated.items() if value}
        if route not in ROUTES:
            raise ArgumentError("route", f"{route!r} is unknown; use {' or '.join(ROUTES)}")
        self._device = None if device is None else extent("device", device)
        self._flags = {"use_small_d64": flag("use_small_d64", use_small_d64)}
        self._route = route
        self._options = {"dtype": dtype_of(dtype), "route": route, "row_sm": None if row_sm is None else extent("row_sm", row_sm),
                         "family": family_of(family), "checked": flag("checked", checked)}
        self._selections: dict[tuple, Support] = {}
        self._layouts: dict[tuple, layout.Layout] = {}

    def _check_heads(self) -> None:
        for operation in self._bundle.metadata.operations.values():
            problem = request_problem(operation, self._heads)
            if problem:
                raise ArgumentError(*problem)

    # -- preflight ----------------------------------------------------------------------------------------------------------

    def preflight_llm(self, stream: object, sliding_window_size: int = INT_MAX) -> Support:
        """Loads the variant that `run` will select, so that `run` may be captured in a graph. Launches nothing.

        Returns the Support with the rows that are now loaded: several if the selection depends on a seqlen_q that the runner was
        not given.
        """
        return self._preflight("llm", _causal(sliding_window_size), stream, "preflight_llm")

    def preflight_paged(self, stream: object, sliding_window_size: int = INT_MAX) -> Support:
        """Like `preflight_llm`, for `run_paged`."""
        return self._preflight("paged", _causal(sliding_window_size), stream, "preflight_paged")

    def preflight_paged_ragged(self, stream: object, sliding_window_size: int = INT_MAX) -> Support:
        """Like `preflight_llm`, for `run_paged_ragged`."""
        return self._preflight("paged_ragged", _causal(sliding_window_size), stream, "preflight_paged_ragged")

    def preflight_padding(self, stream: object) -> Support:
        """Like `preflight_llm`, for `run_padding`."""
        return self._preflight("padding", MaskType.PADDING, stream, "preflight_padding")

    def preflight_vision_block(self, stream: object) -> Support:
        """Like `preflight_llm`, for `run_vision_block`."""
        return self._preflight("vision_block", MaskType.VISION_BLOCK, stream, "preflight_vision_block")

    def preflight_vit(self, stream: object) -> Support:
        """Like `preflight_llm`, for `run_vit`."""
        return self._preflight("vit", MaskType.BIDIRECTIONAL, stream, "preflight_vit")

    # -- run ----------------------------------------------------------------------------------------------------------------

    def run(self, q: object, k: object, v: object, o: object, cu_kv_seqlens: object, stream: object, attention_scale: float,
            sliding_window_size: int = INT_MAX) -> None:
        """Causal or sliding-causal attention over dense K and V.

        q, o: float16 [batch, seqlen_q, num_q_heads, head_dim]; k, v: float16 [batch, kv_seqlen, num_kv_heads, head_dim];
        cu_kv_seqlens: int32 [batch + 1], prefix sums of the logical key lengths. Query row i of a batch entry with n keys sees
        the keys up to i + n - seqlen_q, and with a window only the last sliding_window_size + 1 of them; a negative window sees
        none. Rows that see no key become zeros; every row is written.
        """
        self._run("llm", _causal(sliding_window_size), "preflight_llm", stream, attention_scale,
                  {"q": q, "k": k, "v": v, "o": o, "cu_kv_seqlens": cu_kv_seqlens}, self._sizes,
                  {"window_size_left": scalars.window_size_left(sliding_window_size)})

    def run_paged(self, q: object, paged_kv_pool: object, kv_cache_page_list: object, o: object, cu_q_seqlens: object,
                  cu_kv_seqlens: object, num_flat_pages: int | None = None, max_pages_per_seq: int | None = None,
                  tokens_per_page: int | None = None, stream: object = None, attention_scale: float | None = None,
                  sliding_window_size: int = INT_MAX) -> None:
        """Causal or sliding-causal attention against a paged KV pool.

        q, o as in `run`; paged_kv_pool: float16 [2, pages, 128, num_kv_heads, head_dim] or the same as flat pages
        [num_flat_pages, 128, num_kv_heads, head_dim]; kv_cache_page_list: int32 [batch, 2, max_pages_per_seq], the flat pages of
        keys (row 0) and values (row 1); cu_q_seqlens, cu_kv_seqlens: int32 [batch + 1]. Rows past a query length become zeros.
        """
        self._run("paged", _causal(sliding_window_size), "preflight_paged", stream, attention_scale,
                  _paged_tensors(q, paged_kv_pool, kv_cache_page_list, o, cu_q_seqlens, cu_kv_seqlens),
                  {**self._paged_sizes(num_flat_pages, max_pages_per_seq, tokens_per_page), **self._only("batch", "seqlen_q")},
                  {"window_size_left": scalars.window_size_left(sliding_window_size, negative=False)})

    def run_paged_ragged(self, q: object, paged_kv_pool: object, kv_cache_page_list: object, o: object, cu_q_seqlens: object,
                         cu_kv_seqlens: object, total_q_seqlen: int | None = None, max_q_seqlen: int | None = None,
                         num_flat_pages: int | None = None, max_pages_per_seq: int | None = None, tokens_per_page: int | None = None,
                         stream: object = None, attention_scale: float | None = None, sliding_window_size: int = INT_MAX) -> None:
        """Like `run_paged` with packed q and o: float16 [total_q_seqlen, num_q_heads, head_dim]. Only valid rows are written.

        max_q_seqlen bounds the longest query sequence; left out, total_q_seqlen is taken, which is right but launches more.
        """
        sizes = {**self._paged_sizes(num_flat_pages, max_pages_per_seq, tokens_per_page), **self._only("batch"),
                 **_stated(total_seqlen_q=total_q_seqlen, max_seqlen_q=max_q_seqlen)}
        self._run("paged_ragged", _causal(sliding_window_size), "preflight_paged_ragged", stream, attention_scale,
                  _paged_tensors(q, paged_kv_pool, kv_cache_page_list, o, cu_q_seqlens, cu_kv_seqlens), sizes,
                  {"window_size_left": scalars.window_size_left(sliding_window_size, negative=False)},
                  {"max_seqlen_q": "total_seqlen_q"})

    def run_padding(self, q: object, k: object, v: object, o: object, cu_q_seqlens: object, cu_kv_seqlens: object, stream: object,
                    attention_scale: float) -> None:
        """Attention without causality: q, k, v, o as in `run`, with independent logical lengths in two int32 [batch + 1]."""
        self._run("padding", MaskType.PADDING, "preflight_padding", stream, attention_scale,
                  {"q": q, "k": k, "v": v, "o": o, "cu_q_seqlens": cu_q_seqlens, "cu_kv_seqlens": cu_kv_seqlens}, self._sizes)

    def run_vision_block(self, q: object, k: object, v: object, o: object, cu_kv_seqlens: object, block_begin: object,
                         block_end: object, stream: object, attention_scale: float, sliding_window_size: int = INT_MAX) -> None:
        """Sliding-causal attention as in `run`, or block_begin <= key <= block_end of the row.

        block_begin, block_end: int32 [batch, seqlen_q], both ends inclusive, -1 and -1 for no block. A negative window is none.
        """
        window = scalars.window_size_left(sliding_window_size)
        self._run("vision_block", MaskType.VISION_BLOCK, "preflight_vision_block", stream, attention_scale,
                  {"q": q, "k": k, "v": v, "o": o, "cu_kv_seqlens": cu_kv_seqlens, "block_begin": block_begin,
                   "block_end": block_end}, self._sizes,
                  {"window_size_left": scalars.NO_WINDOW if window < 0 else window})

    def run_vit(self, q: object, k: object, v: object, o: object, cu_seqlens: object, total_seqlen: int | None = None,
                max_seqlen: int | None = None, batch_size: int | None = None, stream: object = None,
                attention_scale: float | None = None) -> None:
        """Bidirectional attention within each sequence of a packed batch.

        q, o: float16 [total_seqlen, num_q_heads, head_dim]; k, v: float16 [total_seqlen, num_kv_heads, head_dim]; cu_seqlens:
        int32 [batch_size + 1]. max_seqlen bounds the longest sequence; left out, total_seqlen is taken. Rows outside every
        sequence are not written.
        """
        sizes = {**self._only("batch"), **_stated(total_seqlen=total_seqlen, max_seqlen=max_seqlen, batch=batch_size)}
        self._run("vit", MaskType.BIDIRECTIONAL, "preflight_vit", stream, attention_scale,
                  {"q": q, "k": k, "v": v, "o": o, "cu_seqlens": cu_seqlens}, sizes, {}, {"max_seqlen": "total_seqlen"})

    # -- shared -------------------------------------------------------------------------------------------------------------

    def _preflight(self, operation: str, mask: MaskType, stream: object, name: str) -> Support:
        handle = stream_handle(stream)
        seqlen_name = self._operation(operation).seqlen_q_argument
        place = self._place(handle)
        support = self._select(operation, mask, place.device, self._sizes.get("seqlen_q") if seqlen_name == "seqlen_q" else None)
        with self._driver.current(place):
            for row in support.rows:
                self._ready(row, place, handle, name)
        return support

    def _run(self, operation: str, mask: MaskType, preflight: str, stream: object, attention_scale: float | None,
             tensors: Mapping[str, object], sizes: Mapping[str, int], scalar_arguments: Mapping[str, int] = _NONE,
             bounds: Mapping[str, str] = _NONE) -> None:
        """Checks everything, selects the row, loads it if need be, and launches.

        `bounds` maps a size that may be left out to the size that bounds it.
        """
        handle = stream_handle(stream)
        arguments = self._operation(operation).arguments
        scale = scalars.scale_log2(attention_scale, arguments["scale_log2"].maximum)
        views = {name: view(public_name(name), tensor) for name, tensor in tensors.items()}
        shape = self._layout(operation, views, {**sizes, **self._heads, **scalar_arguments}, bounds)
        addresses = shape.addresses(views)
        shape.check_overlap(addresses)
        place = self._place(handle)
        seqlen_q = shape.values[self._bundle.metadata.operations[operation].seqlen_q_argument]
        row = self._select(operation, mask, place.device, seqlen_q).rows[0]
        with self._driver.current(place):
            self._check_devices(place.device, views)
            self._submit(row, place, shape, {**addresses, "scale_log2": scale}, handle, preflight)

    def _operation(self, name: str) -> Operation:
        """An operation of the bundle. Raises UnsupportedError when it has none of that name."""
        found = self._bundle.metadata.operations.get(name)
        if found is None:
            raise UnsupportedError(select(self._bundle.metadata, Query((name,), self._head_dim, 0)))
        return found

    def _ready(self, row: Row, place: Place, stream: int, preflight: str) -> None:
        """Loads a row into the current context, which is that of `place`."""
        self._bundle.loader.prepare(row, self._route, place.device, place.context, stream, preflight)

    def _submit(self, row: Row, place: Place, shape: layout.Layout, values: Mapping[str, int | float], stream: int, preflight: str) -> None:
        """Loads a row if need be and launches it. `values` are the arguments that are not in `shape`: addresses and scale."""
        if row.checked:
            checked_launch.refuse_capture(self._driver, row, stream)
        loader = self._bundle.loader
        kernel = loader.prepare(row, self._route, place.device, place.context, stream, preflight)
        bound = shape.bound_plan(kernel.plan, kernel.sm_count)
        if bound is None:
            return
        if not row.checked:
            self._launch(kernel, bound, values, stream)
            return
        report = loader.reports.launch(place, stream, lambda address: self._launch(kernel, bound, {**values, FAULT_REPORT: address}, stream))
        if report is not None:
            raise checked_report.fault(report, row, shape.values)

    def _launch(self, kernel: Kernel, bound: BoundPlan, values: Mapping[str, int | float], stream: int) -> None:
        plan = kernel.plan.plan
        self._driver.launch(kernel.handle, bound.grid, plan.block, plan.cluster, plan.smem_bytes, stream,
                            bound.pack(values, self._driver), kernel.plan.offsets)

    def _layout(self, operation: str, views: Mapping[str, TensorView], sizes: Mapping[str, int],
                bounds: Mapping[str, str]) -> layout.Layout:
        key = (operation, *sizes.items(), *[(view.shape, view.strides, view.dtype, view.read_only) for view in views.values()])
        found = self._layouts.get(key)
        if found is None:
            found = layout.bind(self._bundle.metadata.operations[operation], views, sizes, {"head_dim": self._head_dim}, bounds)
            _keep(self._layouts, key, found)
        return found

    def _select(self, operation: str, mask: MaskType, device: int, seqlen_q: int | None) -> Support:
        key = (operation, mask, device, seqlen_q)
        support = self._selections.get(key)
        if support is None:
            known = dict(self._heads)
            if seqlen_q is not None:
                known[self._bundle.metadata.operations[operation].seqlen_q_argument] = seqlen_q
            query = Query((operation,), self._head_dim, self._driver.sm(device), mask=mask.value, known=known, flags=self._flags,
                          **self._options)  # type: ignore[arg-type]
            support = select(self._bundle.metadata, query)
            _keep(self._selections, key, support)
        if not support:
            raise UnsupportedError(support)
        return support

    def _place(self, stream: int) -> Place:
        """Where the work runs: on the runner's device; without one on that of the stream, else the current one, else 0."""
        if self._device is not None and self._device >= self._driver.device_count():
            raise ArgumentError("device", f"{self._device} does not exist; there are {self._driver.device_count()} devices")
        place = self._driver.place(stream, self._device)
        if self._device not in (None, place.device):
            raise DeviceError("stream", f"belongs to device {place.device}, the runner to device {self._device}; use a stream of "
                                        "that device")
        return place

    def _check_devices(self, device: int, views: Mapping[str, TensorView]) -> None:
        for name, tensor in views.items():
            if tensor.pointer == 0 or tensor.device == device:
                continue
            owner = self._driver.pointer_device(tensor.pointer) if tensor.device is None else tensor.device
            if owner == device or (owner is None and self._driver.attribute(device, "PAGEABLE_MEMORY_ACCESS")):
                continue
            if owner is None:
                raise DeviceError(public_name(name), f"{tensor.pointer:#x} is not memory that CUDA knows; give device memory")
            if not self._driver.pointer_is_shared(tensor.pointer):
                raise DeviceError(public_name(name), f"lies on device {owner}, the work runs on device {device}; copy it there, or "
                                                     f"give device={owner} to bundle.runner(...)")

    def _only(self, *names: str) -> dict[str, int]:
        return {name: self._sizes[name] for name in names if name in self._sizes}

    def _paged_sizes(self, num_flat_pages: int | None, max_pages: int | None, tokens_per_page: int | None) -> dict[str, int]:
        if tokens_per_page is not None and extent("tokens_per_page", tokens_per_page) != layout.PAGE_TOKENS:
            raise ArgumentError("tokens_per_page", f"{tokens_per_page} is not served; pages hold {layout.PAGE_TOKENS} tokens")
        sizes = _stated(num_flat_pages=num_flat_pages, max_pages=max_pages)
        capacity = self._sizes.get("seqlen_kv")
        if capacity is None:
            return sizes
        pages, rest = divmod(capacity, layout.PAGE_TOKENS)
        if rest or sizes.setdefault("max_pages", pages) != pages:
            stated = sizes.get("max_pages")
            raise ArgumentError("kv_seqlen", f"{capacity} of the runner is not max_pages_per_seq x {layout.PAGE_TOKENS}"
                                + (f" = {stated * layout.PAGE_TOKENS}" if stated is not None else "") + "; give the capacity of the "
                                "page list")
        return sizes


def _keep(cache: dict, key: tuple, value: object) -> None:
    """Adds to a cache that forgets everything when it is full."""
    if len(cache) >= _KEPT:
        cache.clear()
    cache[key] = value


def _causal(sliding_window_size: int) -> MaskType:
    return MaskType.CAUSAL if extent("sliding_window_size", sliding_window_size, -(2**31)) == INT_MAX else MaskType.SLIDING_CAUSAL


def _stated(**sizes: int | None) -> dict[str, int]:
    """The sizes that were given, checked, by ABI name."""
    return {name: extent(public_name(name), value) for name, value in sizes.items() if value is not None}


def _paged_tensors(q: object, pool: object, page_list: object, o: object, cu_q: object, cu_kv: object) -> dict[str, object]:
    return {"q": q, "kv_pool": pool, "page_list": page_list, "o": o, "cu_q_seqlens": cu_q, "cu_kv_seqlens": cu_kv}
