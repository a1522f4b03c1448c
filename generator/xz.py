# SPDX-License-Identifier: Apache-2.0
"""Packs bytes whose repeats are known into the .xz format: one stream of one block, as `xz -T1` writes it, with a check of type CRC32."""

from __future__ import annotations

import hashlib
import os
import struct
import sys
import zlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol, Sequence

from generator import lzma2

DICTIONARY = 64 << 20
"""Bytes before that a repeat may reach to, and the memory that a reader needs."""

_MAGIC, _FOOTER_MAGIC, _FLAGS = b"\xfd7zXZ\0", b"YZ", b"\0\1"
_HEADER_SIZE, _CHECK_SIZE, _LZMA2 = 12, 4, 0x21
#: Parts of fewer bytes are not worth compressing, and those of fewer bytes not worth keeping.
_PLAIN_BELOW, _KEPT_FROM = 128, 8192


@dataclass(frozen=True)
class Repeat:
    """Bytes `start` .. `start + length` are those that begin at `source`, earlier in the same data."""

    start: int
    length: int
    source: int


class Keep(Protocol):
    """Where compressed parts are kept between builds, such as `generator.cache.Store`."""

    def get(self, key: str) -> bytes | None:
        """What was put under a key, or None."""

    def put(self, key: str, content: bytes) -> bool:
        """Keeps content under a key, if it can."""


def pack(data: bytes, cuts: Sequence[int] = (), repeats: Sequence[Repeat] = (), keep: Keep | None = None) -> bytes:
    """`data` in xz format.

    What no repeat covers is cut at `cuts` into parts that are compressed each on its own, as many at once as there are cores; a part that
    `keep` holds is taken from there. The bytes depend on the arguments before `keep` only. Raises ValueError when a repeat is none.
    """
    known = [repeat for repeat in sorted(repeats, key=_start_of) if _usable(data, repeat)]
    spans = list(_spans(len(data), cuts, known))
    gaps = [span for span in spans if not isinstance(span, Repeat)]
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        packed = dict(zip(gaps, pool.map(_Packer(data, keep), gaps)))
    parts = [lzma2.repeated(span.start - span.source, span.length) if isinstance(span, Repeat) else packed[span] for span in spans]
    if parts:
        parts[0] = lzma2.first(parts[0])
    return _container(b"".join((*parts, b"\0")), data)


def _start_of(repeat: Repeat) -> int:
    return repeat.start


def _usable(data: bytes, repeat: Repeat) -> bool:
    """Whether a repeat lies within the dictionary. Raises ValueError when it is none."""
    end = repeat.start + repeat.length
    if not 0 <= repeat.source < repeat.start or end > len(data) or data[repeat.start : end] != data[repeat.source : repeat.source + repeat.length]:
        raise ValueError(f"{repeat} is no repeat of these {len(data)} bytes")
    return repeat.start - repeat.source <= DICTIONARY


def _spans(size: int, cuts: Sequence[int], repeats: Sequence[Repeat]) -> list[tuple[int, int] | Repeat]:
    """Everything in order: repeats as far as they can be written as such, and between them (start, end) of parts to compress."""
    spans: list[tuple[int, int] | Repeat] = []
    borders = sorted({cut for cut in cuts if 0 < cut < size})
    place = 0

    def gap(end: int) -> None:
        inside = [cut for cut in borders if place < cut < end]
        spans.extend((start, stop) for start, stop in zip([place, *inside], [*inside, end]) if start < stop)

    for repeat in repeats:
        length = lzma2.repeatable(repeat.length)
        if repeat.start < place:
            raise ValueError(f"{repeat} covers bytes that another repeat covers")
        if length:
            gap(repeat.start)
            spans.append(Repeat(repeat.start, length, repeat.source))
            place = repeat.start + length
    gap(size)
    return spans


class _Packer:
    """Compresses the part (start, end) of `data`."""

    def __init__(self, data: bytes, keep: Keep | None) -> None:
        self._data = data
        self._keep = keep

    def __call__(self, span: tuple[int, int]) -> bytes:
        part = self._data[slice(*span)]
        if len(part) < _PLAIN_BELOW:
            return lzma2.plain(part)
        if self._keep is None or len(part) < _KEPT_FROM:
            return lzma2.compressed(part, DICTIONARY)
        key = hashlib.sha256(f"xz part, preset {lzma2.PRESET}, dictionary {DICTIONARY}, {sys.version}\n".encode())
        key.update(part)
        packed = self._keep.get(key.hexdigest())
        if packed is None:
            packed = lzma2.compressed(part, DICTIONARY)
            self._keep.put(key.hexdigest(), packed)
        return packed


def _container(coded: bytes, data: bytes) -> bytes:
    """The stream that holds `coded`, the LZMA2 data of `data`, as its one block; without a block when there is no data."""
    blocks, records = b"", b"\0"
    if data:
        header = _with_crc(struct.pack("<BBBBB3x", _HEADER_SIZE // 4 - 1, 0, _LZMA2, 1, _dictionary_code(len(data))))
        blocks = b"".join((header, coded, bytes(-len(coded) % 4), struct.pack("<I", zlib.crc32(data))))
        records = b"\1" + _number(_HEADER_SIZE + len(coded) + _CHECK_SIZE) + _number(len(data))
    index = b"\0" + records
    index = _with_crc(index + bytes(-len(index) % 4))
    footer = struct.pack("<I", len(index) // 4 - 1) + _FLAGS
    return b"".join((_MAGIC, _with_crc(_FLAGS), blocks, index, struct.pack("<I", zlib.crc32(footer)), footer, _FOOTER_MAGIC))


def _with_crc(content: bytes) -> bytes:
    return content + struct.pack("<I", zlib.crc32(content))


def _dictionary_code(size: int) -> int:
    """The code of the smallest dictionary that holds `size` bytes, but of DICTIONARY at most."""
    wanted = min(max(size, 4096), DICTIONARY)
    return next(code for code in range(41) if (2 | code & 1) << (code // 2 + 11) >= wanted)


def _number(value: int) -> bytes:
    """A number as the format writes it: seven bits a byte, lowest first."""
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
