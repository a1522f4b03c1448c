# SPDX-License-Identifier: Apache-2.0
"""The few header fields of a cubin that say what it was built for."""

from __future__ import annotations

import struct

EM_CUDA = 190
_ABI_VERSION = 8
_MACHINE = 18
_FLAGS = 48
_HEADER_BYTES = 64


def cubin_header(data: bytes) -> tuple[int, int]:
    """(the SM that the cubin `data` was assembled for, its ELF ABI version); the SM is 90 for sm_90 and for sm_90a.

    Raises ValueError when `data` is no 64-bit little-endian CUDA ELF file. The SM stands in the lowest byte of the ELF
    flags up to ABI version 7, in the next byte from version 8 on.
    """
    if len(data) < _HEADER_BYTES or data[:6] != b"\x7fELF\x02\x01":
        raise ValueError("not a 64-bit little-endian ELF file")
    machine, = struct.unpack_from("<H", data, _MACHINE)
    if machine != EM_CUDA:
        raise ValueError(f"ELF machine {machine}, not CUDA ({EM_CUDA})")
    flags, = struct.unpack_from("<I", data, _FLAGS)
    abi_version = data[_ABI_VERSION]
    return flags & 0xFF if abi_version <= 7 else flags >> 8 & 0xFF, abi_version
