# SPDX-License-Identifier: Apache-2.0
"""The cubin reader against what the pinned assemblers write, and against damage."""

import struct

import pytest

from generator import cubin
from generator.assemble import assemble_text, sm_of
from tests.unit.tiny_ptx import PARAMS, tiny_ptx

ARCHS = [("sm_80", "cuda12", 7), ("sm_86", "cuda12", 7), ("sm_87", "cuda12", 7), ("sm_89", "cuda12", 7), ("sm_90", "cuda12", 7), ("sm_100", "cuda12", 8),
         ("sm_101", "cuda12", 8), ("sm_110", "cuda13", 8), ("sm_120", "cuda12", 8), ("sm_121", "cuda12", 8)]


@pytest.fixture(scope="module")
def data():
    """A cubin for SM 90."""
    return assemble_text(tiny_ptx(), "sm_90", "cuda12")[0]


@pytest.mark.parametrize("arch, assembler, abi", ARCHS)
def test_reads_what_every_assembler_writes(arch, assembler, abi):
    info = cubin.read(assemble_text(tiny_ptx(), arch, assembler)[0])
    kernel = info.only_kernel()
    assert (info.sm, info.abi_version) == (sm_of(arch), abi)
    assert kernel.symbol == "tiny" and kernel.reqntid == (128, 1, 1) and kernel.max_threads is None
    assert kernel.params == ((0, 0, 8), (1, 8, 4), (2, 16, 8), (3, 24, 4))
    assert 4 <= kernel.registers <= 32


@pytest.mark.parametrize("arch, assembler, offset", [("sm_80", "cuda12", 32), ("sm_90", "cuda12", 48), ("sm_100", "cuda12", 64), ("sm_110", "cuda13", 64)])
def test_a_tensor_map_lies_where_the_constant_bank_aligns_it(arch, assembler, offset):
    params = PARAMS + ", .param .align 64 .b8 map[128]"
    kernel = cubin.read(assemble_text(tiny_ptx(params), arch, assembler)[0]).only_kernel()
    assert kernel.params[4] == (4, offset, 128)


def test_many_parameters_keep_their_order():
    count = 40
    params = ".param .u64 q, " + ", ".join(f".param .{'u32' if i % 3 else 'u64'} p{i}" for i in range(count))
    kernel = cubin.read(assemble_text(tiny_ptx(params), "sm_80", "cuda12")[0]).only_kernel()
    assert [param.size for param in kernel.params] == [8] + [4 if i % 3 else 8 for i in range(count)]
    assert [param.ordinal for param in kernel.params] == list(range(count + 1))


def test_max_threads_without_a_required_block():
    kernel = cubin.read(assemble_text(tiny_ptx(block=".maxntid 256, 1, 1"), "sm_80", "cuda12")[0]).only_kernel()
    assert kernel.reqntid is None and kernel.max_threads == (256, 1, 1)


@pytest.mark.parametrize("size", [0, 3, 5, 15, 60, 63])
def test_a_piece_of_a_header_is_refused(data, size):
    with pytest.raises(cubin.CubinError):
        cubin.read(data[:size])


def test_a_cubin_cut_anywhere_is_refused_or_read_the_same(data):
    whole = cubin.read(data)
    refused = 0
    for size in range(64, len(data), 37):
        try:
            assert cubin.read(data[:size]) == whole
        except cubin.CubinError:
            refused += 1
    assert refused > 20


def test_damage_raises_nothing_but_cubin_error(data):
    for position in range(len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 0xFF
        try:
            cubin.read(bytes(damaged))
        except cubin.CubinError as error:
            assert str(error)


@pytest.mark.parametrize("offset, layout, value, reason", [
    (18, "<H", 62, "ELF machine 62, not CUDA (190)"),
    (8, "<B", 9, "ELF ABI version 9 is unknown"),
    (4, "<B", 1, "not a 64-bit little-endian ELF file"),
    (62, "<H", 999, "the section that names the sections does not exist"),
])
def test_what_is_no_known_cubin_is_named(data, offset, layout, value, reason):
    changed = bytearray(data)
    struct.pack_into(layout, changed, offset, value)
    with pytest.raises(cubin.CubinError, match=reason.replace("(", r"\(").replace(")", r"\)")):
        cubin.read(bytes(changed))
