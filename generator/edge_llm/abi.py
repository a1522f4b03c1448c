# SPDX-License-Identifier: Apache-2.0
"""The wrappers of the Edge-LLM ABI as data: their arguments, in order, and what each means in the arguments of our operations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Tensor:
    """A pointer to a struct with `shapes` int32 extents and `strides` int64 strides (elements; the innermost, 1, is left out)."""

    name: str
    shapes: int
    strides: int


@dataclass(frozen=True)
class Scalar:
    """A value; `c_type` is its C type."""

    name: str
    c_type: str


@dataclass(frozen=True)
class Wrapper:
    """An ABI class. `arguments` are those after the module and before the stream.

    `values` gives, for each argument of the operation, a C expression over the arguments; `equal` lists pairs of C expressions that must
    be equal, with what to say if they are not. Arguments that no value uses are ignored, as the contract has it.
    """

    abi_class: str
    operation: str
    arguments: tuple[Tensor | Scalar, ...]
    values: Mapping[str, str]
    equal: tuple[tuple[str, str, str], ...]

    @property
    def arity(self) -> int:
        """The number of the wrapper's arguments, with module and stream."""
        return len(self.arguments) + 2

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The tensor arguments."""
        return tuple(argument for argument in self.arguments if isinstance(argument, Tensor))


def _dense(name: str) -> Tensor:
    return Tensor(name, 3, 2)


def _packed(name: str) -> Tensor:
    return Tensor(name, 2, 1)


def _offsets(name: str) -> Tensor:
    return Tensor(name, 1, 0)


def _floats(*names: str) -> tuple[Scalar, ...]:
    return tuple(Scalar(name, "float") for name in names)


_WINDOW = Scalar("window_size_left", "int32_t")
_SM_COUNT = Scalar("sm_count", "int32_t")
_SCALE = "fmhaforge_scale_log2({})"
_CLAMPED_WINDOW = "edge_window(window_size_left)"


def _strides(argument: str, tensor: str, axes: tuple[str, ...]) -> dict[str, str]:
    return {f"{argument}_stride_{axis}": f"{tensor}->dynamic_strides[{index}]" for index, axis in enumerate(axes)}


def _data(**tensors: str) -> dict[str, str]:
    return {argument: f"{tensor}->data" for argument, tensor in tensors.items()}


def _same_shape(a: str, b: str, rank: int) -> tuple[tuple[str, str, str], ...]:
    return tuple((f"{a}->dynamic_shapes[{axis}]", f"{b}->dynamic_shapes[{axis}]", f"{a} and {b} differ in extent {axis}")
                 for axis in range(rank))


def _offsets_fit(*tensors: str, batch: str) -> tuple[tuple[str, str, str], ...]:
    return tuple((f"{name}->dynamic_shapes[0]", f"(int64_t){batch} + 1", f"{name} must have one more entry than there are sequences")
                 for name in tensors)


def _dense_values(q: str, k: str, v: str, o: str) -> dict[str, str]:
    values = _data(q=q, k=k, v=v, o=o)
    values |= {"batch": f"{q}->dynamic_shapes[0]", "seqlen_q": f"{q}->dynamic_shapes[1]", "seqlen_kv": f"{k}->dynamic_shapes[1]",
               "num_q_heads": f"{q}->dynamic_shapes[2]", "num_kv_heads": f"{k}->dynamic_shapes[2]"}
    for argument, tensor in (("q", q), ("k", k), ("v", v), ("o", o)):
        values |= _strides(argument, tensor, ("batch", "seq"))
    return values


def _dense_equal(q: str, k: str, v: str, o: str) -> tuple[tuple[str, str, str], ...]:
    batch = (f"{k}->dynamic_shapes[0]", f"{q}->dynamic_shapes[0]", f"{q} and {k} differ in the batch")
    return (*_same_shape(o, q, 3), *_same_shape(v, k, 3), batch)


_QKVO = ("q_tensor", "k_tensor", "v_tensor", "o_tensor")
_M_QKVO = ("mQ", "mK", "mV", "mO")
_DENSE_BATCH = "q_tensor->dynamic_shapes[0]"
_SCALES = _floats("attention_scale", "scale_q", "scale_k", "scale_v", "inv_scale_o")
_QK_SCALE = _SCALE.format("attention_scale * scale_q * scale_k")

_POOL = (Tensor("kv_cache_pool", 4, 3), Tensor("kv_cache_page_list", 3, 2))
_POOL_VALUES = {
    **_data(kv_pool="kv_cache_pool", page_list="kv_cache_page_list", cu_q_seqlens="cum_seqlen_q", cu_kv_seqlens="cum_seqlen_k"),
    "num_flat_pages": "kv_cache_pool->dynamic_shapes[0]", "num_kv_heads": "kv_cache_pool->dynamic_shapes[1]",
    "max_pages": "kv_cache_page_list->dynamic_shapes[2]", "window_size_left": _CLAMPED_WINDOW,
    **_strides("pool", "kv_cache_pool", ("page", "head", "token")), **_strides("page_list", "kv_cache_page_list", ("batch", "plane")),
    "scale_log2": _SCALE.format("attention_scale"),
}
_POOL_EQUAL = (
    ("kv_cache_pool->dynamic_shapes[2]", "128", "a page of kv_cache_pool must have 128 tokens"),
    ("kv_cache_pool->dynamic_shapes[3]", "head_dim", "kv_cache_pool has another head dimension"),
    ("kv_cache_page_list->dynamic_shapes[1]", "2", "kv_cache_page_list must have a row of K pages and a row of V pages"),
)

_WRAPPERS = (
    Wrapper("L14", "llm", (*map(_dense, _QKVO), _offsets("cum_seqlen_k"), _WINDOW, *_SCALES, _SM_COUNT),
            {**_dense_values(*_QKVO), **_data(cu_kv_seqlens="cum_seqlen_k"), "window_size_left": _CLAMPED_WINDOW,
             "scale_log2": _QK_SCALE},
            (*_dense_equal(*_QKVO), *_offsets_fit("cum_seqlen_k", batch=_DENSE_BATCH))),
    Wrapper("B16", "vision_block",
            (*map(_dense, _QKVO), _offsets("cum_seqlen_k"), _packed("block_begin"), _packed("block_end"), _WINDOW, *_SCALES, _SM_COUNT),
            {**_dense_values(*_QKVO), **_data(cu_kv_seqlens="cum_seqlen_k", block_begin="block_begin", block_end="block_end"),
             **_strides("block", "block_begin", ("batch",)), "window_size_left": _CLAMPED_WINDOW, "scale_log2": _QK_SCALE},
            (*_dense_equal(*_QKVO), *_offsets_fit("cum_seqlen_k", batch=_DENSE_BATCH), *_same_shape("block_begin", "q_tensor", 2),
             *_same_shape("block_end", "q_tensor", 2),
             ("block_end->dynamic_strides[0]", "block_begin->dynamic_strides[0]", "block_begin and block_end differ in their stride"))),
    Wrapper("P11", "paged",
            (_dense("q_tensor"), *_POOL, _dense("o_tensor"), _offsets("cum_seqlen_q"), _offsets("cum_seqlen_k"), _WINDOW,
             *_floats("attention_scale"), _SM_COUNT),
            {**_data(q="q_tensor", o="o_tensor"), **_POOL_VALUES, "batch": _DENSE_BATCH, "seqlen_q": "q_tensor->dynamic_shapes[1]",
             "num_q_heads": "q_tensor->dynamic_shapes[2]", **_strides("q", "q_tensor", ("batch", "seq")),
             **_strides("o", "o_tensor", ("batch", "seq"))},
            (*_same_shape("o_tensor", "q_tensor", 3), *_POOL_EQUAL,
             ("kv_cache_page_list->dynamic_shapes[0]", _DENSE_BATCH, "q_tensor and kv_cache_page_list differ in the batch"),
             *_offsets_fit("cum_seqlen_q", "cum_seqlen_k", batch=_DENSE_BATCH))),
    Wrapper("R12", "paged_ragged",
            (_packed("q_tensor"), *_POOL, _packed("o_tensor"), _offsets("cum_seqlen_q"), _offsets("cum_seqlen_k"),
             Scalar("max_seqlen_q", "int32_t"), _WINDOW, *_floats("attention_scale"), _SM_COUNT),
            {**_data(q="q_tensor", o="o_tensor"), **_POOL_VALUES, "batch": "kv_cache_page_list->dynamic_shapes[0]",
             "total_seqlen_q": "q_tensor->dynamic_shapes[0]", "max_seqlen_q": "max_seqlen_q",
             "num_q_heads": "q_tensor->dynamic_shapes[1]", **_strides("q", "q_tensor", ("seq",)), **_strides("o", "o_tensor", ("seq",))},
            (*_same_shape("o_tensor", "q_tensor", 2), *_POOL_EQUAL,
             *_offsets_fit("cum_seqlen_q", "cum_seqlen_k", batch="kv_cache_page_list->dynamic_shapes[0]"))),
    Wrapper("N10", "padding",
            (*map(_dense, _M_QKVO), _offsets("mCuSeqLenQ"), _offsets("mCuSeqLenK"), *_floats("softmax_scale"),
             Scalar("num_kv_heads", "int32_t")),
            {**_dense_values(*_M_QKVO), **_data(cu_q_seqlens="mCuSeqLenQ", cu_kv_seqlens="mCuSeqLenK"), "num_kv_heads": "num_kv_heads",
             "scale_log2": _SCALE.format("softmax_scale")},
            (*_dense_equal(*_M_QKVO), *_offsets_fit("mCuSeqLenQ", "mCuSeqLenK", batch="mQ->dynamic_shapes[0]"),
             ("mK->dynamic_shapes[2]", "num_kv_heads", "num_kv_heads is not the number of heads of mK"))),
    Wrapper("V12", "vit",
            (*map(_packed, _QKVO), _offsets("cu_seqlens"), Scalar("max_seqlen", "int32_t"),
             *_floats("scale_softmax_log2", "scale_softmax", "scale_output"), _SM_COUNT),
            {**_data(q="q_tensor", k="k_tensor", v="v_tensor", o="o_tensor", cu_seqlens="cu_seqlens"),
             "batch": "edge_sequences(cu_seqlens->dynamic_shapes[0])", "total_seqlen": "q_tensor->dynamic_shapes[0]", "max_seqlen": "max_seqlen",
             "num_q_heads": "q_tensor->dynamic_shapes[1]", "num_kv_heads": "k_tensor->dynamic_shapes[1]",
             **_strides("q", "q_tensor", ("seq",)), **_strides("k", "k_tensor", ("seq",)), **_strides("v", "v_tensor", ("seq",)),
             **_strides("o", "o_tensor", ("seq",)), "scale_log2": "scale_softmax_log2"},
            (*_same_shape("o_tensor", "q_tensor", 2), *_same_shape("v_tensor", "k_tensor", 2),
             ("k_tensor->dynamic_shapes[0]", "q_tensor->dynamic_shapes[0]", "q_tensor and k_tensor differ in the number of tokens"))),
)

WRAPPERS: dict[str, Wrapper] = {wrapper.abi_class: wrapper for wrapper in _WRAPPERS}
"""Every ABI class by its name, which is its letter and its number of arguments."""
