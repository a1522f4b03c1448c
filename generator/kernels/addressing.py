# SPDX-License-Identifier: Apache-2.0
"""Where a sequence's rows lie in global memory, for each layout.

A `Sequence` is one (batch, query head) of the problem: its lengths, its Q and O rows, and a key/value source that gives
the address of a tile of keys. The mainloop sees only this, so an operation is a choice of layout and mask, not a kernel
of its own. Offsets are 64-bit: batch x sequence x heads x head_dim passes 2^31 in long-context serving.
"""
from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64, Uint32

from fmhaforge.fault_codes import K_PAGE, KV_LENGTH, Q_LENGTH, V_PAGE

from .fault_report import FaultReport
from .ops import Fixed, select

PAGE_TOKENS = 128
#: Alignment that every row start has, in elements (16 bytes of fp16), which cp.async and TMA ask for.
VECTOR = 8


def advance(pointer, offset):
    """Pointer moved by a 64-bit element offset that keeps 16-byte alignment."""
    return pointer + cute.assume(offset, divby=VECTOR)


@dataclass
class Rows(Fixed):
    """Rows of one head: `at(row)` is the address of its first element; `stride` in elements (int64)."""

    pointer: Any
    stride: Any

    def at(self, row):
        return advance(self.pointer, Int64(row) * self.stride)


@dataclass
class DenseKeys(Fixed):
    """Keys and values at a fixed stride (dense BSND and packed layouts); keys at or past `limit` do not exist."""

    k: Rows
    v: Rows
    limit: Any

    def k_tile(self, first_key):
        """(address of the K rows from `first_key` on, how many of them exist)."""
        return self.k.at(first_key), self.limit - first_key

    def v_tile(self, first_key):
        """(address of the V rows from `first_key` on, how many of them exist)."""
        return self.v.at(first_key), self.limit - first_key

    @property
    def strides(self):
        return self.k.stride, self.v.stride


@dataclass
class PagedKeys(Fixed):
    """Keys and values in pages of 128 tokens; K and V pages are independent entries of the page list.

    With a `report` every page id is checked before it is followed, and a tile on a page that does not exist has no rows.
    """

    pool: Any
    pages: Any
    stride_plane: Any
    stride_page: Any
    stride_token: Any
    limit: Any
    num_flat_pages: Any = None
    report: Any = None

    def _rows(self, plane, first_key, code):
        entry = first_key // PAGE_TOKENS
        page, exist = self.pages[entry + plane], self.limit - first_key
        if self.report is not None:
            real = (page >= 0) & (page < self.num_flat_pages)
            self.report.require(real, code, entry, page)
            page, exist = select(real, page, Int32(0)), select(real, exist, Int32(0))
        # A page that is followed is not negative, so there is no sign to extend.
        offset = Int64(Uint32(page)) * self.stride_page + Int64(first_key % PAGE_TOKENS) * self.stride_token
        return advance(self.pool, offset), exist

    def k_tile(self, first_key):
        return self._rows(0, first_key, K_PAGE)

    def v_tile(self, first_key):
        # One base address for both planes: the loop has no registers to spare.
        return self._rows(self.stride_plane, first_key, V_PAGE)

    @property
    def strides(self):
        return self.stride_token, self.stride_token


@dataclass
class Sequence(Fixed):
    """One (batch, query head).

    q_len: logical query length. offset: kv_len - q_len, which aligns the mask. Keys at or past `keys.limit` are never read.
    rows: query rows that have a place in O and are written (rows in [q_len, rows) are written as zeros).
    """

    q_len: Any
    offset: Any
    rows: Any
    q: Rows
    o: Rows
    keys: Any


def _length(cu_seqlens, batch):
    """(start, length) of a batch entry in a prefix-sum array."""
    table = _table(cu_seqlens)
    start = table[batch]
    return start, table[batch + 1] - start


def _aligned(stride):
    return cute.assume(stride, divby=VECTOR)


def _dense_rows(pointer, stride_batch, stride_seq, batch, head, head_dim):
    offset = Int64(batch) * stride_batch + Int64(head) * head_dim
    return Rows(advance(pointer, offset), _aligned(stride_seq))


