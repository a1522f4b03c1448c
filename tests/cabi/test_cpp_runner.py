# SPDX-License-Identifier: Apache-2.0
"""CuteDslFMHAV2Runner in C++: its signatures, its truth table, the variant and the launch parameters of each function, its failures."""

import dataclasses
import itertools
import math
import struct

import pytest

import cpp_runner
from arguments import expected_launch
from c_build import HERE
from cpp_runner import INT_MAX

SMS = (80, 86, 87, 89, 90, 100, 101, 110, 120, 121)
HALF, FLOAT = 1, 0
CAUSAL, SLIDING, PADDING, VISION = range(4)
Q, K, V, O, CU, CU2, EXTRA = (0x1000 * (i + 1) for i in range(7))


@pytest.fixture(scope="session")
def runner_path(built, cxx, tmp_path_factory):
    """The shim with the runner and the static library in one shared library."""
    folder = tmp_path_factory.mktemp("runner")
    cpp = built.sources.root / "cpp"
    cxx(("-std=c++17", "-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Wconversion", "-Werror", "-Wno-missing-declarations", "-fPIC", "-shared",
         f"-I{built.sources.include}", f"-I{cpp}", str(HERE / "runner_shim.cc"), str(cpp / "cuteDslFMHAV2Runner.cpp"),
         str(built.libraries.static), "-Wl,--no-undefined", "-ldl", "-lpthread", "-o", "runner.so"), folder)
    return folder / "runner.so"


def test_runner_compiles_with_clang(built, zig, tmp_path):
    cpp = built.sources.root / "cpp"
    zig.run(("c++", "-target", "x86_64-linux-gnu.2.17", "-std=c++17", "-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Wconversion", "-Werror",
             "-c", f"-I{built.sources.include}", "cuteDslFMHAV2Runner.cpp", "-o", str(tmp_path / "runner.o")), cpp)
    assert (tmp_path / "runner.o").stat().st_size > 1000


def expected_answer(which, q, kv, d, sm, dtype, mask):
    """The documented truth table, written out by hand."""
    if dtype != HALF or sm not in SMS:
        return False
    if which == 3:
        return d in (64, 72, 80, 96, 128)
    if q <= 0 or kv <= 0 or q % kv:
        return False
    if which:
        return mask in (CAUSAL, SLIDING) and d in (64, 128, 256, 512)
    return d in {CAUSAL: (64, 128, 256, 512), SLIDING: (64, 128, 256, 512), VISION: (256, 512), PADDING: (256,)}.get(mask, ())


def test_truth_table(stub_process, runner_path):
    questions = list(itertools.product(
        range(4), (0, 1, 6, 32), (-1, 0, 1, 4), (32, 64, 72, 80, 96, 128, 256, 512), (0, 75, 87, 90, 103, 110, 121), (HALF, FLOAT), range(-1, 5)))
    answers, driver_calls = stub_process(cpp_runner.truth_table, runner_path, questions)
    assert driver_calls == 0
    wrong = [question for question, answer in zip(questions, answers) if answer != expected_answer(*question)]
    assert wrong == []
    assert 1000 < sum(answers) < len(answers) / 2


def f32(value):
    return struct.unpack("f", struct.pack("f", value))[0]


def dense(batch, seqlen_q, seqlen_kv, hq, hkv, d, scale):
    return {"q": Q, "k": K, "v": V, "o": O, "cu_kv_seqlens": CU, "batch": batch, "seqlen_q": seqlen_q, "seqlen_kv": seqlen_kv,
            "num_q_heads": hq, "num_kv_heads": hkv, "scale_log2": f32(f32(scale) * math.log2(math.e)),
            "q_stride_batch": seqlen_q * hq * d, "q_stride_seq": hq * d, "o_stride_batch": seqlen_q * hq * d, "o_stride_seq": hq * d,
            "k_stride_batch": seqlen_kv * hkv * d, "k_stride_seq": hkv * d, "v_stride_batch": seqlen_kv * hkv * d, "v_stride_seq": hkv * d}


def paged(hq, hkv, d, max_pages, pages, scale):
    return {"q": Q, "kv_pool": K, "page_list": V, "o": O, "cu_q_seqlens": CU, "cu_kv_seqlens": CU2, "max_pages": max_pages,
            "num_flat_pages": pages, "num_q_heads": hq, "num_kv_heads": hkv, "scale_log2": f32(f32(scale) * math.log2(math.e)),
            "q_stride_seq": hq * d, "o_stride_seq": hq * d, "pool_stride_page": 128 * hkv * d, "pool_stride_token": hkv * d,
            "pool_stride_head": d, "page_list_stride_batch": 2 * max_pages, "page_list_stride_plane": max_pages}


