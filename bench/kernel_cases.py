# SPDX-License-Identifier: Apache-2.0
"""The cases of the kernel benchmark, as data: at least one for every variant, and what is known of them from elsewhere."""

from __future__ import annotations

from dataclasses import dataclass, replace

WINDOW = 1024
"""Keys that a query of the sliding cases sees, itself included."""

IMAGE = 256
"""Tokens of an image in the vision-block cases; every other stretch of this length is one."""


@dataclass(frozen=True)
class Anchor:
    """The performance anchors of a case: TFLOP/s measured elsewhere on an H200. `peer` and `flash` were in one run, `floor` is to be
    beaten on SM 90; all of them hold for that GPU only."""

    peer: float | None = None
    flash: float | None = None
    cudnn: float | None = None
    floor: float | None = None


@dataclass(frozen=True)
class BenchCase:
    """One shape for one variant. `use_small_d64` is passed to the runner; `note` tells apart cases that differ in nothing else."""

    variant: str
    operation: str
    head_dim: int
    mask: str
    batch: int
    seqlen: int
    num_q_heads: int
    num_kv_heads: int
    anchor: Anchor = Anchor()
    use_small_d64: bool = True
    note: str = ""

    @property
    def name(self) -> str:
        """Readable and unique: `d128 causal 8x2048 32/8 paged`."""
        mask = {"sliding_causal": f"sliding {WINDOW}", "padding": "full", "bidirectional": "full"}.get(self.mask, self.mask)
        kind = "" if self.operation == "llm" else f" {self.operation}"
        note = f" {self.note}" if self.note else ""
        return f"d{self.head_dim} {mask} {self.batch}x{self.seqlen} {self.num_q_heads}/{self.num_kv_heads}{kind}{note}"

    @property
    def shape(self) -> tuple:
        """Cases with equal shapes do the same work, and are measured side by side."""
        return self.head_dim, self.mask, self.batch, self.seqlen, self.num_q_heads, self.num_kv_heads

    @property
    def pairs(self) -> float:
        """Query-key pairs per head and sequence: S^2, half of it if causal, and what lies inside the window if sliding."""
        if self.mask in ("padding", "bidirectional"):
            return float(self.seqlen**2)
        if self.mask == "causal":
            return self.seqlen**2 / 2
        width = min(WINDOW, self.seqlen)
        inside = width * self.seqlen - width**2 / 2
        return inside + (len(images(self.seqlen)) * IMAGE**2 / 2 if self.mask == "vision_block" else 0)

    @property
    def flops(self) -> float:
        """Floating-point operations of one launch: two products of two operations each for every pair and column."""
        return 4.0 * self.batch * self.num_q_heads * self.pairs * self.head_dim

    @property
    def bytes(self) -> int:
        """Compulsory traffic of one launch: Q, K and V read once and O written once, in float16."""
        return 2 * self.batch * self.seqlen * self.head_dim * 2 * (self.num_q_heads + self.num_kv_heads)


def images(seqlen: int) -> list[tuple[int, int]]:
    """First and last token of each image in the vision-block cases."""
    return [(start, start + IMAGE - 1) for start in range(IMAGE, seqlen - IMAGE + 1, 2 * IMAGE)]


def _dense(head_dim: int, shapes: dict[tuple[int, int], Anchor], heads: tuple[int, int]) -> list[BenchCase]:
    variant = f"fmha_v2_d{head_dim}"
    return [BenchCase(variant, "llm", head_dim, "causal", *shape, *heads, anchor) for shape, anchor in shapes.items()]


_MHA = (16, 16)
_HEADS = {64: (32, 8), 128: (32, 8), 256: (16, 8), 512: (16, 1)}
_STANDARD = {64: (8, 2048), 128: (8, 2048), 256: (4, 2048), 512: (4, 2048)}

_PAGED_ANCHORS = {
    ("causal", 64): Anchor(275, None, None, 386), ("causal", 128): Anchor(225, None, None, 480),
    ("causal", 256): Anchor(243, None, None, 516), ("causal", 512): Anchor(152, None, None, 400),
    ("sliding_causal", 128): Anchor(254, None, None, 400),
}
_SLIDING_ANCHORS = {64: Anchor(194, None, None, 300), 128: Anchor(242, None, None, 400)}


def _family(operation: str, mask: str, suffix: str, anchors: dict) -> list[BenchCase]:
    """The standard shape of each head_dim for one operation and mask."""
    return [
        BenchCase(f"fmha_v2_d{d}{suffix}", operation, d, mask, *_STANDARD[d], *_HEADS[d], anchors.get(d, Anchor())) for d in _HEADS
    ]


