# SPDX-License-Identifier: Apache-2.0
"""Faults planted in a case of `fmhaforge run --checked`: what is changed on the device, and what the kernel must report."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from .checked_report import KINDS, PAGE_PLANES
from .errors import FaultReported
from .fault_codes import K_PAGE, KV_LENGTH, Q_LENGTH, V_PAGE
from .layout import PAGE_TOKENS

FAULTS = tuple(KINDS.values())
"""The kinds of faults that can be planted."""

_CODES = {kind: code for code, kind in KINDS.items()}


@dataclass(frozen=True)
class Sizes:
    """What decides where a fault goes: the extents of a case, and the logical lengths of its last sequence."""

    batch: int
    seqlen_q: int
    kv_len: int
    max_pages: int
    flat_pages: int


@dataclass(frozen=True)
class Planted:
    """A fault in the last sequence of a case. `tensors` replaces the arrays that hold it."""

    kind: str
    batch: int
    entry: int
    value: int
    tensors: Mapping[str, bytes]

    def is_reported_by(self, error: FaultReported | None) -> bool:
        """Whether the report says exactly this."""
        return error is not None and (error.kind, error.batch, error.entry, error.value) == (self.kind, self.batch, self.entry, self.value)


def plant(kind: str, sizes: Sizes, tensors: Mapping[str, bytes]) -> Planted:
    """Plants a fault of `kind` (one of FAULTS) in the arrays `pages`, `cu_q` or `cu_kv`; every extent is at least 1."""
    code = _CODES[kind]
    return _PLANTERS[code](code, sizes, tensors)


def _page(code: int, sizes: Sizes, tensors: Mapping[str, bytes]) -> Planted:
    """The last page of keys is no page, or the last page of values is one past the pool."""
    plane, _ = PAGE_PLANES[code]
    batch, entry = sizes.batch - 1, (sizes.kv_len - 1) // PAGE_TOKENS
    value = sizes.flat_pages if plane else -1
    pages = _with_int32(tensors["pages"], (2 * batch + plane) * sizes.max_pages + entry, value)
    return Planted(KINDS[code], batch, entry, value, {"pages": pages})


def _length(name: str, limit: Callable[[Sizes], int]) -> Callable[[int, Sizes, Mapping[str, bytes]], Planted]:
    def make(code: int, sizes: Sizes, tensors: Mapping[str, bytes]) -> Planted:
        """The last length is one more than there is room for."""
        batch, value = sizes.batch - 1, limit(sizes) + 1
        start, = struct.unpack_from("<i", tensors[name], 4 * batch)
        return Planted(KINDS[code], batch, 0, value, {name: _with_int32(tensors[name], batch + 1, start + value)})
    return make


def _with_int32(data: bytes, index: int, value: int) -> bytes:
    changed = bytearray(data)
    struct.pack_into("<i", changed, 4 * index, value)
    return bytes(changed)


_PLANTERS = {
    K_PAGE: _page,
    V_PAGE: _page,
    KV_LENGTH: _length("cu_kv", lambda sizes: sizes.max_pages * PAGE_TOKENS),
    Q_LENGTH: _length("cu_q", lambda sizes: sizes.seqlen_q),
}