def _packed_rows(pointer, stride_seq, start, head, head_dim):
    stride = _aligned(stride_seq)
    return Rows(advance(pointer, Int64(start) * stride + Int64(head) * head_dim), stride)


def _table(pointer):
    """An int32 array in global memory whose length is not known here."""
    return cute.make_tensor(pointer, cute.make_layout(1 << 30))


def _paged_keys(a, batch, kv_head, limit, report):
    pages = _table(a.page_list + Int64(batch) * a.page_list_stride_batch)
    pool = advance(a.kv_pool, Int64(kv_head) * a.pool_stride_head)
    strides = a.page_list_stride_plane, _aligned(a.pool_stride_page), _aligned(a.pool_stride_token)
    return PagedKeys(pool, pages, *strides, limit, getattr(a, "num_flat_pages", None), report)


def _checked(length, holds, code, report):
    """The length, or 0 and a report where it is not to be believed (checked kernels only)."""
    if report is None:
        return length
    report.require(holds, code, Int32(0), length)
    return select(holds, length, Int32(0))


def sequence(operation: str, a: SimpleNamespace, batch, head, head_dim: int, report: FaultReport | None = None) -> Sequence:
    """The `Sequence` of (batch, query head) for an operation's kernel arguments `a` (named as in the launch plan).

    With a `report` (paged operations of checked kernels) lengths and page ids are verified before anything is read by them.
    """
    kv_head = head // (a.num_q_heads // a.num_kv_heads)

    if operation == "vit":
        start, length = _length(a.cu_seqlens, batch)

        def packed(name, h):
            return _packed_rows(getattr(a, name), getattr(a, f"{name}_stride_seq"), start, h, head_dim)

        keys = DenseKeys(packed("k", kv_head), packed("v", kv_head), length)
        return Sequence(length, length - length, length, packed("q", head), packed("o", head), keys)

    _, kv_len = _length(a.cu_kv_seqlens, batch)
    if operation in ("paged", "paged_ragged"):
        capacity = a.max_pages * PAGE_TOKENS
        kv_len = _checked(kv_len, (kv_len >= 0) & (kv_len <= capacity), KV_LENGTH, report)
        limit = cutlass.min(kv_len, capacity)
        keys = _paged_keys(a, batch, kv_head, limit, report)

    if operation == "paged_ragged":
        start, q_len = _length(a.cu_q_seqlens, batch)
        if report is not None:
            inside = (start >= 0) & (q_len >= 0) & (q_len <= a.max_seqlen_q) & (start <= a.total_seqlen_q - q_len)
            q_len = _checked(q_len, inside, Q_LENGTH, report)

        def rows(name):
            return _packed_rows(getattr(a, name), getattr(a, f"{name}_stride_seq"), start, head, head_dim)

        return Sequence(q_len, kv_len - q_len, q_len, rows("q"), rows("o"), keys)

    def dense(name, h):
        strides = (getattr(a, f"{name}_stride_{axis}") for axis in ("batch", "seq"))
        return _dense_rows(getattr(a, name), *strides, batch, h, head_dim)

    # Without query lengths every physical row is a valid row.
    q_len = a.seqlen_q
    if operation in ("paged", "padding"):
        _, q_len = _length(a.cu_q_seqlens, batch)
        q_len = _checked(q_len, (q_len >= 0) & (q_len <= a.seqlen_q), Q_LENGTH, report)
    readable = cutlass.min(q_len, a.seqlen_q)
    if operation != "paged":
        limit = cutlass.min(kv_len, a.seqlen_kv)
        keys = DenseKeys(dense("k", kv_head), dense("v", kv_head), limit)
    return Sequence(readable, kv_len - q_len, a.seqlen_q, dense("q", head), dense("o", head), keys)


def block_intervals(a: SimpleNamespace, batch):
    """Reader of a row's vision-block interval (begin, end), both inclusive, from [batch, seqlen_q] int32 arrays."""
    offset = Int64(batch) * a.block_stride_batch
    begin = _table(a.block_begin + offset)
    end = _table(a.block_end + offset)

    def read(row):
        safe = cutlass.min(row, a.seqlen_q - 1)
        return begin[safe], end[safe]

    return read