def _paged_anchors(mask: str) -> dict[int, Anchor]:
    return {head_dim: anchor for (which, head_dim), anchor in _PAGED_ANCHORS.items() if which == mask}


def _vit(head_dim: int, batch: int, seqlen: int, anchor: Anchor = Anchor()) -> BenchCase:
    return BenchCase(f"fmha_v2_vit_d{head_dim}", "vit", head_dim, "bidirectional", batch, seqlen, *_MHA, anchor)


CASES: tuple[BenchCase, ...] = (
    *_dense(128, {
        (1, 2048): Anchor(229, 206, 394, 490), (1, 8192): Anchor(297, 315, 533, 676), (8, 2048): Anchor(281, 296, 480, 484),
        (1, 32768): Anchor(None, None, 571, 571), (1, 512): Anchor(None, None, 126, 138),
    }, _HEADS[128]),
    *_dense(128, {(2, 4096): Anchor(floor=594)}, _MHA),
    *_dense(64, {(8, 2048): Anchor(276, 262, 385, 386), (1, 16384): Anchor(None, None, 430, 496)}, _HEADS[64]),
    *_dense(64, {(2, 4096): Anchor(floor=398)}, _MHA),
    BenchCase("fmha_v2_d64", "llm", 64, "causal", 8, 512, 32, 8, Anchor(137, 132, 206, 206), False, "large tile"),
    BenchCase("fmha_v2_d64_small", "llm", 64, "causal", 8, 512, 32, 8, Anchor(147, 132, 206, 206), note="small tile"),
    *_dense(256, {(4, 2048): Anchor(255, 270, 516, 516), (1, 8192): Anchor(None, None, 578, 629)}, _HEADS[256]),
    *_dense(256, {(2, 4096): Anchor(floor=672)}, _MHA),
    *_dense(512, {(4, 2048): Anchor(152, None, None, 400)}, _HEADS[512]),
    *_family("llm", "sliding_causal", "_sw", _SLIDING_ANCHORS),
    *_family("paged", "causal", "_paged", _paged_anchors("causal")),
    BenchCase("fmha_v2_d64_small_paged", "paged", 64, "causal", 8, 512, 32, 8, note="small tile"),
    *_family("paged", "sliding_causal", "_sw_paged", _paged_anchors("sliding_causal")),
    *_family("paged_ragged", "causal", "_paged_ragged", {}),
    *_family("paged_ragged", "sliding_causal", "_sw_paged_ragged", {}),
    BenchCase("fmha_v2_d256_padding", "padding", 256, "padding", 4, 2048, 16, 8, Anchor(290, 308, 634, 651)),
    BenchCase("fmha_v2_d256_padding", "padding", 256, "padding", 2, 4096, *_MHA, Anchor(floor=745)),
    BenchCase("fmha_v2_d256_bidirectional", "vision_block", 256, "vision_block", 4, 2048, 16, 8),
    BenchCase("fmha_v2_d512_bidirectional", "vision_block", 512, "vision_block", 4, 2048, 16, 1),
    _vit(64, 4, 4096, Anchor(306, 298, 448, 488)), _vit(72, 4, 4096, Anchor(253, 227, 345, 440)),
    _vit(72, 8, 1024, Anchor(210, 201, 317, 360)), _vit(80, 4, 4096, Anchor(290, 263, 390, 493)), _vit(96, 4, 4096),
    _vit(128, 4, 4096, Anchor(290, 335, 591, 626)),
    _vit(64, 2, 4096, Anchor(floor=488)), _vit(80, 2, 4096, Anchor(floor=503)), _vit(128, 2, 4096, Anchor(floor=703)),
)
"""Every case, in the order of the table."""


def _other_shapes(case: BenchCase) -> list[BenchCase]:
    """Shapes unlike that of `case`: a short and a long one if a small tile is chosen by length, else one long sequence."""
    shapes = ((1, 512), (32, 256)) if case.note.endswith("small tile") else ((8, 1024),) if case.operation == "vit" else ((1, 8192),)
    return [replace(case, batch=batch, seqlen=seqlen, anchor=Anchor()) for batch, seqlen in shapes]


_ONCE = [case for case in CASES if sum(other.variant == case.variant for other in CASES) == 1]

TUNING_CASES: tuple[BenchCase, ...] = (*CASES, *(other for case in _ONCE for other in _other_shapes(case)))
"""The cases that tiles are chosen by: at least two shapes for every variant."""
