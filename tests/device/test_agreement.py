# SPDX-License-Identifier: Apache-2.0
"""The query says yes exactly when load and launch succeed, and then the result is right."""

import itertools

import pytest

from tests.device import launch
from tests.device.named import case
from tests.device.problem import SENTINEL, compose, expect, judge
from tests.device.subjects import Subject

PAIRS = (
    ("llm", "causal"), ("llm", "sliding_causal"), ("paged", "causal"), ("paged", "sliding_causal"), ("paged_ragged", "causal"),
    ("paged_ragged", "sliding_causal"), ("padding", "padding"), ("vision_block", "vision_block"), ("vit", "bidirectional"),
)
HEAD_DIMS = (8, 32, 64, 72, 80, 96, 100, 128, 256, 512, 1024)
HEADS = ((4, 2), (3, 3), (6, 4), (2, 4))
LENGTHS = (70, 70)


@pytest.mark.parametrize("operation, mask", PAIRS)
def test_query_agrees_with_launch(lab, bundle, device_sm, operation, mask):
    from fmhaforge import Query

    answers = set()
    for head_dim, heads in itertools.product(HEAD_DIMS, HEADS):
        known = dict(zip(("num_q_heads", "num_kv_heads"), heads))
        support = bundle.query(Query((operation,), head_dim, device_sm, mask=mask, known=known))
        subject = Subject("agreement", operation, head_dim, mask, "", device_sm, 64, 64, "")
        made = case(subject, f"{heads}", LENGTHS, LENGTHS, num_q_heads=heads[0], num_kv_heads=heads[1], scale=0.2)
        refusal = _refusal(lab, bundle, made)
        assert bool(support) == (refusal is None), (head_dim, heads, support.reason, refusal)
        answers.add(bool(support))
    assert answers == {True, False} or not any(one.operation == operation for one in bundle.metadata.rows)


def _refusal(lab, bundle, made):
    """What the runtime says when it does not launch; None after a launch with the right result."""
    import fmhaforge

    problem = compose(made, lab.backend)
    try:
        launch.launch(launch.runner_for(bundle, made, "cubin"), problem, lab.backend.stream())
    except (fmhaforge.UnsupportedError, fmhaforge.ArgumentError) as error:
        assert (lab.backend.bits(problem.o.flat) == SENTINEL).all(), "refused, and yet something was written"
        return str(error)
    expect(problem)
    outcome = judge(problem)
    assert outcome.faults == (), (made.id, outcome)
    return None