LLM = dense(3, 600, 700, 8, 2, 64, 0.37)
SHORT = dense(3, 512, 700, 8, 2, 64, 0.37)
PAGED = {**paged(8, 2, 128, 4, 40, 0.125), "batch": 3, "seqlen_q": 600, "q_stride_batch": 600 * 1024, "o_stride_batch": 600 * 1024}
RAGGED = {**paged(8, 2, 128, 4, 40, 0.125), "batch": 3, "total_seqlen_q": 900, "max_seqlen_q": 500}
VISION_VALUES = {**dense(2, 64, 64, 4, 2, 256, 0.5), "block_begin": CU2, "block_end": EXTRA, "block_stride_batch": 64}
VIT = {"q": Q, "k": K, "v": V, "o": O, "cu_seqlens": CU, "batch": 3, "total_seqlen": 300, "max_seqlen": 128, "num_q_heads": 8,
       "num_kv_heads": 8, "q_stride_seq": 576, "k_stride_seq": 576, "v_stride_seq": 576, "o_stride_seq": 576,
       "scale_log2": f32(f32(0.37) * math.log2(math.e))}
POINTERS, IDS = (Q, K, V, O, CU), (Q, K, V, O, CU, CU2, EXTRA)
NONE = 1 << 30

CALLS = [
    # sizes (Hq, Hkv, D, B, Sq, Sk), operation, pointers, integers, scale, window, variant, argument values
    ((8, 2, 64, 3, 600, 700), "llm", POINTERS, (), 0.37, INT_MAX, "fmha_v2_d64", {**LLM, "window_size_left": NONE}),
    ((8, 2, 64, 3, 512, 700), "llm", POINTERS, (), 0.37, INT_MAX, "fmha_v2_d64_small", {**SHORT, "window_size_left": NONE}),
    ((8, 2, 64, 3, 512, 700), "llm", POINTERS, (), 0.37, 100, "fmha_v2_d64_sw", {**SHORT, "window_size_left": 100}),
    ((8, 2, 64, 3, 600, 700), "llm", POINTERS, (), 0.37, 0, "fmha_v2_d64_sw", {**LLM, "window_size_left": 0}),
    ((8, 2, 64, 3, 600, 700), "llm", POINTERS, (), 0.37, -5, "fmha_v2_d64_sw", {**LLM, "window_size_left": -1}),
    ((8, 2, 64, 3, 600, 700), "llm", POINTERS, (), 0.37, INT_MAX - 1, "fmha_v2_d64_sw", {**LLM, "window_size_left": NONE}),
    ((8, 2, 512, 3, 600, 700), "llm", POINTERS, (), 0.37, INT_MAX, "fmha_v2_d512",
     {**dense(3, 600, 700, 8, 2, 512, 0.37), "window_size_left": NONE}),
    ((8, 2, 128, 3, 600, 512), "paged", IDS, (40, 4, 128), 0.125, INT_MAX, "fmha_v2_d128_paged", {**PAGED, "window_size_left": NONE}),
    ((8, 2, 128, 3, 600, 512), "paged", IDS, (40, 4, 128), 0.125, 63, "fmha_v2_d128_sw_paged", {**PAGED, "window_size_left": 63}),
    ((8, 2, 128, 3, 0, 512), "paged_ragged", IDS, (40, 4, 128, 900, 500), 0.125, 63, "fmha_v2_d128_sw_paged_ragged",
     {**RAGGED, "window_size_left": 63}),
    ((16, 8, 256, 2, 4, 24), "padding", IDS, (), 1.0, INT_MAX, "fmha_v2_d256_padding",
     {**dense(2, 4, 24, 16, 8, 256, 1.0), "cu_q_seqlens": CU, "cu_kv_seqlens": CU2}),
    ((4, 2, 256, 2, 64, 64), "vision_block", IDS, (), 0.5, 16, "fmha_v2_d256_bidirectional", {**VISION_VALUES, "window_size_left": 16}),
    ((4, 2, 256, 2, 64, 64), "vision_block", IDS, (), 0.5, -1, "fmha_v2_d256_bidirectional", {**VISION_VALUES, "window_size_left": NONE}),
    ((8, 8, 72, 0, 0, 0), "vit", POINTERS, (300, 128, 3), 0.37, INT_MAX, "fmha_v2_vit_d72", VIT),
]


def test_a_thread_without_context_runs_on_the_streams_device(stub_process, runner_path):
    calls = [((8, 2, 128, 1, 600, 700), "llm", POINTERS, ()), ((16, 8, 256, 2, 4, 24), "padding", IDS, ())]
    results, launches = stub_process(cpp_runner.without_context, runner_path, (75, 90), calls)
    assert results == [(True, "")] * 4
    assert launches == [(1, "fmha_v2_d128_0@90"), (1, "fmha_v2_d256_padding_0@90")]


@pytest.mark.parametrize("preflight", [False, True])
@pytest.mark.parametrize("sizes, operation, pointers, integers, scale, window, variant, values", CALLS)
def test_launch(stub_process, built, runner_path, sizes, operation, pointers, integers, scale, window, variant, values, preflight):
    result, launches, loads = stub_process(cpp_runner.run_once, runner_path, 87, sizes, operation, pointers, integers, scale, window, True,
                                           preflight)
    assert result == (True, "") and loads == int(preflight)
    row = next(row for row in built.metadata.rows if (row.variant, row.sm) == (variant, 87))
    assert [dataclasses.asdict(launch) for launch in launches] == [expected_launch(row, values, 0, 100)]


