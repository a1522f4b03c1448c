# SPDX-License-Identifier: Apache-2.0
"""More query tiles than blocks run at once: a block works through several, of which some have no keys, and in several sections of heads."""

import pytest

from tests.device.choose import only
from tests.device.named import case
from tests.device.problem import Strided, expect, values_agree

#: Sequences; the keys that half of them have beyond their queries, and the few that the others have.
PAIRS, MORE, FEW = 6, 130, 5
#: Elements of K that a key head may have, so that eight heads are all that L2 is taken to hold (generator/kernels/hopper/work.py).
SECTION = 1 << 20


def test_several_tiles_a_block(lab, subject):
    """12 sequences of 32 heads and three tiles of queries each: 1,152 tiles, about nine for every SM of the largest parts."""
    m = subject.tile_m
    rows = max(2 * m + 37, subject.seqlen_q_min)
    q_lens = (rows, rows if not subject.own_q_lengths else m + 1) * PAIRS
    kv_lens = q_lens if subject.operation == "vit" else (rows + MORE, FEW) * PAIRS
    changes = {"window": 150} if subject.sliding else {}
    if subject.mask in ("causal", "vision_block"):
        changes["seqlen_kv"] = SECTION // subject.head_dim
    made = case(subject, "several tiles a block", q_lens, kv_lens, num_q_heads=32, num_kv_heads=16, poison="nan", **changes)
    faults = lab.faults(made)
    if faults:
        pytest.fail("\n".join(faults), pytrace=False)


@only(operation=("llm", "padding", "vision_block"))
def test_all_sequences_share_keys(lab, subject):
    """One K and one V for every sequence: their batch stride is 0."""
    problem = lab.prepare(case(subject, "shared keys", (70,) * 3, (131,) * 3, num_q_heads=4))
    for name in ("k", "v"):
        near = getattr(problem, name)
        strides = (0, *near.strides[1:])
        shared = near.view[:1].expand(*near.view.shape)
        assert shared.stride()[:2] == strides[:2]
        setattr(problem, name, Strided(near.flat, shared, strides, near.offset))
    expect(problem)
    for route in lab.routes_of(subject):
        problem.reset()
        lab.launch(problem, route)
        assert values_agree(problem), route
