# SPDX-License-Identifier: Apache-2.0
"""Offsets past 2^31 elements: strides and page ids that wrap around in 32 bits would read or write somewhere else."""

import pytest

from tests.device.cases import PAGE
from tests.device.choose import only
from tests.device.named import case
from tests.device.problem import Strided, expect, values_agree

FAR = 1 << 31
GIB = 1 << 30


@pytest.fixture(scope="module")
def arena(request):
    """A flat float16 array of 2^31 + 2^27 elements (4.25 GiB), full of NaN; who writes into it puts NaN back."""
    import torch

    if torch.cuda.mem_get_info()[0] < 8 * GIB:
        pytest.skip("needs 8 GiB of free device memory")
    yield torch.full((FAR + (1 << 27),), float("nan"), dtype=torch.float16, device="cuda")
    torch.cuda.empty_cache()


def far_apart(lab, subject, arena, names, lengths, stride, axis):
    """Runs a case with each of the tensors in turn spread over the arena: `stride` elements between neighbours on `axis`."""
    for name in names:
        problem = lab.prepare(case(subject, f"far {name}", lengths, lengths))
        near = getattr(problem, name)
        strides = [*near.strides]
        strides[axis] = stride
        far = Strided(arena, arena.as_strided(near.view.shape, strides, 0), tuple(strides), 0)
        far.view.copy_(near.view)
        setattr(problem, name, far)
        for route in lab.routes_of(subject):
            problem.o.view.fill_(float("nan"))
            lab.launch(problem, route)
            assert values_agree(problem), (name, route)
        far.view.fill_(float("nan"))


@only(operation=("llm", "padding", "vision_block"))
def test_batches_far_apart(lab, subject, arena):
    """Three sequences of which the last begins at element 2^31."""
    far_apart(lab, subject, arena, "qkvo", (33, 33, 33), FAR // 2, 0)


@only(operation=("llm", "padding", "vision_block"))
def test_rows_far_apart(lab, subject, arena):
    """Rows 2^26 elements apart: the 33rd begins at element 2^31."""
    far_apart(lab, subject, arena, "qkvo", (33,), FAR // 32, 1)


@only(operation=("vit", "paged_ragged"))
def test_packed_rows_far_apart(lab, subject, arena):
    """As above, packed; K and V of paged operations lie in pages."""
    far_apart(lab, subject, arena, "qo" if subject.paged else "qkvo", (20, 13), FAR // 32, 0)


@only(operation=("paged", "paged_ragged"))
def test_pool_past_2_to_31_elements(lab, subject, arena):
    """A pool of more than 2^31 elements whose used pages lie at both ends of it."""
    lengths = (PAGE + 5, 2 * PAGE)
    problem = lab.prepare(case(subject, "large pool", lengths, lengths, share_pages=0.0))
    old = problem.pool
    used, count = len(old.view), len(arena) // old.strides[0] // 2 * 2
    moved = [*range(used // 2), *range(count - used + used // 2, count)]
    pool = arena.as_strided((count, *old.view.shape[1:]), old.strides, 0)
    for page, new in enumerate(moved):
        pool[new].copy_(old.view[page])
    problem.page_list = lab.backend.integers(moved)[lab.backend.long(problem.page_list).clamp(0, used - 1)]
    problem.pool = Strided(arena, pool, old.strides, 0)
    expect(problem)
    for route in lab.routes_of(subject):
        problem.reset()
        lab.launch(problem, route)
        assert values_agree(problem), route
    for page in moved:
        pool[page].fill_(float("nan"))
