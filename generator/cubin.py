# SPDX-License-Identifier: Apache-2.0
"""Reads what an assembled kernel really takes from its cubin: entry symbols, parameter layout, block size, registers.

A cubin is a 64-bit ELF file. Each kernel is a function symbol marked as an entry; its attributes stand in the section
`.nv.info.<symbol>` as records of {format byte, attribute byte, 16-bit value or size, payload}. ABI versions 7 (SM 80 to 90) and 8 hold
the attributes read here in the same form.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Iterator, NamedTuple

import generator  # noqa: F401 - makes fmhaforge importable
from fmhaforge.elf import cubin_header

KNOWN_ABI_VERSIONS = (7, 8)

_SECTION_NOBITS = 8
_SYMBOL_FUNC = 2
_OTHER_ENTRY = 0x10

_FORMAT_SIZED = 0x04
_ATTRIBUTE_MAX_THREADS = 0x05
_ATTRIBUTE_REQNTID = 0x10
_ATTRIBUTE_KPARAM_INFO = 0x17
_ATTRIBUTE_REGCOUNT = 0x2F


class CubinError(Exception):
    """The bytes are no cubin that this reader knows; the message says where they differ."""


class Param(NamedTuple):
    """One kernel parameter: position in the list, offset and size in bytes in the parameter space."""

    ordinal: int
    offset: int
    size: int


@dataclass(frozen=True)
class KernelInfo:
    """One kernel: its symbol, its parameters by ordinal, registers a thread, and the block size that it demands, if it does."""

    symbol: str
    params: tuple[Param, ...]
    registers: int
    reqntid: tuple[int, int, int] | None
    max_threads: tuple[int, int, int] | None


@dataclass(frozen=True)
class CubinInfo:
    """What a cubin holds: the SM it was assembled for, the ELF ABI version, its kernels sorted by symbol."""

    sm: int
    abi_version: int
    kernels: tuple[KernelInfo, ...]

    def only_kernel(self) -> KernelInfo:
        """The one kernel. Raises CubinError when there is none or more than one."""
        if len(self.kernels) != 1:
            names = ", ".join(kernel.symbol for kernel in self.kernels) or "none"
            raise CubinError(f"the cubin holds {len(self.kernels)} kernels ({names}), expected exactly one")
        return self.kernels[0]


class _Section(NamedTuple):
    name: str
    kind: int
    offset: int
    size: int
    link: int


def _unpack(layout: str, data: bytes, offset: int, what: str) -> tuple:
    try:
        return struct.unpack_from(layout, data, offset)
    except (struct.error, OverflowError):
        raise CubinError(f"the file ends inside {what} (offset {offset}, {len(data)} bytes)") from None


def _text(table: bytes, offset: int) -> str:
    end = table.find(b"\0", offset)
    if offset >= len(table) or end < 0:
        raise CubinError(f"a name at offset {offset} lies outside its string table of {len(table)} bytes")
    return table[offset:end].decode("utf-8", "replace")


def _content(data: bytes, section: _Section) -> bytes:
    if section.kind == _SECTION_NOBITS:
        return b""
    if section.offset + section.size > len(data):
        raise CubinError(f"section {section.name} ends past the end of the file")
    return data[section.offset : section.offset + section.size]


def _sections(data: bytes) -> tuple[_Section, ...]:
    table, = _unpack("<Q", data, 40, "the ELF header")
    entry_size, count, names_index = _unpack("<HHH", data, 58, "the ELF header")
    raw = []
    for index in range(count):
        name, kind, _, _, offset, size, link = _unpack("<IIQQQQI", data, table + index * entry_size, "the section table")
        raw.append((name, _Section("", kind, offset, size, link)))
    if names_index >= len(raw):
        raise CubinError("the section that names the sections does not exist")
    names = _content(data, raw[names_index][1])
    return tuple(section._replace(name=_text(names, name)) for name, section in raw)


def _one(sections: tuple[_Section, ...], name: str) -> _Section:
    found = [section for section in sections if section.name == name]
    if len(found) != 1:
        raise CubinError(f"expected one section {name}, found {len(found)}")
    return found[0]


def _attributes(content: bytes, what: str) -> Iterator[tuple[int, bytes]]:
    """The (attribute, payload) records of an info section."""
    offset = 0
    while offset < len(content):
        form, attribute, value = _unpack("<BBH", content, offset, what)
        offset += 4
        if form == _FORMAT_SIZED:
            payload = content[offset : offset + value]
            if len(payload) != value:
                raise CubinError(f"attribute {attribute:#x} ends past the end of {what}")
            offset += value
            yield attribute, payload


def _kernel(symbol: str, content: bytes, registers: int) -> KernelInfo:
    what = f".nv.info.{symbol}"
    params, reqntid, max_threads = [], None, None
    for attribute, payload in _attributes(content, what):
        if attribute == _ATTRIBUTE_KPARAM_INFO:
            _, ordinal, offset, flags = _unpack("<IHHI", payload, 0, what)
            params.append(Param(ordinal, offset, flags >> 18))
        elif attribute == _ATTRIBUTE_REQNTID:
            reqntid = _unpack("<III", payload, 0, what)
        elif attribute == _ATTRIBUTE_MAX_THREADS:
            max_threads = _unpack("<III", payload, 0, what)
    params.sort()
    if [param.ordinal for param in params] != list(range(len(params))):
        raise CubinError(f"{what} does not number the kernel's parameters 0 to {len(params) - 1}")
    return KernelInfo(symbol, tuple(params), registers, reqntid, max_threads)


def read(data: bytes) -> CubinInfo:
    """What the cubin `data` holds. Raises CubinError when it is no cubin, is cut off, or has an unknown ABI version."""
    try:
        sm, abi_version = cubin_header(data)
    except ValueError as error:
        raise CubinError(str(error)) from error
    if abi_version not in KNOWN_ABI_VERSIONS:
        raise CubinError(f"ELF ABI version {abi_version} is unknown (known: {KNOWN_ABI_VERSIONS}); another assembler than the pinned one?")
    sections = _sections(data)
    symbol_table = _one(sections, ".symtab")
    symbols = _content(data, symbol_table)
    if symbol_table.link >= len(sections):
        raise CubinError("the section with the symbols' names does not exist")
    names = _content(data, sections[symbol_table.link])
    found: dict[int, str] = {}
    for index in range(len(symbols) // 24):
        name, info, other = _unpack("<IBB", symbols, index * 24, "the symbol table")
        if info & 0xF == _SYMBOL_FUNC and other & _OTHER_ENTRY:
            found[index] = _text(names, name)
    registers = {}
    for attribute, payload in _attributes(_content(data, _one(sections, ".nv.info")), ".nv.info"):
        if attribute == _ATTRIBUTE_REGCOUNT:
            index, count = _unpack("<II", payload, 0, ".nv.info")
            registers[index] = count
    missing = [symbol for index, symbol in found.items() if index not in registers]
    if missing:
        raise CubinError(f"no register count for {', '.join(missing)}")
    kernels = [_kernel(symbol, _content(data, _one(sections, f".nv.info.{symbol}")), registers[index]) for index, symbol in found.items()]
    kernels.sort(key=_symbol_of)
    return CubinInfo(sm, abi_version, tuple(kernels))


def _symbol_of(kernel: KernelInfo) -> str:
    return kernel.symbol
