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
