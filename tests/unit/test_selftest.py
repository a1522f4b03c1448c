# SPDX-License-Identifier: Apache-2.0
"""`fmhaforge run` end to end on a fake GPU that computes from what the launch gave it, and the checks that it makes."""

import dataclasses
import math
import random
import struct

import fmhaforge
import pytest
from fake_gpu import FakeGpu
from fmhaforge import selftest
from fmhaforge.reference import attend, causal, vision_block
from runtime_fixtures import bundle, bundle_path, over  # noqa: F401

KINDS = [("llm", "causal", 64), ("llm", "sliding_causal", 128), ("padding", "padding", 256), ("vision_block", "vision_block", 256),
         ("paged", "causal", 64), ("paged", "sliding_causal", 128), ("paged_ragged", "causal", 128),
         ("paged_ragged", "sliding_causal", 64), ("vit", "bidirectional", 72)]


@pytest.fixture
def gpu_bundle(bundle):
    gpu = FakeGpu([row for row in bundle.metadata.rows if row.sm == 90], 90)
    return gpu, over(bundle, gpu)


def outcome(gpu_bundle, operation, mask, head_dim, **options):
    case = selftest.random_case(operation, mask, head_dim, **{"seed": 3, "seqlen_q": 9, "seqlen_kv": 14, "window": 3, **options})
    bundle = gpu_bundle[1]
    runner = bundle.runner(case.num_q_heads, case.num_kv_heads, head_dim, len(case.q_lens), case.seqlen_q,
                           0 if case.paged else case.seqlen_kv)
    return selftest.run_case(runner, bundle.driver, case)


@pytest.mark.parametrize("operation, mask, head_dim", KINDS)
def test_every_operation_is_right_end_to_end(gpu_bundle, operation, mask, head_dim):
    result = outcome(gpu_bundle, operation, mask, head_dim)
    assert result and result.relative_error < 4e-4 and 0 < result.violation < 1 and result.untouched
    assert len(gpu_bundle[0].launches) == 1 and gpu_bundle[0].bytes == {}


def test_longer_than_a_page(gpu_bundle):
    assert outcome(gpu_bundle, "paged", "causal", 64, seqlen_q=3, seqlen_kv=300)


def test_different_seeds_give_different_cases():
    assert selftest.random_case("llm", "causal", 64, 1) != selftest.random_case("llm", "causal", 64, 2)
    assert selftest.random_case("llm", "causal", 64, 1) == selftest.random_case("llm", "causal", 64, 1)


def spoil(index, value):
    def corrupt(data):
        struct.pack_into("<e", data, selftest.GUARD + 2 * index, value)
    return corrupt


@pytest.mark.parametrize("corrupt", [spoil(5, math.nan), spoil(5, 0.5), spoil(0, selftest.SENTINEL), spoil(7, math.inf)])
def test_a_wrong_element_fails(gpu_bundle, corrupt):
    gpu_bundle[0].corrupt = corrupt
    assert not outcome(gpu_bundle, "llm", "causal", 64)


@pytest.mark.parametrize("place", [0, selftest.GUARD - 1, -1, -selftest.GUARD])
def test_a_guard_byte_fails(gpu_bundle, place):
    def corrupt(data):
        data[place] ^= 1
    gpu_bundle[0].corrupt = corrupt
    result = outcome(gpu_bundle, "llm", "causal", 64)
    assert not result and not result.untouched and result.relative_error < 4e-4


def test_a_wrong_mask_fails(gpu_bundle):
    """Computing the sliding case without its window is caught."""
    gpu = gpu_bundle[0]
    gpu.rows = {symbol: dataclasses.replace(row, mask="causal") for symbol, row in gpu.rows.items()}
    assert not outcome(gpu_bundle, "llm", "sliding_causal", 64)


def test_memory_is_freed_after_a_failure(gpu_bundle):
    gpu = gpu_bundle[0]
    gpu.fail["cuLaunchKernel"] = gpu.CUresult.CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES
    with pytest.raises(fmhaforge.DriverError, match="cuLaunchKernel.*OUT_OF_RESOURCES"):
        outcome(gpu_bundle, "llm", "causal", 64)
    assert gpu.bytes == {}


# -- the definition ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("query, q_len, kv_len, window, keys", [
    (0, 4, 4, None, [0]), (3, 4, 4, None, [0, 1, 2, 3]), (0, 2, 5, None, [0, 1, 2, 3]), (0, 5, 2, None, []), (3, 5, 2, None, [0]),
    (0, 1, 0, None, []), (3, 4, 4, 0, [3]), (3, 4, 4, 1, [2, 3]), (3, 4, 4, 9, [0, 1, 2, 3]), (2, 5, 2, 3, []), (3, 4, 4, -1, [])])
def test_causal(query, q_len, kv_len, window, keys):
    assert list(causal(query, q_len, kv_len, window)) == keys


@pytest.mark.parametrize("begin, end, keys", [(-1, -1, [2, 3]), (0, 0, [0, 2, 3]), (5, 6, [2, 3, 5, 6]), (5, 99, [2, 3, 5, 6, 7]),
                                              (6, 5, [2, 3]), (3, 4, [2, 3, 4])])
def test_vision_block(begin, end, keys):
    assert vision_block(3, 8, 8, 1, begin, end) == keys


def test_attend_against_numpy():
    numpy = pytest.importorskip("numpy")
    rng = random.Random(0)
    q, k, v = ([[rng.gauss(0, 1) for _ in range(8)] for _ in range(n)] for n in (1, 6, 6))
    scores = numpy.exp(0.3 * numpy.array(k) @ numpy.array(q[0]))
    right = scores @ numpy.array(v) / scores.sum()
    assert numpy.allclose(attend(q[0], k, v, 0.3, 8), right, rtol=1e-14, atol=0)
    assert attend(q[0], [], [], 0.3, 8) == [0.0] * 8
