# SPDX-License-Identifier: Apache-2.0
"""LZMA2 data made of parts: parts that liblzma compressed, each on its own, and parts that repeat bytes from far before.

A bundle holds each cubin several times: as a file and in every library. To find that out again with each build is most of what packing
costs. Here a repeat that is known is written as what it is: LZMA symbols that copy `length` bytes from `distance` bytes before. A part that
liblzma compressed reads nothing before itself, so it can be kept and used again while other parts change.

Every part uses lc = lp = pb = 0, so its bytes do not depend on where it stands. The format is that of xz's LZMA2 filter:
chunks of at most 2 MiB, each with a control byte that says what is reset before it.
"""

from __future__ import annotations

import lzma
from typing import Iterator

PRESET = 1
LONGEST = 273
"""Bytes of the longest match."""
LONGEST_REPEAT = 1024 * LONGEST
"""Bytes that one start of a repeat is followed by at most."""

_PROPERTIES = 0  # lc = lp = pb = 0
_PLAIN_RESET_DICTIONARY, _PLAIN = 0x01, 0x02
_CODED, _RESET_STATE, _RESET_ALL = 0x80, 0xC0, 0xE0
_PLAIN_LIMIT = 1 << 16
_PROBABILITY_BITS, _HALF, _MOVE = 11, 1 << 10, 5
_TOP = 1 << 24


def compressed(data: bytes, dictionary: int) -> bytes:
    """The chunks of a part that liblzma compresses on its own, with repeats from up to `dictionary` bytes before; they may stand after
    other parts, but not first."""
    if not data:
        return b""
    filters = [{"id": lzma.FILTER_LZMA2, "preset": PRESET, "lc": 0, "lp": 0, "pb": 0, "dict_size": max(4096, min(len(data), dictionary))}]
    chunks = lzma.compress(data, format=lzma.FORMAT_RAW, filters=filters)
    first = _PLAIN if chunks[0] == _PLAIN_RESET_DICTIONARY else chunks[0] - _RESET_ALL + _RESET_STATE
    return bytes([first]) + chunks[1:-1]  # the last byte ends the data


def plain(data: bytes) -> bytes:
    """The chunks of a part that is not compressed."""
    chunks = []
    for start in range(0, len(data), _PLAIN_LIMIT):
        piece = data[start : start + _PLAIN_LIMIT]
        chunks.append(bytes([_PLAIN]) + (len(piece) - 1).to_bytes(2, "big") + piece)
    return b"".join(chunks)


def first(chunks: bytes) -> bytes:
    """The same chunks for the start of the data, where the dictionary must be reset."""
    return bytes([_PLAIN_RESET_DICTIONARY if chunks[0] == _PLAIN else chunks[0] - _RESET_STATE + _RESET_ALL]) + chunks[1:]


def repeatable(length: int) -> int:
    """How many of `length` bytes `repeated` can write: all of them, or one less, or none if they are too few."""
    return max(0, length - (length % LONGEST_REPEAT % LONGEST == 1 or length == 1))


