# SPDX-License-Identifier: Apache-2.0
"""`fmhaforge run` end to end on a fake GPU that computes from what the launch gave it, and the checks that it makes."""

import dataclasses
import math
import random
import struct

import fmhaforge
import pytest
from fake_bundle import make_bundle
from fake_gpu import FakeGpu
from fmhaforge import selftest
from fmhaforge.reference import attend, causal, vision_block
from runtime_fixtures import bundle, bundle_path, over  # noqa: F401

KINDS = [("llm", "causal", 64), ("llm", "sliding_causal", 128), ("padding", "padding", 256), ("vision_block", "vision_block", 256),
         ("paged", "causal", 64), ("paged", "sliding_causal", 128), ("paged_ragged", "causal", 128),
         ("paged_ragged", "sliding_causal", 64), ("vit", "bidirectional", 72)]


@pytest.fixture(params=[90, 86], ids=["hopper", "ampere"])
def gpu_bundle(bundle, request):
    """A device of each family: kernels that are told tensors by tensor maps, and by addresses and strides."""
    gpu = FakeGpu([row for row in bundle.metadata.rows if row.sm == request.param], request.param)
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
    gpu = gpu_bundle[0]
    assert len(gpu.launches) == 1 and gpu.bytes == {}
    maps = {"hopper": 2 if "paged" in operation else 3, "ampere": 0}[gpu.rows[gpu.launches[0].symbol].family]
    assert len(gpu.maps) == len([value for value in gpu.launches[0].params if len(value) == 128]) == maps


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


LLM, VIT, PAGED = ("llm", "causal", 128), ("vit", "bidirectional", 72), ("paged", "causal", 128)


def with_wrong_map(tmp_path, manifest, kind, base, change):
    """The outcome of a case on SM 90 when the plan's map of `base` differs from what the kernel was built for."""
    def rebuilt(document):
        for row in document["rows"]:
            found, = (param["map"] for param in row["plan"]["params"] if param["type"] == "tensormap" and param["map"]["base"] == base)
            found.update(change)
    variants = ["fmha_v2_d128", "fmha_v2_vit_d72", "fmha_v2_d128_paged"]
    variants = [name for name, of in zip(variants, (LLM, VIT, PAGED)) if of == kind]
    good = fmhaforge.open(make_bundle(tmp_path / "good", manifest, sms=[90], variants=variants))
    bad = fmhaforge.open(make_bundle(tmp_path / "bad", manifest, sms=[90], variants=variants, change=rebuilt))
    gpu = FakeGpu(good.metadata.rows, 90)
    assert outcome((gpu, over(good, gpu)), *kind)
    return outcome((gpu, over(bad, gpu)), *kind)


@pytest.mark.parametrize("kind, base, change", [
    (LLM, "k", {"base": "v"}), (LLM, "v", {"strides_bytes": ["v_stride_seq * 2", "128", "v_stride_batch * 2"]}),
    (LLM, "k", {"strides_bytes": ["k_stride_seq * 2", "128 * 2", "k_stride_seq * 2"]}),
    (VIT, "v", {"strides_bytes": ["k_stride_seq", "72 * 2"]}),
    (PAGED, "kv_pool", {"strides_bytes": ["pool_stride_head * 2", "pool_stride_token * 2", "pool_stride_page * 2"]}),
    (PAGED, "q", {"strides_bytes": ["o_stride_seq * 2", "128 * 2", "0"]})])
def test_a_map_of_the_wrong_place_fails(tmp_path, manifest, kind, base, change):
    assert not with_wrong_map(tmp_path, manifest, kind, base, change)


@pytest.mark.parametrize("kind, base, change, reason", [
    (LLM, "q", {"base": "k"}, "end of its allocation"),
    (LLM, "q", {"dims": ["128", "max(seqlen_q - 1, 1)", "num_q_heads", "batch"]}, r"tokens 0 .. 8 of 0, 4 heads.*\(2, 8, 4, 128\)"),
    (LLM, "k", {"dims": ["128", "seqlen_kv", "num_kv_heads", "1"]}, r"tokens 0 .. 13 of 1, 2 heads.*\(1, 14, 2, 128\)"),
    (LLM, "v", {"dims": ["64", "seqlen_kv", "num_kv_heads", "batch"]}, "128 columns are read by a map of 64"),
    (VIT, "q", {"dims": ["72", "max_seqlen", "num_q_heads"]}, r"outside the map's \(1, 9, 4, 72\)"),
    (VIT, "k", {"dims": ["72", "total_seqlen", "1"]}, "2 heads are read"), (VIT, "k", {"box": [64, 64, 1]}, "box"),
    (PAGED, "kv_pool", {"dims": ["128", "128", "num_kv_heads", "2"]}, "outside the map's .2, 128, 2, 128."),
    (PAGED, "kv_pool", {"dims": ["128", "8", "num_kv_heads", "num_flat_pages"]}, "tokens 0 .. 8 of .*outside"),
    (PAGED, "kv_pool", {"strides_bytes": ["pool_stride_token * 2", "pool_stride_head * 2", "pool_stride_page * 64"]}, "end of its allocation"),
    (PAGED, "kv_pool", {"swizzle": 0, "l2_promotion": 0}, "swizzle")])
def test_a_map_that_lacks_what_is_read_fails(tmp_path, manifest, kind, base, change, reason):
    with pytest.raises(AssertionError, match=reason):
        with_wrong_map(tmp_path, manifest, kind, base, change)


@pytest.mark.parametrize("change, error, words", [
    ({"strides_bytes": ["k_stride_seq + 1", "256", "k_stride_batch * 2"]}, fmhaforge.DriverError, "cuTensorMapEncodeTiled.*INVALID_VALUE"),
    ({"box": [64, 128, 1, 1], "swizzle": 64}, fmhaforge.DriverError, "cuTensorMapEncodeTiled.*INVALID_VALUE"),
    ({"dims": ["128", "0", "1", "1"]}, fmhaforge.SchemaError, "map.dims is 0"),
    ({"strides_bytes": ["k_stride_seq * 2", "256", "1099511627776"]}, fmhaforge.SchemaError, "map.strides_bytes is 1099511627776")])
def test_a_map_that_no_driver_takes_is_refused(tmp_path, manifest, change, error, words):
    with pytest.raises(error, match=words):
        with_wrong_map(tmp_path, manifest, LLM, "k", change)


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
