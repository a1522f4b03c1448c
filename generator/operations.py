# SPDX-License-Identifier: Apache-2.0
"""The operations and their ABI arguments, as data.

The argument list makes the C argument struct, the Python packing and the names that a launch plan may use. The limits of an
argument (`minimum`, `maximum`, `multiple_of`, `alignment`) and the relations between arguments (`checks`) are checked in C and
in Python from this same data, before any launch.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import generator  # noqa: F401 - makes fmhaforge importable
from fmhaforge.checks import Check
from fmhaforge.fault_codes import FAULT_REPORT  # noqa: F401 - a pointer that plans of checked variants use besides the arguments

INT32_MAX = (1 << 31) - 1
INT64_MAX = (1 << 63) - 1

NO_WINDOW = 1 << 30
"""The `window_size_left` that means "no window"; also the largest that is taken, so that query + window fits in 32 bits."""

MAX_SEQLEN = 1 << 30
"""Longest sequence, for the same reason."""

MAX_ATTENTION_SCALE = 1 << 16
"""Largest attention scale. Kernels compute exp2(s c - m c), c = scale_log2, with a fused multiply-add: s c is exact, m c is rounded to float32.
From |m c| = 2^28 on that error can be 16, and the probability overflows float16. Up to this scale, scores |q k| below 2^10 are far from that."""

TOKENS_PER_PAGE = 128

POINTER_ALIGNMENT = 16
"""Bytes: tensors of float16 are read and written 16 bytes at a time, so their strides are multiples of 8 elements."""

STRIDE_MULTIPLE = POINTER_ALIGNMENT // 2

EXTRA_NAMES = ("sm_count",)
"""Names that every plan may use besides the arguments: properties of the device."""


@dataclass(frozen=True)
class Argument:
    """One ABI argument.

    `type` is `ptr`, `i32`, `i64` or `f32`. Pointers (never null unless stated) have an element `dtype`, an `access` (`in` or
    `out`), a `shape` in words and an `alignment` in bytes. Integers lie in `minimum` .. `maximum` and are multiples of
    `multiple_of`. A float is finite, at most `maximum` if there is one and, if `positive`, > 0.
    """

    name: str
    type: str
    doc: str
    dtype: str | None = None
    access: str | None = None
    shape: str | None = None
    alignment: int = 1
    minimum: int | None = None
    maximum: int | None = None
    multiple_of: int = 1
    positive: bool = False

    def to_json(self) -> dict[str, Any]:
        """The argument as plain JSON values."""
        return asdict(self)


@dataclass(frozen=True)
class Operation:
    """An ABI class: what it computes on, which masks it takes, and its arguments in the order of the C struct."""

    name: str
    abi_class: str
    kv_layout: str
    masks: tuple[str, ...]
    seqlen_q_argument: str
    flags: tuple[str, ...]
    arguments: tuple[Argument, ...]
    checks: tuple[Check, ...]
    doc: str

    def argument(self, name: str) -> Argument:
        """The argument called `name`. Raises KeyError with the names that exist."""
        for argument in self.arguments:
            if argument.name == name:
                return argument
        raise KeyError(f"operation {self.name} has no argument {name!r}; it has {', '.join(self.names())}")

    def names(self) -> tuple[str, ...]:
        """The names of the arguments, in order."""
        return tuple(argument.name for argument in self.arguments)

    def integer_names(self) -> frozenset[str]:
        """The names that an integer expression of a launch plan may use: integer arguments and `EXTRA_NAMES`."""
        return frozenset(a.name for a in self.arguments if a.type in ("i32", "i64")) | frozenset(EXTRA_NAMES)

    def to_json(self) -> dict[str, Any]:
        """The operation as plain JSON values, as it stands in the metadata of a bundle."""
        return {
            "abi_class": self.abi_class,
            "arguments": [argument.to_json() for argument in self.arguments],
            "checks": [check.to_json() for check in self.checks],
            "doc": self.doc,
            "flags": list(self.flags),
            "kv_layout": self.kv_layout,
            "masks": list(self.masks),
            "seqlen_q_argument": self.seqlen_q_argument,
        }


def _tensor(name: str, shape: str, doc: str, access: str = "in") -> Argument:
    return Argument(name, "ptr", doc, dtype="float16", access=access, shape=shape, alignment=POINTER_ALIGNMENT)


def _indices(name: str, shape: str, doc: str) -> Argument:
    return Argument(name, "ptr", doc, dtype="int32", access="in", shape=shape, alignment=4)


def _count(name: str, doc: str, minimum: int = 0, maximum: int = INT32_MAX, multiple_of: int = 1) -> Argument:
    return Argument(name, "i32", doc, minimum=minimum, maximum=maximum, multiple_of=multiple_of)


def _stride(name: str, doc: str, multiple_of: int = STRIDE_MULTIPLE) -> Argument:
    return Argument(name, "i64", f"{doc}, in elements", minimum=0, maximum=INT64_MAX, multiple_of=multiple_of)


def _dense_strides(*tensors: str) -> tuple[Argument, ...]:
    return tuple(_stride(f"{t}_stride_{axis}", f"{t.upper()}: distance of two {words}")
                 for t in tensors for axis, words in (("batch", "batches"), ("seq", "tokens")))


def _packed_strides(*tensors: str) -> tuple[Argument, ...]:
    return tuple(_stride(f"{t}_stride_seq", f"{t.upper()}: distance of two tokens") for t in tensors)


_BATCH = _count("batch", "number of sequences; 0 launches nothing")
_SEQLEN_Q = _count("seqlen_q", "physical extent of Q and O; 0 launches nothing", maximum=MAX_SEQLEN)
_SEQLEN_KV = _count("seqlen_kv", "physical extent of K and V", maximum=MAX_SEQLEN)
_HEADS = (_count("num_q_heads", "query heads", minimum=1), _count("num_kv_heads", "key/value heads", minimum=1))
_WINDOW = _count("window_size_left", "keys seen left of the diagonal, which is seen too; 1 << 30 is no window, -1 sees no key; "
                 "other masks ignore it", minimum=-1, maximum=NO_WINDOW)
_SCALE = Argument("scale_log2", "f32", "attention scale x log2(e), rounded to float32", positive=True,
                  maximum=math.ceil(MAX_ATTENTION_SCALE * math.log2(math.e)))

_Q_DENSE = _tensor("q", "[batch, seqlen_q, num_q_heads, head_dim]", "queries")
_O_DENSE = _tensor("o", "[batch, seqlen_q, num_q_heads, head_dim]", "output; every row is written", access="out")
_KV_DENSE = (_tensor("k", "[batch, seqlen_kv, num_kv_heads, head_dim]", "keys"),
             _tensor("v", "[batch, seqlen_kv, num_kv_heads, head_dim]", "values"))
_CU_Q = _indices("cu_q_seqlens", "[batch + 1]", "prefix sums of the logical query lengths, from 0")
_CU_KV = _indices("cu_kv_seqlens", "[batch + 1]", "prefix sums of the logical key lengths, from 0")
_POOL = _tensor("kv_pool", "[num_flat_pages, 128, num_kv_heads, head_dim]", "pages of keys and of values")
_PAGE_LIST = _indices("page_list", "[batch, 2, max_pages]", "flat page ids of keys (row 0) and of values (row 1); entries past "
                      "ceil(kv_len / 128) are never read")
_PAGES = (_count("max_pages", "page list entries of a sequence", minimum=1, maximum=MAX_SEQLEN // TOKENS_PER_PAGE),
          _count("num_flat_pages", "pages in the pool, even: as many of keys as of values", minimum=2, multiple_of=2))
_PAGED_STRIDES = (
    _stride("pool_stride_page", "pool: distance of two pages"),
    _stride("pool_stride_head", "pool: distance of two heads of a token"),
    _stride("pool_stride_token", "pool: distance of two tokens of a page"),
    _stride("page_list_stride_batch", "page list: distance of two sequences", multiple_of=1),
    _stride("page_list_stride_plane", "page list: distance of a sequence's key row and value row", multiple_of=1),
)
_DENSE_SHAPE = (_BATCH, _SEQLEN_Q, _SEQLEN_KV, *_HEADS)

_HEADS_DIVISIBLE = Check("heads_divisible", "multiple", "num_q_heads", "num_kv_heads",
                         "num_q_heads must be a multiple of num_kv_heads")
_CAUSAL = ("causal", "sliding_causal")

_ALL = (
    Operation(
        "llm", "L14", "dense", _CAUSAL, "seqlen_q", ("use_small_d64",),
        (_Q_DENSE, *_KV_DENSE, _O_DENSE, _CU_KV, *_DENSE_SHAPE, _WINDOW, *_dense_strides("q", "k", "v", "o"), _SCALE),
        (_HEADS_DIVISIBLE,), "causal or sliding-causal attention over dense K and V, aligned at the bottom right"),
    Operation(
        "paged", "P11", "paged", _CAUSAL, "seqlen_q", (),
        (_Q_DENSE, _POOL, _PAGE_LIST, _O_DENSE, _CU_Q, _CU_KV, _BATCH, _SEQLEN_Q, *_PAGES, *_HEADS, _WINDOW,
         *_dense_strides("q", "o"), *_PAGED_STRIDES, _SCALE),
        (_HEADS_DIVISIBLE,), "causal or sliding-causal attention over a paged KV pool; rows past the query length become zeros"),
    Operation(
        "paged_ragged", "R12", "paged", _CAUSAL, "max_seqlen_q", (),
        (_tensor("q", "[total_seqlen_q, num_q_heads, head_dim]", "queries, packed"), _POOL, _PAGE_LIST,
         _tensor("o", "[total_seqlen_q, num_q_heads, head_dim]", "output, packed; only valid rows are written", access="out"),
         _CU_Q, _CU_KV, _BATCH,
         _count("total_seqlen_q", "physical extent of packed Q and O"),
         _count("max_seqlen_q", "bound of the longest query sequence; 0 launches nothing", maximum=MAX_SEQLEN),
         *_PAGES, *_HEADS, _WINDOW, *_packed_strides("q", "o"), *_PAGED_STRIDES, _SCALE),
        (_HEADS_DIVISIBLE,), "causal or sliding-causal attention of packed queries over a paged KV pool"),
    Operation(
        "padding", "N10", "dense", ("padding",), "seqlen_q", (),
        (_Q_DENSE, *_KV_DENSE, _O_DENSE, _CU_Q, _CU_KV, *_DENSE_SHAPE, *_dense_strides("q", "k", "v", "o"), _SCALE),
        (_HEADS_DIVISIBLE,), "attention without causality, with independent query and key lengths"),
    Operation(
        "vision_block", "B16", "dense", ("vision_block",), "seqlen_q", (),
        (_Q_DENSE, *_KV_DENSE, _O_DENSE, _CU_KV,
         _indices("block_begin", "[batch, seqlen_q]", "first key of the row's block, -1 for none"),
         _indices("block_end", "[batch, seqlen_q]", "last key of the row's block (inclusive), -1 for none"),
         *_DENSE_SHAPE, _WINDOW, *_dense_strides("q", "k", "v", "o"),
         _stride("block_stride_batch", "block_begin and block_end: distance of two batches", multiple_of=1), _SCALE),
        (_HEADS_DIVISIBLE,), "sliding-causal attention, or within the row's block"),
    Operation(
        "vit", "V12", "packed", ("bidirectional",), "max_seqlen", (),
        (_tensor("q", "[total_seqlen, num_q_heads, head_dim]", "queries, packed"),
         _tensor("k", "[total_seqlen, num_kv_heads, head_dim]", "keys, packed"),
         _tensor("v", "[total_seqlen, num_kv_heads, head_dim]", "values, packed"),
         _tensor("o", "[total_seqlen, num_q_heads, head_dim]", "output, packed; only rows of a sequence are written", access="out"),
         _indices("cu_seqlens", "[batch + 1]", "prefix sums of the sequence lengths, from 0"),
         _BATCH,
         _count("total_seqlen", "physical extent of the packed tensors"),
         _count("max_seqlen", "bound of the longest sequence; 0 launches nothing", maximum=MAX_SEQLEN),
         *_HEADS, *_packed_strides("q", "k", "v", "o"), _SCALE),
        (_HEADS_DIVISIBLE,), "bidirectional attention within each sequence of a packed batch"),
)

OPERATIONS: dict[str, Operation] = {operation.name: operation for operation in _ALL}
"""Every operation by name, in the order of the documentation."""

MASKS = tuple(dict.fromkeys(mask for operation in _ALL for mask in operation.masks))
KV_LAYOUTS = tuple(dict.fromkeys(operation.kv_layout for operation in _ALL))
DTYPES = ("float16",)
