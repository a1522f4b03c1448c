# SPDX-License-Identifier: Apache-2.0
"""Geometry of a `hopper` kernel: tile sizes and the layout of shared memory, for the kernel and its launch plan alike."""
from __future__ import annotations

from dataclasses import dataclass

ELEMENT_BYTES = 2
MMA_K = 16
WARPGROUP = 128
ROWS = 64  # query rows of a warpgroup: the M of wgmma
BARRIER_BYTES = 8
#: 32-bit words of a notice: what a query tile is.
NOTICE_WORDS = 16
#: Columns of a TMA box: a row of it is one row of the 128-byte swizzle.
BOX = 64


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


@dataclass(frozen=True)
class Geometry:
    """Sizes of a kernel. Shared memory holds the Q ring (64 rows per row group each), the K ring, the V ring, shared probabilities, exchanged
    row values, barriers and notices.

    With `columns` = 2 (head_dim 512) two consumers share their 64 rows: each computes the scores of its own n keys of a step, and
    its own half of O's columns from all of them.

    A tile of r rows is `boxes` blocks of [r, BOX] elements, one TMA box each, swizzled as wgmma reads it. Wide boxes make few
    requests, so the last one may reach past head_dim: TMA fills that part with zeros without reading anything.
    """

    head_dim: int
    m: int
    n: int
    consumers: int
    stages: int
    producer_registers: int
    consumer_registers: int
    columns: int = 1
    blocks_per_sm: int = 1
    q_stages: int = 1

    @property
    def dim(self) -> int:
        """Inner dimension of Q K^T: head_dim rounded up to the 16 of one tensor-core step."""
        return _round_up(self.head_dim, MMA_K)

    @property
    def boxes(self) -> int:
        """TMA boxes beside each other in a tile."""
        return -(-self.dim // BOX)

    @property
    def width(self) -> int:
        """Columns that a tile takes in shared memory."""
        return self.boxes * BOX

    @property
    def threads(self) -> int:
        """One producer warpgroup and the consumers."""
        return WARPGROUP * (1 + self.consumers)

    @property
    def row_groups(self) -> int:
        """Groups of 64 query rows."""
        return self.consumers // self.columns

    @property
    def in_turns(self) -> bool:
        """Whether consumers issue in turn; those that share rows don't."""
        return self.row_groups > 1

    @property
    def step(self) -> int:
        """Keys of a step: one K/V tile for each consumer that shares the rows."""
        return self.n * self.columns

    @property
    def value_dim(self) -> int:
        """Columns of O that a consumer computes."""
        return self.head_dim // self.columns

    @property
    def q_elements(self) -> int:
        """Elements of one row group's Q tile."""
        return ROWS * self.width

    @property
    def kv_elements(self) -> int:
        """Elements of one K or V tile."""
        return self.n * self.width

    @property
    def k_offset(self) -> int:
        return self.q_stages * self.row_groups * self.q_elements

    @property
    def v_offset(self) -> int:
        return self.k_offset + self.stages * self.kv_elements

    @property
    def p_offset(self) -> int:
        """Element offset of the probabilities that consumers show each other: two buffers of one tile per consumer."""
        return self.v_offset + self.stages * self.kv_elements

    @property
    def p_elements(self) -> int:
        """Elements of one tile of probabilities."""
        return ROWS * self.n if self.columns > 1 else 0

    @property
    def exchange_offset(self) -> int:
        """Element offset of the row values (FP32) that consumers exchange."""
        return self.p_offset + 2 * self.columns * self.p_elements

    @property
    def barrier_offset(self) -> int:
        """Element offset of the barriers: full and empty for each stage of K and V, and for Q."""
        return self.exchange_offset + (4 * ROWS * self.columns // ELEMENT_BYTES if self.columns > 1 else 0)

    @property
    def barriers(self) -> int:
        return 2 * (2 * self.stages + self.q_stages)

    @property
    def notices(self) -> int:
        """One for each position in the Q ring, and the producer's draft of the next."""
        return 2 * self.q_stages + 1

    @property
    def notice_offset(self) -> int:
        """Element offset of the notices, 16-byte aligned."""
        return _round_up(self.barrier_offset + self.barriers * BARRIER_BYTES // ELEMENT_BYTES, 16 // ELEMENT_BYTES)

    @property
    def shared_bytes(self) -> int:
        return ELEMENT_BYTES * self.notice_offset + 4 * self.notices * NOTICE_WORDS


def geometry(spec) -> Geometry:
    """The geometry that a kernel's spec asks for."""
    t = spec.tile
    return Geometry(spec.head_dim, t.m, t.n, t.consumers, t.stages, t.producer_registers, t.consumer_registers, t.columns, t.blocks_per_sm,
                    t.q_stages)
