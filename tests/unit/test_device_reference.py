# SPDX-License-Identifier: Apache-2.0
"""The float64 reference and the checker that the device tests rely on: against plain loops, and against planted faults."""

from dataclasses import replace

import naive_kernel
import numpy as np
import pytest

from tests.device import reference
from tests.device.backends import NumpyBackend
from tests.device.cases import Case, cumulative
from tests.device.problem import SENTINEL, compose, expect, judge
from tests.device.subjects import Subject

BACKEND = NumpyBackend()


def subject(operation, mask, head_dim=64):
    return Subject(
        variant=f"{operation}_{mask}", operation=operation, head_dim=head_dim, mask=mask, family="ampere", sm=90,
        tile_m=32, tile_n=16, ptx_sha256="0" * 64,
    )


def small_case(operation, mask, **changes):
    """A ragged case of the operation: zero lengths, kv < q, gaps, rows outside, everything unused poisoned."""
    kinds = {
        "llm": dict(q_lens=(9, 9, 9), kv_lens=(14, 5, 0), seqlen_q=9, seqlen_kv=17),
        "vision_block": dict(q_lens=(9, 9), kv_lens=(14, 5), seqlen_q=9, seqlen_kv=17),
        "padding": dict(q_lens=(9, 0, 4), kv_lens=(3, 6, 12), seqlen_q=11, seqlen_kv=13),
        "paged": dict(q_lens=(9, 4, 0), kv_lens=(131, 2, 5), seqlen_q=11, seqlen_kv=384),
        "paged_ragged": dict(q_lens=(0, 9, 4), kv_lens=(3, 131, 2), seqlen_q=11, seqlen_kv=384, extra_rows=3),
        "vit": dict(q_lens=(5, 0, 12), kv_lens=(5, 0, 12), seqlen_q=20, seqlen_kv=20, extra_rows=2),
    }
    window = 3 if mask in ("sliding_causal", "vision_block") else None
    values = dict(
        subject=subject(operation, mask), label="small", num_q_heads=4, num_kv_heads=2, window=window, scale=0.3,
        row_gap=8, batch_gap=16, poison="mixed", intervals="arbitrary",
    )
    return Case(**{**values, **kinds[operation], **changes})


OPERATIONS = (
    ("llm", "causal"), ("llm", "sliding_causal"), ("paged", "causal"), ("paged", "sliding_causal"),
    ("paged_ragged", "causal"), ("paged_ragged", "sliding_causal"), ("padding", "padding"),
    ("vision_block", "vision_block"), ("vit", "bidirectional"),
)


def outcome(case, kernel=naive_kernel.run):
    problem = compose(case, BACKEND, guard=64)
    expect(problem)
    kernel(problem)
    return judge(problem)


@pytest.mark.parametrize("operation, mask", OPERATIONS)
def test_reference_equals_plain_loops(operation, mask):
    """Only the rounding of O to float16 separates the loops from the reference."""
    result = outcome(small_case(operation, mask))
    assert result.faults == ()
    assert 1e-5 < result.relative_error < 3e-4


@pytest.mark.parametrize("window", (0, 1, 8, 30, reference.UNLIMITED))
@pytest.mark.parametrize("q_len, kv_len", ((6, 6), (6, 9), (6, 2), (1, 5), (3, 0)))
def test_masks_equal_plain_comparisons(window, q_len, kv_len):
    rows, keys = np.arange(q_len)[:, None], np.arange(kv_len)[None, :]
    begin, end = np.array([[-1, 0, 2, 3, -5, 1]]).T[:q_len], np.array([[-1, 9, 3, 1, 2, 1]]).T[:q_len]
    for operation, mask in OPERATIONS:
        case = small_case(operation, mask, window=window)
        got = reference.visible(mask, rows, keys, q_len, kv_len, window, begin, end)
        for query in range(q_len):
            want = naive_kernel.keys_of(case, query, q_len, kv_len, begin[query, 0], end[query, 0])
            assert np.flatnonzero(got[query]).tolist() == want, (mask, query)


def test_window_counts_keys_left_of_the_diagonal():
    """window_size_left = 2 shows three keys; bottom-right alignment moves the diagonal by kv_len - q_len."""
    rows, keys = np.arange(4)[:, None], np.arange(6)[None, :]
    seen = reference.visible("sliding_causal", rows, keys, 4, 6, 2)
    assert seen.astype(int).tolist() == [[1, 1, 1, 0, 0, 0], [0, 1, 1, 1, 0, 0], [0, 0, 1, 1, 1, 0], [0, 0, 0, 1, 1, 1]]


def test_softmax_by_hand():
    """Two keys with logits 0 and ln 3 weigh 1/4 and 3/4; a query without keys gives 0."""
    q = np.array([[[np.log(3.0)]], [[1.0]]])
    k, v = np.array([[[0.0]], [[1.0]]]), np.array([[[8.0]], [[4.0]]])
    out = reference.attend(np, q, k, v, np.array([[True, True], [False, False]]), 1.0)
    assert out[:, 0, 0].tolist() == pytest.approx([5.0, 0.0], abs=1e-12)


