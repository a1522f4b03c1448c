# SPDX-License-Identifier: Apache-2.0
"""A fake driver that also computes: launches read and write its memory as the operations are defined.

It works from the parameters that reached the driver alone (addresses, strides, sizes, and what was encoded into tensor maps), with
numpy and the reference of the device tests, so it checks argument passing and `fmhaforge.selftest` end to end. What a map lets
through is all that is read of its tensor, and nothing is touched outside allocated memory. Checked kernels verify and report.
"""

import struct
from dataclasses import dataclass

import numpy
from checked_stand_in import Limits, length_faults, page_faults
from fake_cuda import OK, FakeCuda
from fmhaforge.driver import _SWIZZLE_BYTES
from tests.device.reference import attend, visible

SIZES = {"ptr": "<Q", "i64": "<q", "i32": "<i", "f32": "<f"}
LN2 = 0.6931471805599453


@dataclass(frozen=True)
class Tokens:
    """Where a tensor [outer][token][head][column] stands: `strides` of outer, token and head, in elements.

    `extents` (outer, tokens, heads, columns) is what a tensor map lets through; None where a kernel is told the strides only.
    """

    address: int
    strides: tuple
    extents: tuple | None = None

    @classmethod
    def of_map(cls, encoded, wanted):
        """By a tensor map, `wanted` being what the kernel was built for; a packed one has no outer dimension."""
        for key, right in (("box", list(wanted.box)), ("dtype", f"CU_TENSOR_MAP_DATA_TYPE_{wanted.dtype.upper()}"),
                           ("swizzle", f"CU_TENSOR_MAP_SWIZZLE_{_SWIZZLE_BYTES[wanted.swizzle]}"), ("rest", ([1] * len(wanted.box), 0, 0))):
            assert encoded[key] == right, f"the map's {key} is {encoded[key]}, the kernel was built for {right}"
        dims, (token, head, *outer) = encoded["dims"], (stride // 2 for stride in encoded["strides"])
        columns, tokens, heads, *outers = dims
        return cls(encoded["address"], (*(outer or [0]), token, head), (*(outers or [1]), tokens, heads, columns))

    def part(self, gpu, outer, first, count, heads, dim):
        """The view [count][heads][dim] of the tokens from `first` on, which a map must hold whole."""
        if self.extents is not None and count:
            ends = (outer + 1, first + count, heads)
            assert min(outer, first) >= 0 and all(end <= extent for end, extent in zip(ends, self.extents)), (
                f"tokens {first} .. {first + count - 1} of {outer}, {heads} heads are read, outside the map's {self.extents}")
            assert dim == self.extents[3], f"{dim} columns are read by a map of {self.extents[3]}"
        by_outer, by_token, by_head = self.strides
        return gpu.array(self.address + 2 * (outer * by_outer + first * by_token), "f2", (count, heads, dim), (by_token, by_head, 1))


class FakeGpu(FakeCuda):
    """`rows`: the metadata's rows, to know what a launched symbol computes. `corrupt(bytes)` may spoil a downloaded output."""

    def __init__(self, rows, *sms):
        super().__init__(*sms)
        self.rows = {row.symbol: row for row in rows}
        self.bytes = {}
        self.corrupt = None

    def cuMemAlloc(self, size):
        address = self.allocate(size, self.current % 100)
        self.bytes[address] = bytearray(size)
        return self.result("cuMemAlloc", address)

    def cuMemFree(self, address):
        del self.bytes[int(address)], self.memory[int(address)]
        return self.result("cuMemFree")

    def cuMemcpyHtoD(self, address, data, size):
        self.bytes[int(address)][:size] = data[:size]
        return self.result("cuMemcpyHtoD")

    def cuMemcpyDtoH(self, data, address, size):
        data[:] = self.bytes[int(address)][:size]
        if self.corrupt:
            self.corrupt(data)
        return self.result("cuMemcpyDtoH")

    def cuMemsetD32Async(self, address, value, count, stream):
        self.bytes[int(address)][:4 * count] = struct.pack("<I", value) * count
        return super().cuMemsetD32Async(address, value, count, stream)

    def cuMemcpyDtoHAsync(self, data, address, size, stream):
        data[:] = self.bytes[int(address)][:size]
        return super().cuMemcpyDtoHAsync(data, address, size, stream)

    def _launch(self, *arguments):
        status, = super()._launch(*arguments)
        if status == OK:
            self._execute(self.launches[-1])
        return (status,)

    def array(self, address, dtype, shape, strides):
        """A strided view of memory from `address` on, all of it inside one allocation; `strides` in elements."""
        base = max(start for start in self.bytes if start <= address)
        flat = numpy.frombuffer(self.bytes[base], dtype)[(address - base) // numpy.dtype(dtype).itemsize:]
        last = sum((extent - 1) * stride for extent, stride in zip(shape, strides))
        assert 0 in shape or last < flat.size, f"element {last} is touched of {flat.size} from {address:#x} to the end of its allocation"
        return numpy.lib.stride_tricks.as_strided(flat, shape, [stride * flat.itemsize for stride in strides])

    def _execute(self, launched):
        row = self.rows[launched.symbol]
        p, maps = {}, {}
        for param, value in zip(row.plan.params, launched.params, strict=True):
            if param.map is None:
                p[param.name], = struct.unpack(SIZES[param.type], value)
            else:
                maps[param.map.base] = Tokens.of_map(self.map_of(value), param.map)
        p["head_dim"] = row.head_dim
        if "batch" not in p:
            p["batch"] = launched.grid[row.plan.grid.index("batch")]
        tensors = {name: self._by_strides(p, name) for name in ("q", "k", "v", "kv_pool", "o") if name in p} | maps
        for b in range(p["batch"]):
            self._sequence(row, p, tensors, b)

    @staticmethod
    def _by_strides(p, name):
        """A tensor whose address and strides are parameters of their own."""
        if name == "kv_pool":
            return Tokens(p[name], tuple(p[f"pool_stride_{axis}"] for axis in ("page", "token", "head")))
        return Tokens(p[name], (p.get(f"{name}_stride_batch", 0), p[f"{name}_stride_seq"], p["head_dim"]))

    def _lengths(self, p, name, b):
        first, last = self.array(p[name], "i4", (p["batch"] + 1,), (1,))[b:b + 2]
        return int(first), int(last - first)

    def _sequence(self, row, p, tensors, b):
        dim, heads, kv_heads = p["head_dim"], p["num_q_heads"], p["num_kv_heads"]
        cu_q = next((name for name in ("cu_q_seqlens", "cu_seqlens") if name in p), None)
        first, q_len = self._lengths(p, cu_q, b) if cu_q else (0, p["seqlen_q"])
        first_key, kv_len = self._lengths(p, "cu_kv_seqlens" if "cu_kv_seqlens" in p else "cu_seqlens", b)
        if row.checked:
            q_len, kv_len = self._verified(row, p, b, first, q_len, kv_len)
        packed = "o_stride_batch" not in p
        rows = q_len if packed else p["seqlen_q"]
        place = (0, first, rows) if packed else (b, 0, rows)
        q, o = (tensors[name].part(self, *place, heads, dim) for name in "qo")
        keys, values = self._keys(p, tensors, b, first_key, kv_len, kv_heads, dim)
        allowed = self._allowed(row, p, b, rows, q_len, kv_len)
        o[:] = attend(numpy, q.astype("f8"), keys.astype("f8"), values.astype("f8"), allowed, p["scale_log2"] * LN2)

    def _verified(self, row, p, b, first, q_len, kv_len):
        """The lengths that a checked kernel goes on with; the first fault of the launch is in the report."""
        limits = Limits(p["num_flat_pages"], 128 * p["max_pages"], p.get("seqlen_q", p.get("max_seqlen_q")), p.get("total_seqlen_q"))
        faults = list(length_faults(limits, first, q_len, kv_len))
        q_len, kv_len = (0 if code in {fault[0] for fault in faults} else length for code, length in ((4, q_len), (3, kv_len)))
        seen = self._allowed(row, p, b, q_len, q_len, kv_len).any(0)
        faults += page_faults(limits, self._table(p, b), lambda key: key < kv_len and seen[key])
        report = self.array(p["fault_report"], "i4", (6,), (1,))
        if faults and not report[0]:
            code, entry, value = faults[0]
            report[:4] = code, b, entry, value
        return q_len, 0 if faults else kv_len

    def _table(self, p, b):
        return self.array(p["page_list"] + 4 * b * p["page_list_stride_batch"], "i4", (2, p["max_pages"]), (p["page_list_stride_plane"], 1))

    def _keys(self, p, tensors, b, first, kv_len, kv_heads, dim):
        if "kv_pool" not in tensors:
            place = (0, first, kv_len) if "o_stride_batch" not in p else (b, 0, kv_len)
            return [tensors[name].part(self, *place, kv_heads, dim) for name in "kv"]
        planes = []
        for plane in self._table(p, b):
            pages = [tensors["kv_pool"].part(self, int(plane[k // 128]), 0, min(kv_len - k, 128), kv_heads, dim) for k in range(0, kv_len, 128)]
            planes.append(numpy.concatenate([numpy.empty((0, kv_heads, dim), "f2"), *pages]))
        return planes

    def _allowed(self, row, p, b, rows, q_len, kv_len):
        begin = end = None
        if "block_begin" in p:
            begin, end = (self.array(p[name] + 4 * b * p["block_stride_batch"], "i4", (rows, 1), (1, 1)) for name in ("block_begin", "block_end"))
        return visible(row.mask, numpy.arange(rows)[:, None], numpy.arange(kv_len)[None, :], q_len, kv_len, p.get("window_size_left"), begin, end)
