# SPDX-License-Identifier: Apache-2.0
"""Cases from public bug reports, each for every kernel that it concerns."""

from dataclasses import replace

import pytest

from tests.device.cases import PAGE
from tests.device.choose import only
from tests.device.named import case, named_cases
from tests.device.problem import Strided, values_agree

CAUSAL = ("causal", "sliding_causal")
PREFIXED = ("llm", "paged", "paged_ragged")


def check(lab, made, fill=None, record=True):
    faults = lab.faults(made, fill, record)
    if faults:
        pytest.fail("\n".join(faults), pytrace=False)


def test_named_cases(lab, subject):
    faults = [fault for made in named_cases(subject) for fault in lab.faults(made)]
    if faults:
        pytest.fail("\n".join(faults), pytrace=False)


@only(operation=PREFIXED, mask=CAUSAL)
def test_first_72_of_200_queries_on_128_keys_are_zero(lab, subject):
    """Bottom-right alignment: the first 72 rows see nothing and are exactly 0, the 73rd sees one key."""
    problem = lab.prepare(case(subject, "Sq 200 Sk 128, counted", (200,), (128,)))
    for route in lab.routes_of(subject):
        problem.reset()
        lab.launch(problem, route)
        rows = problem.o.view.reshape(-1, 4, subject.head_dim)[:200]
        assert (rows[:72] == 0).all(), route
        assert (rows[72:] != 0).any(-1).all(), route


@only(operation=PREFIXED, mask=CAUSAL, seqlen_q_min=(1,))
@pytest.mark.parametrize("chunk", (1, 48, 128))
def test_chunked_prefill_equals_one_pass(lab, subject, chunk):
    """Every chunk of queries over the keys so far gives what one pass gives, also where the window cuts keys off."""
    length = 330
    window = {"causal": None, "sliding_causal": 100}[subject.mask]
    whole = lab.prepare(case(subject, f"chunks of {chunk}", (length,), (length,), window=window))
    for route in lab.routes_of(subject):
        whole.reset()
        lab.launch(whole, route)
        one_pass = whole.o.view + 0
        whole.reset()
        starts = range(0, length, chunk) if chunk > 1 else (0, 1, 64, 127, 128, 129, length - 1)
        for start in starts:
            lab.launch(_chunk(whole, start, min(start + chunk, length)), route)
        got, want = (lab.backend.double(part) for part in (whole.o.view, one_pass))
        done = ~lab.backend.xp.isnan(got)
        assert done.all(-1).all(-1).sum() == (length if chunk > 1 else len(starts)), route
        assert abs(lab.backend.xp.where(done, got - want, 0.0)).max() <= 2e-3, route


def _chunk(whole, start, stop):
    """The part of `whole` (one sequence) that a chunked prefill runs after `start` tokens: queries start..stop, keys 0..stop."""
    subject = whole.case.subject
    rows = (slice(start, stop),) if subject.packed else (slice(None), slice(start, stop))
    ints = whole.backend.integers
    made = replace(
        whole.case, label=f"{whole.case.label} {start}", q_lens=(stop - start,), kv_lens=(stop,), seqlen_q=stop - start,
    )
    part = replace(whole, case=made, cu_q=ints([0, stop - start]), cu_kv=ints([0, stop]))
    part.q, part.o = (Strided(old.flat, old.view[rows], old.strides, old.offset) for old in (whole.q, whole.o))
    return part


def near(logit, spread=0.0):
    """A fill that brings every logit near `logit` (scale 1): q is constant, k its negative, v stays random unless set."""
    def fill(name, values):
        size = abs(logit / values.shape[-1]) ** 0.5
        if name == "q":
            return values * spread + size
        if name == "k":
            return values * spread - size
        return values
    return fill


@only(operation=("llm", "vision_block", "padding"))
def test_logits_near_minus_20(lab, subject):
    """A running maximum that starts at 0, or a first block that is wholly masked, would lose such rows."""
    n = subject.tile_n
    window = {"sliding_causal": n // 2, "vision_block": n // 2}.get(subject.mask)
    made = case(subject, "logits near -20", (2 * n,), (6 * n,), window=window, scale=1.0, intervals="none")
    check(lab, made, near(-20.0, 1 / 64))
    check(lab, case(subject, "logits near -20, rows without keys", (3 * n,), (n,), window=window, scale=1.0), near(-20.0, 1 / 64))


@only(operation=("llm", "vision_block", "padding", "vit"))
def test_logits_near_minus_60000(lab, subject):
    """Equal logits far outside float16: every weight is 1/n, so with V = 1 the output is 1."""
    fill = near(-6e4)
    lengths = (130,) if subject.operation == "vit" else (200,)
    made = case(subject, "logits near -6e4", (130,), lengths, scale=1.0, intervals="none")
    problem = lab.prepare(made, lambda name, values: values * 0 + 1 if name == "v" else fill(name, values))
    for route, outcome in lab.verdicts(problem, record=False).items():
        assert outcome.violation <= 1.0, (route, outcome)
        assert not [fault for fault in outcome.faults if "relative error" not in fault], (route, outcome)


@pytest.mark.parametrize("scale", (65536.0, 1e30))
def test_huge_scales_are_refused_or_finite(lab, subject, scale):
    import fmhaforge

    lengths = (40, 40)
    problem = lab.prepare(case(subject, f"scale {scale:g}", lengths, lengths))
    problem.case = replace(problem.case, scale=scale)
    for route in lab.routes_of(subject):
        problem.reset()
        try:
            lab.launch(problem, route)
        except fmhaforge.ArgumentError as error:
            assert "attention_scale" in str(error)
            continue
        rows = problem.written
        assert lab.backend.xp.isfinite(problem.o.view[rows]).all(), route


@only(operation=("vit",))
def test_columns_past_head_dim_are_never_used(lab, subject):
    """A kernel that pads head_dim must not let the neighbour's columns in: every odd head is NaN, every even one is right."""
    lengths = (70, 131)
    made = case(subject, "odd heads NaN", lengths, lengths, num_q_heads=6, num_kv_heads=6, row_gap=8, poison="nan")

    def fill(name, values):
        values[..., 1::2, :] = float("nan")
        return values

    problem = lab.prepare(made, fill)
    for route in lab.routes_of(subject):
        problem.reset()
        lab.launch(problem, route)
        assert values_agree(problem, heads=slice(0, None, 2)), route


@only(operation=("paged", "paged_ragged"))
def test_stale_page_entries_after_a_shorter_sequence(lab, subject):
    """Entries past ceil(kv_len / 128) point at poisoned pages of another sequence and at nothing at all."""
    made = case(subject, "stale entries", (40, 40, 40), (PAGE, PAGE + 1, 1), seqlen_kv=6 * PAGE, share_pages=0.0)
    check(lab, made)