def test_reference_survives_huge_logits():
    q, k = np.full((1, 1, 1), -6e4), np.ones((3, 1, 1))
    out = reference.attend(np, q, k, np.ones((3, 1, 1)), np.ones((1, 3), bool), 1.0)
    assert out.tolist() == [[[1.0]]]


def test_unknown_mask_is_an_error():
    with pytest.raises(ValueError, match="unknown mask 'diagonal'"):
        reference.visible("diagonal", np.arange(1)[:, None], np.arange(1)[None, :], 1, 1, window=0)


# Planted faults: a checker that lets one of these pass proves nothing.

def one_key_too_many(case, query, q_len, kv_len, *interval):
    """Sees the key right of the diagonal too."""
    seen = naive_kernel.keys_of(case, query, q_len, kv_len, *interval)
    return seen + [seen[-1] + 1] if seen and seen[-1] + 1 < kv_len else seen


def past_the_end(case, query, q_len, kv_len, *interval):
    """Reads the first poisoned key."""
    seen = naive_kernel.keys_of(case, query, q_len, kv_len, *interval)
    return seen + [kv_len] if seen else seen


def window_off_by_one(case, query, q_len, kv_len, *interval):
    return naive_kernel.keys_of(replace(case, window=case.window - 1), query, q_len, kv_len, *interval)


def misaligned(case, query, q_len, kv_len, *interval):
    """Top-left instead of bottom-right alignment."""
    return [key for key in range(kv_len) if key <= query < q_len]


@pytest.mark.parametrize("operation, mask, fault", (
    ("llm", "causal", one_key_too_many), ("llm", "causal", past_the_end), ("llm", "sliding_causal", window_off_by_one),
    ("llm", "causal", misaligned), ("paged", "causal", past_the_end), ("paged_ragged", "sliding_causal", window_off_by_one),
    ("padding", "padding", past_the_end), ("vision_block", "vision_block", window_off_by_one),
))
def test_a_wrong_mask_is_caught(operation, mask, fault):
    assert outcome(small_case(operation, mask), lambda problem: naive_kernel.run(problem, fault)).faults


def with_damage(damage):
    def kernel(problem):
        naive_kernel.run(problem)
        damage(problem)
    return kernel


def write_guard(problem):
    problem.o.flat[63] = 1.0


def write_row_gap(problem):
    problem.o.flat[64 + 4 * 64] = 0.0


def leave_row_unwritten(problem):
    problem.backend.bits(problem.o.view[1])[...] = SENTINEL


def nonzero_blind_row(problem):
    problem.o.view[2, 8, 0, 0] = 1e-4


def write_input(problem):
    problem.k.view[0, 0, 0, 0] += 1


def write_packed_tail(problem):
    problem.o.view[-1] = 0.0


def one_element_off(problem):
    problem.o.view[0, 0, 0, 0] += 0.01


def scaled(problem):
    problem.o.view[0] *= 1.001


@pytest.mark.parametrize("operation, mask, damage, message", (
    ("llm", "causal", write_guard, "outside the rows"),
    ("llm", "causal", write_row_gap, "outside the rows"),
    ("llm", "causal", leave_row_unwritten, "left unwritten"),
    ("llm", "causal", nonzero_blind_row, "not exactly 0"),
    ("padding", "padding", nonzero_blind_row, "not exactly 0"),
    ("llm", "causal", write_input, "input was overwritten"),
    ("vit", "bidirectional", write_packed_tail, "outside the rows"),
    ("paged_ragged", "causal", write_packed_tail, "outside the rows"),
    ("llm", "causal", one_element_off, "off by"),
    ("llm", "causal", scaled, "relative error"),
))
def test_damage_is_caught(operation, mask, damage, message):
    faults = outcome(small_case(operation, mask), with_damage(damage)).faults
    assert any(message in fault for fault in faults), faults


def test_a_wrong_page_is_caught():
    case = small_case("paged", "causal")

    def kernel(problem):
        problem.page_list[:, 1] = problem.page_list[:, 0]  # V derived from K's pages
        naive_kernel.run(problem)

    assert outcome(case, kernel).faults


def test_compose_is_deterministic():
    case = small_case("paged", "sliding_causal")
    first, second = (compose(case, BACKEND) for _ in range(2))
    assert first.pool.flat.tobytes() == second.pool.flat.tobytes()
    assert first.q.flat.tobytes() == second.q.flat.tobytes()
    assert first.page_list.tolist() == second.page_list.tolist()


def test_gaps_and_guards_are_poison_and_strides_stay_aligned():
    problem = compose(small_case("llm", "causal", poison="nan"), BACKEND, guard=64)
    for part in problem.inputs:
        inside = np.zeros(len(part.flat), bool)
        BACKEND.strided(inside, part.view.shape, part.strides, part.offset)[...] = True
        assert np.isnan(part.flat[~inside]).all() and (~inside).sum() > 2 * 64
        assert all(stride % 8 == 0 for stride in part.strides[:-1]) and part.offset % 8 == 0
    assert np.isnan(problem.k.view[1, 5:]).all() and np.isfinite(problem.k.view[1, :5]).all()


def test_cumulative():
    assert cumulative((0, 17, 0)) == [0, 0, 17, 17]