def repeated(distance: int, length: int) -> bytes:
    """The chunks of a part that repeats what stands `distance` bytes before it. `length` must be a result of `repeatable`, and not 0."""
    parts = []
    while length:
        size = min(length, LONGEST_REPEAT)
        start = (size - 2) % LONGEST + 2
        parts.append(_chunk(_RESET_STATE, start, _match(distance, start)))
        if size > start:
            parts.append(_chunk(_CODED, size - start, _RUNS.chunk((size - start) // LONGEST)))
        length -= size
    return b"".join(parts)


def _chunk(control: int, size: int, coded: bytes) -> bytes:
    """A chunk of `size` bytes that are coded as `coded`."""
    head = (control << 16 | size - 1).to_bytes(3, "big") + (len(coded) - 1).to_bytes(2, "big")
    return head + (bytes([_PROPERTIES]) if control >= _RESET_STATE else b"") + coded


class _RangeCoder:
    """The range coder of LZMA, writing."""

    def __init__(self) -> None:
        self.low = 0
        self.range = 0xFFFFFFFF
        self.cache = 0
        self.pending = 1
        self.out = bytearray()

    def bit(self, probabilities: list[int], index: int, bit: int) -> None:
        """Write a bit whose probability of being 0 adapts."""
        probability = probabilities[index]
        bound = (self.range >> _PROBABILITY_BITS) * probability
        if bit:
            self.low += bound
            self.range -= bound
            probabilities[index] = probability - (probability >> _MOVE)
        else:
            self.range = bound
            probabilities[index] = probability + ((2 * _HALF - probability) >> _MOVE)
        if self.range < _TOP:
            self.range <<= 8
            self.shift()

    def direct(self, value: int, bits: int) -> None:
        """Write the low `bits` bits of a value, each as likely 0 as 1."""
        for position in reversed(range(bits)):
            self.range >>= 1
            if value >> position & 1:
                self.low += self.range
            if self.range < _TOP:
                self.range <<= 8
                self.shift()

    def tree(self, probabilities: list[int], value: int, bits: int) -> None:
        """Write a value of `bits` bits, highest bit first."""
        node = 1
        for position in reversed(range(bits)):
            bit = value >> position & 1
            self.bit(probabilities, node, bit)
            node = node << 1 | bit

    def reverse_tree(self, probabilities: list[int], value: int, bits: int) -> None:
        """Write a value of `bits` bits, lowest bit first."""
        node = 1
        for position in range(bits):
            bit = value >> position & 1
            self.bit(probabilities, node, bit)
            node = node << 1 | bit

    def shift(self) -> None:
        """Move the highest byte of `low` out, once it is certain."""
        if self.low < 0xFF000000 or self.low > 0xFFFFFFFF:
            carry = self.low >> 32
            self.out.append(self.cache + carry & 0xFF)
            self.out += bytes([0xFF + carry & 0xFF]) * (self.pending - 1)
            self.pending = 0
            self.cache = self.low >> 24 & 0xFF
        self.pending += 1
        self.low = (self.low & 0x00FFFFFF) << 8

    def end(self) -> bytes:
        """Everything written."""
        for _ in range(5):
            self.shift()
        return bytes(self.out)


def _fresh(count: int) -> list[int]:
    return [_HALF] * count


def _length(coder: _RangeCoder, choices: list[int], low: list[int], middle: list[int], high: list[int], length: int) -> None:
    """Write the length of a match, 2 .. LONGEST."""
    value = length - 2
    coder.bit(choices, 0, value >= 8)
    if value < 8:
        coder.tree(low, value, 3)
        return
    coder.bit(choices, 1, value >= 16)
    if value < 16:
        coder.tree(middle, value - 8, 3)
    else:
        coder.tree(high, value - 16, 8)


def _match(distance: int, length: int) -> bytes:
    """One match right after a reset of the state: `length` (2 .. LONGEST) bytes from `distance` before."""
    coder = _RangeCoder()
    coder.bit(_fresh(1), 0, 1)  # a match
    coder.bit(_fresh(1), 0, 0)  # with a distance of its own
    _length(coder, _fresh(2), _fresh(8), _fresh(8), _fresh(256), length)
    value = distance - 1
    bits = value.bit_length()
    slot = value if bits <= 2 else (bits - 1) * 2 + (value >> bits - 2 & 1)
    coder.tree(_fresh(64), slot, 6)
    if slot >= 4:
        footer = (slot >> 1) - 1
        rest = value - ((2 | slot & 1) << footer)
        if slot < 14:
            coder.reverse_tree(_fresh(1 << footer), rest, footer)
        else:
            coder.direct(rest >> 4, footer - 4)
            coder.reverse_tree(_fresh(16), rest & 15, 4)
    return coder.end()


class _Runs:
    """Runs of longest matches with the distance of the match before. A run's bytes depend on its length only, so one run is coded, and
    the coder's state after each of its matches is kept: each state ends one of the shorter runs."""

    def __init__(self) -> None:
        self._states: list[tuple[int, int, int, int, int]] = []
        self._out = bytearray()
        self._steps = self._write()

    def chunk(self, count: int) -> bytes:
        """The coded run of `count` matches, 1 .. LONGEST_REPEAT / LONGEST."""
        while len(self._states) < count:
            next(self._steps)
        coder = _RangeCoder()
        coder.low, coder.range, coder.cache, coder.pending, size = self._states[count - 1]
        coder.out = self._out[:size]
        return coder.end()

    def _write(self) -> Iterator[None]:
        coder = _RangeCoder()
        self._out = coder.out
        choices, low, middle, high = _fresh(2), _fresh(8), _fresh(8), _fresh(256)
        decisions = _fresh(4)  # of the state after one match
        while True:
            for index, bit in enumerate((1, 1, 0, 1)):  # a match, a repeated distance, the last one, longer than a byte
                coder.bit(decisions, index, bit)
            if not self._states:
                decisions = _fresh(4)  # of the state after several
            _length(coder, choices, low, middle, high, LONGEST)
            self._states.append((coder.low, coder.range, coder.cache, coder.pending, len(coder.out)))
            yield


_RUNS = _Runs()
