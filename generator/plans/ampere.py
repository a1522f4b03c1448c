# SPDX-License-Identifier: Apache-2.0
"""Launch plan of the `ampere` family: geometry, shared memory, grid and kernel parameters, as data.

The kernel (generator/kernels/ampere) takes its geometry and its parameter order from here, so the plan and the kernel
cannot drift apart unseen; the build compares both with the cubin.
"""
from __future__ import annotations

from dataclasses import dataclass

from ..manifest import KernelSpec
from ..operations import FAULT_REPORT, OPERATIONS
from ..plan import LaunchPlan, Param

ELEMENT_BYTES = 2
UNIT = 8  # fp16 elements in 16 bytes
MMA_K = 16


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


@dataclass(frozen=True)
class Threads:
    """How the threads of a block walk over the 16-byte units of a row-major tile: `per_row` threads beside each other."""

    count: int
    per_row: int

    @property
    def rows(self) -> int:
        """Rows that the block covers at a time."""
        return self.count // self.per_row


def _walk(units_per_row: int, threads: int) -> Threads:
    """Neighbouring threads take neighbouring units, a row to a power of two of them (at most a warp), so that a warp's access covers
    whole rows. In a head_dim that is no power of two the last threads of a row have nothing to do: cheaper than rows in pieces,
    whose 32-byte sectors would be fetched more than once.
    """
    per_row = 1
    while per_row < min(units_per_row, 32):
        per_row *= 2
    return Threads(threads, per_row)


@dataclass(frozen=True)
class Geometry:
    """Sizes of a kernel: rows and keys per tile, warps, padded head_dim, shared-memory pitch (elements).

    `row_warps` warps split the query rows; with `column_groups` > 1 that many groups of them split the keys of Q K^T and
    the columns of P V, which is what a 512-wide head needs to hold its accumulator in registers.
    """

    head_dim: int
    m: int
    n: int
    warps: int
    column_groups: int
    shared_sums: bool
    softmax_first: bool

    @property
    def threads(self) -> int:
        return 32 * self.warps

    def __post_init__(self):
        rows = self.load_threads.rows
        if self.m % rows or self.n % rows:
            raise ValueError(
                f"a tile of {self.m} x {self.n} rows with head_dim {self.head_dim} is loaded {rows} rows at a time: "
                f"make m and n multiples of {rows}"
            )

    @property
    def load_threads(self) -> "Threads":
        """How the block's threads walk over a tile's 16-byte units."""
        return _walk(self.qk_dim // UNIT, self.threads)

    @property
    def row_warps(self) -> int:
        return self.warps // self.column_groups

    @property
    def qk_dim(self) -> int:
        """head_dim rounded up to the 16 of one tensor-core step; the columns past head_dim are zeros."""
        return _round_up(self.head_dim, MMA_K)

    @property
    def row_pitch(self) -> int:
        """Elements from one shared row to the next: an odd number of 16-byte units."""
        units = self.qk_dim // UNIT
        return (units + 1 - units % 2) * UNIT

    @property
    def value_dim(self) -> int:
        """Columns that P V computes: head_dim rounded up to what the warps take at a time (16 columns each)."""
        return _round_up(self.head_dim, 16 * self.column_groups)

    @property
    def exchange_bytes(self) -> int:
        """Shared memory in which column groups exchange row maxima and sums: FP32 per row and group."""
        return 4 * self.m * self.column_groups if self.column_groups > 1 else 0

    @property
    def thread_rows(self) -> int:
        """Query rows that a thread holds a part of."""
        return 2 * self.m // (16 * self.row_warps)

    @property
    def sums_bytes(self) -> int:
        """Shared memory for the row sums of every thread (FP32), when they are not in registers."""
        return 4 * self.thread_rows * self.threads if self.shared_sums else 0

    @property
    def q_elements(self) -> int:
        return self.m * self.row_pitch

    @property
    def kv_elements(self) -> int:
        return self.n * self.row_pitch

    @property
    def shared_bytes(self) -> int:
        """Q, K and V tiles, then the exchange area, then the row sums."""
        return self.sums_offset + self.sums_bytes

    @property
    def exchange_offset(self) -> int:
        """Byte offset of the exchange area."""
        return ELEMENT_BYTES * (self.q_elements + 2 * self.kv_elements)

    @property
    def sums_offset(self) -> int:
        """Byte offset of the row sums."""
        return self.exchange_offset + self.exchange_bytes


def geometry(spec: KernelSpec) -> Geometry:
    """The geometry that a kernel's spec asks for."""
    tile = spec.tile
    return Geometry(spec.head_dim, tile.m, tile.n, tile.warps, tile.column_groups, bool(tile.shared_sums), bool(tile.softmax_first))


#: ABI arguments that no kernel needs: the grid carries the batch, and the rest only serve checks...
_UNUSED = {"batch", "total_seqlen", "max_seqlen"}
#: ...on the host, or on the device in a checked kernel.
_FOR_CHECKS = {"total_seqlen_q", "num_flat_pages", "max_seqlen_q"}
_ORDER = {"ptr": 0, "i64": 1, "i32": 2, "f32": 3}
#: The extent that the query tiles of an operation cover.
_QUERY_EXTENT = {"vit": "max_seqlen", "paged_ragged": "max_seqlen_q"}


def kernel_parameters(spec: KernelSpec) -> tuple[Param, ...]:
    """Parameters in kernel order: pointers, 64-bit, 32-bit integers, floats (so that no padding arises)."""
    windowed = spec.mask in ("sliding_causal", "vision_block")
    used = [
        argument
        for argument in OPERATIONS[spec.operation].arguments
        if argument.name not in _UNUSED
        and (spec.checked or argument.name not in _FOR_CHECKS)
        and (argument.name != "window_size_left" or windowed)
    ]
    used.sort(key=lambda argument: _ORDER[argument.type])
    report = (Param(FAULT_REPORT, "ptr", FAULT_REPORT),) if spec.checked else ()
    return report + tuple(Param(argument.name, argument.type, argument.name) for argument in used)


def plan(spec: KernelSpec) -> LaunchPlan:
    """The launch plan of a kernel: one block per (query head, query tile, batch entry).

    Heads vary fastest: blocks that run together share keys (GQA) and stand at like places of their sequences, and under a causal mask
    the long tiles of all heads start before the short ones.
    """
    g = geometry(spec)
    extent = _QUERY_EXTENT.get(spec.operation, "seqlen_q")
    return LaunchPlan(
        grid=("num_q_heads", f"ceil_div({extent}, {g.m})", "batch"),
        block=(g.threads, 1, 1),
        cluster=(1, 1, 1),
        smem_bytes=g.shared_bytes,
        empty_if_zero=("batch", extent, "num_q_heads"),
        params=kernel_parameters(spec),
    )
