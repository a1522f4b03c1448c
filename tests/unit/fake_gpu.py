# SPDX-License-Identifier: Apache-2.0
"""A fake driver that also computes: launches read and write its memory as the operations are defined.

It works from the parameters that reached the driver alone (addresses, strides, sizes), with numpy and the reference of the
device tests, so it checks argument passing and `fmhaforge.selftest` end to end. Checked kernels verify and report.
"""

import struct

import numpy
from checked_stand_in import Limits, length_faults, page_faults
from fake_cuda import OK, FakeCuda
from tests.device.reference import attend, visible

SIZES = {"ptr": "<Q", "i64": "<q", "i32": "<i", "f32": "<f"}
LN2 = 0.6931471805599453


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
        """A strided view of memory from `address` on; `strides` in elements."""
        base = max(start for start in self.bytes if start <= address)
        flat = numpy.frombuffer(self.bytes[base], dtype)[(address - base) // numpy.dtype(dtype).itemsize:]
        return numpy.lib.stride_tricks.as_strided(flat, shape, [stride * flat.itemsize for stride in strides])

    def _execute(self, launched):
        row = self.rows[launched.symbol]
        p = {param.name: struct.unpack(SIZES[param.type], value)[0] for param, value in zip(row.plan.params, launched.params)}
        p["head_dim"], p["batch"] = row.head_dim, launched.grid[row.plan.grid.index("batch")]
        for b in range(p["batch"]):
            self._sequence(row, p, b)

    def _lengths(self, p, name, b):
        first, last = self.array(p[name], "i4", (p["batch"] + 1,), (1,))[b:b + 2]
        return int(first), int(last - first)

    def _sequence(self, row, p, b):
        dim, heads, kv_heads = p["head_dim"], p["num_q_heads"], p["num_kv_heads"]
        cu_q = next((name for name in ("cu_q_seqlens", "cu_seqlens") if name in p), None)
        first, q_len = self._lengths(p, cu_q, b) if cu_q else (0, p["seqlen_q"])
        first_key, kv_len = self._lengths(p, "cu_kv_seqlens" if "cu_kv_seqlens" in p else "cu_seqlens", b)
        if row.checked:
            q_len, kv_len = self._verified(row, p, b, first, q_len, kv_len)
        packed = "q_stride_batch" not in p
        rows = q_len if packed else p["seqlen_q"]
        begins = {t: first * p[f"{t}_stride_seq"] if packed else b * p[f"{t}_stride_batch"] for t in "qo"}
        q, o = (self.array(p[t] + 2 * begins[t], "f2", (rows, heads, dim), (p[f"{t}_stride_seq"], dim, 1)) for t in "qo")
        keys, values = self._keys(p, b, first_key, kv_len, kv_heads, dim)
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

    def _keys(self, p, b, first, kv_len, kv_heads, dim):
        if "kv_pool" not in p:
            begin = {t: b * p[f"{t}_stride_batch"] if "k_stride_batch" in p else first * p[f"{t}_stride_seq"] for t in "kv"}
            return [self.array(p[t] + 2 * begin[t], "f2", (kv_len, kv_heads, dim), (p[f"{t}_stride_seq"], dim, 1)) for t in "kv"]
        planes = []
        for plane in self._table(p, b):
            tokens = [self.array(p["kv_pool"] + 2 * (int(plane[k // 128]) * p["pool_stride_page"] + k % 128 * p["pool_stride_token"]), "f2",
                                 (kv_heads, dim), (p["pool_stride_head"], 1)) for k in range(kv_len)]
            planes.append(numpy.array(tokens, "f2").reshape(kv_len, kv_heads, dim))
        return planes

    def _allowed(self, row, p, b, rows, q_len, kv_len):
        begin = end = None
        if "block_begin" in p:
            begin, end = (self.array(p[name] + 4 * b * p["block_stride_batch"], "i4", (rows, 1), (1, 1)) for name in ("block_begin", "block_end"))
        return visible(row.mask, numpy.arange(rows)[:, None], numpy.arange(kv_len)[None, :], q_len, kv_len, p.get("window_size_left"), begin, end)