def test_small_variants_follow_their_rules(stub_process, runner_path):
    def symbol(operation, sizes, integers, use_small):
        _, (launch,), _ = stub_process(cpp_runner.run_once, runner_path, 90, sizes, operation, IDS, integers, 1.0, INT_MAX, use_small)
        return launch.symbol
    assert symbol("llm", (8, 2, 64, 1, 512, 512), (), False) == "fmha_v2_d64_0@90"
    assert symbol("paged", (8, 2, 64, 1, 512, 512), (8, 4, 128), False) == "fmha_v2_d64_small_paged_0@90"
    assert symbol("paged", (8, 2, 64, 1, 513, 512), (8, 4, 128), True) == "fmha_v2_d64_paged_0@90"


@pytest.mark.parametrize("sizes, operation, pointers, integers, scale, window, outcome, words", [
    ((8, 2, 96, 1, 8, 8), "llm", POINTERS, (), 1.0, INT_MAX, False, "head_dim 96 is not served"),
    ((8, 2, 64, 1, 8, 8), "llm", POINTERS, (), 0.0, INT_MAX, "thrown", "attentionScale must be finite and > 0"),
    ((8, 2, 64, 1, 8, 8), "llm", POINTERS, (), float("nan"), INT_MAX, "thrown", "attentionScale"),
    ((8, 3, 64, 1, 8, 8), "llm", POINTERS, (), 1.0, INT_MAX, False, "num_q_heads must be a multiple of num_kv_heads"),
    ((8, 2, 64, 1, 8, 8), "llm", (Q, K, V, 0, CU), (), 1.0, INT_MAX, False, "o: is null"),
    ((8, 2, 128, 1, 8, 512), "paged", (Q, K, V, 0, CU, CU2), (8, 4, 128), 1.0, INT_MAX, "thrown", "a device pointer is null"),
    ((8, 2, 128, 0, 8, 512), "paged", IDS, (8, 4, 128), 1.0, INT_MAX, "thrown", "batchSize, seqLenQ and kvSeqLen must be > 0"),
    ((8, 3, 128, 1, 8, 512), "paged", IDS, (8, 4, 128), 1.0, INT_MAX, "thrown", "numQHeads a multiple of numKVHeads"),
    ((8, 2, 128, 1, 8, 512), "paged", IDS, (7, 4, 128), 1.0, INT_MAX, "thrown", "numFlatPages must be > 0 and even"),
    ((8, 2, 128, 1, 8, 512), "paged", IDS, (8, 4, 64), 1.0, INT_MAX, "thrown", "tokensPerPage must be 128"),
    ((8, 2, 128, 1, 8, 500), "paged", IDS, (8, 4, 128), 1.0, INT_MAX, "thrown", "kvSeqLen must be maxPagesPerSeq * tokensPerPage"),
    ((8, 2, 128, 1, 8, 512), "paged", IDS, (8, 4, 128), 1.0, -1, "thrown", "slidingWindowSize must be >= 0"),
    ((8, 2, 96, 1, 8, 512), "paged", IDS, (8, 4, 128), 1.0, INT_MAX, False, "head_dim 96 is not served"),
    ((8, 2, 64, 1, 8, 8), "padding", (0, 0, 0, 0, 0), (), 1.0, INT_MAX, False, "head_dim 64 is not served"),
    ((8, 2, 256, 1, 8, 8), "padding", (Q, 0, V, O, CU, CU2), (), 1.0, INT_MAX, "thrown", "a device pointer is null"),
    ((8, 2, 256, 1, 8, 8), "vision_block", (Q, K, V, O, CU, 0, EXTRA), (), 1.0, 16, False, "block_begin: is null"),
    ((1 << 30, 1 << 30, 512, 1, 8, 1 << 30), "llm", POINTERS, (), 1.0, INT_MAX, False, "k_stride_batch: 9223372036854775807 is not"),
    ((1 << 30, 1 << 30, 256, 1, 8, 1 << 30), "padding", IDS, (), 1.0, INT_MAX, "thrown", "k_stride_batch: 9223372036854775807 is not"),
    ((8, 8, 65, 0, 0, 0), "vit", POINTERS, (300, 128, 3), 1.0, INT_MAX, False, "head_dim 65 is not served"),
    ((8, 8, 64, 0, 0, 0), "vit", POINTERS, (300, 128, 3), -1.0, INT_MAX, "thrown", "attentionScale"),
])
def test_failures(stub_process, runner_path, sizes, operation, pointers, integers, scale, window, outcome, words):
    (result, text), launches, _ = stub_process(cpp_runner.run_once, runner_path, 87, sizes, operation, pointers, integers, scale, window)
    assert (result, launches) == (outcome, [])
    assert words in text
