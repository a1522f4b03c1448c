# SPDX-License-Identifier: Apache-2.0
"""How a hopper kernel deals its query tiles out to the blocks, computed with plain integers."""

import random
from types import SimpleNamespace

import pytest
from generator.plans.hopper_geometry import Geometry

work = pytest.importorskip("generator.kernels.hopper.work", reason="needs the kernel toolchain (nvidia-cutlass-dsl)")

SMS = 132


@pytest.fixture(autouse=True)
def plain_integers(monkeypatch):
    """The kernel's arithmetic on Python's integers."""
    monkeypatch.setattr(work, "select", lambda condition, then, other: then if condition else other)
    monkeypatch.setattr(work, "Int32", int)
    monkeypatch.setattr(work, "cutlass", SimpleNamespace(min=min, max=max))


def problems(mask, head_dim, batch, seqlen, heads, kv_heads, m=128, sms=SMS):
    """The problem as each block sees it."""
    geometry = Geometry(head_dim, m, 128, 2, 2, 40, 232)
    a = SimpleNamespace(seqlen_q=seqlen, seqlen_kv=seqlen, num_q_heads=heads, num_kv_heads=kv_heads, batch=batch)
    blocks = min(-(-seqlen // m) * heads * batch, sms)
    return [work.Problem("llm", mask, geometry, a, block, blocks) for block in range(blocks)]


def places_of(problem):
    """(row tile, head, batch) of the tiles of a block, in its order."""
    at, found = problem.start(), []
    for _ in range(problem.turns()):
        found.append(problem.place(*at))
        at = problem.following(*at)
    return found


@pytest.mark.parametrize("mask", ("causal", "sliding_causal", "vision_block"))
@pytest.mark.parametrize("seed", range(40))
def test_every_tile_is_computed_once(mask, seed):
    rng = random.Random(seed)
    kv_heads, group, batch = rng.choice((1, 2, 4, 7, 8)), rng.choice((1, 2, 4)), rng.choice((1, 2, 3, 5, 16))
    blocks = problems(mask, rng.choice((64, 256)), batch, rng.randrange(1, 9000), kv_heads * group, kv_heads, sms=rng.choice((1, 5, 132)))
    found = [place for problem in blocks for place in places_of(problem)]
    assert all(places_of(problem) for problem in blocks)
    first = blocks[0]
    assert sorted(found) == [(row, head, entry) for row in range(first.row_tiles) for head in range(kv_heads * group) for entry in range(batch)]


@pytest.mark.parametrize("head_dim, batch, seqlen, heads, kv_heads", (
    (128, 1, 2048, 32, 8), (128, 1, 8192, 32, 8), (128, 8, 2048, 32, 8), (256, 1, 8192, 16, 8), (256, 4, 2048, 16, 8),
    # More K and V than L2 holds: several sections, each dealt out evenly.
    (64, 2, 4096, 16, 16), (128, 2, 4096, 16, 16), (256, 2, 4096, 16, 16), (256, 4, 8192, 16, 16), (128, 16, 4096, 32, 32),
))
def test_causal_work_is_even(head_dim, batch, seqlen, heads, kv_heads):
    blocks = problems("causal", head_dim, batch, seqlen, heads, kv_heads)
    loads = [sum(row + 1 for row, _, _ in places_of(problem)) for problem in blocks]
    assert max(loads) <= 1.04 * sum(loads) / len(loads)


def test_heads_that_share_keys_stay_in_one_section():
    blocks = problems("causal", 256, 4, 8192, 24, 8)
    section = blocks[0].section
    assert section % blocks[0].group == 0 and section < 96
    assert [entry * 24 + head for problem in blocks for row, head, entry in places_of(problem)[:1]] == [number % section for number in range(SMS)]
