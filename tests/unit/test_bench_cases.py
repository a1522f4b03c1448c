# SPDX-License-Identifier: Apache-2.0
"""The kernel benchmark's cases: every variant is measured, under its own name, with the work counted right."""

import numpy as np
import pytest

from bench.kernel_cases import CASES, WINDOW, images
from tests.device.reference import visible


def test_every_variant_has_a_case_with_the_manifests_fields(manifest):
    variants = {variant.name: variant for variant in manifest.variants if not variant.checked}
    assert {case.variant for case in CASES} == set(variants)
    for case in CASES:
        variant = variants[case.variant]
        assert (case.operation, case.head_dim, case.mask) == (variant.operation, variant.head_dim, variant.mask)
        if variant.select:
            assert case.seqlen <= variant.select.seqlen_q_at_most and case.use_small_d64


def test_names_are_unique():
    names = [case.name for case in CASES]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("name, tflop", (
    ("d128 causal 8x2048 32/8", 0.2749), ("d512 causal 4x2048 16/1", 0.2749), ("d72 full 4x4096 16/16 vit", 0.3092),
    ("d128 sliding 1024 8x2048 32/8", 0.2062),
))
def test_work_is_counted_as_in_the_anchors(name, tflop):
    case = next(case for case in CASES if case.name == name)
    assert case.flops / 1e12 == pytest.approx(tflop, rel=1e-3)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_pairs_equal_the_mask_up_to_the_diagonal(case):
    """Half a square instead of the triangle with its diagonal: the difference is at most one pair a row."""
    if case.seqlen > 4096:
        return
    rows, keys = np.arange(case.seqlen)[:, None], np.arange(case.seqlen)[None, :]
    begin, end = np.full_like(rows, -1), np.full_like(rows, -1)
    for first, last in images(case.seqlen):
        begin[first : last + 1], end[first : last + 1] = first, last
    seen = visible(case.mask, rows, keys, case.seqlen, case.seqlen, WINDOW - 1, begin, end).sum()
    assert abs(seen - case.pairs) <= case.seqlen


ANCHORED = """
d128 causal 1x2048 32/8 | d128 causal 1x8192 32/8 | d128 causal 8x2048 32/8 | d128 causal 1x32768 32/8 | d128 causal 1x512 32/8
d128 causal 8x2048 32/8 paged | d128 sliding 1024 8x2048 32/8 | d128 sliding 1024 8x2048 32/8 paged | d64 causal 8x2048 32/8
d64 causal 8x512 32/8 small tile | d64 causal 8x512 32/8 large tile | d64 causal 1x16384 32/8 | d64 causal 8x2048 32/8 paged
d64 sliding 1024 8x2048 32/8 | d256 causal 4x2048 16/8 | d256 causal 1x8192 16/8 | d256 causal 4x2048 16/8 paged
d256 full 4x2048 16/8 padding | d512 causal 4x2048 16/1 | d512 causal 4x2048 16/1 paged | d64 full 4x4096 16/16 vit
d72 full 4x4096 16/16 vit | d72 full 8x1024 16/16 vit | d80 full 4x4096 16/16 vit | d128 full 4x4096 16/16 vit
d64 causal 2x4096 16/16 | d64 full 2x4096 16/16 vit | d80 full 2x4096 16/16 vit | d128 causal 2x4096 16/16 | d128 full 2x4096 16/16 vit
d256 causal 2x4096 16/16 | d256 full 2x4096 16/16 padding
"""


def test_every_anchor_is_a_case_with_its_floor():
    wanted = {name.strip() for line in ANCHORED.strip().splitlines() for name in line.split("|")}
    assert {case.name for case in CASES if case.anchor.floor is not None} == wanted


def test_compulsory_traffic_is_each_tensor_once():
    case = next(case for case in CASES if case.name == "d256 causal 4x2048 16/8")
    q, kv = 4 * 2048 * 16 * 256, 4 * 2048 * 8 * 256
    assert case.bytes == 2 * (q + kv + kv + q)
