# SPDX-License-Identifier: Apache-2.0
"""The promise: a query says yes exactly when load and launch succeed. Checked for every row and many random requests."""

import random

import fmhaforge
import pytest
from fake_bundle import make_bundle
from fake_cuda import SHARED_LIMIT, FakeCuda
from fmhaforge import INT_MAX, FmhaForgeError, MaskType
from runtime_fixtures import bundle, bundle_path, over  # noqa: F401

DEVICES = tuple(SHARED_LIMIT)
DIMS = (64, 72, 80, 96, 128, 256, 512, 48, 192)
HEADS = (1, 2, 3, 4, 7, 8, 16, 32, 40, 0, -1, 65535, 65536)
WINDOWS = {"causal": INT_MAX, "sliding_causal": 100}


@pytest.fixture(scope="module")
def partial(tmp_path_factory, manifest):
    """A bundle with gaps: few SMs, no small d64, and shared memory that only some devices have."""
    def change(document):
        for row in document["rows"]:
            if row["head_dim"] == 256:
                row["smem_bytes"] = row["plan"]["smem_bytes"] = 101377
            if row["head_dim"] == 80:
                row["static_smem_bytes"] = 1 << 20
    names = ["fmha_v2_d64", "fmha_v2_d128*", "fmha_v2_d256*", "fmha_v2_vit_*", "fmha_v2_d64_small_paged"]
    path = make_bundle(tmp_path_factory.mktemp("partial") / "b", manifest, sms=[80, 89, 110, 120], variants=names, change=change)
    return fmhaforge.open(path)


def launch(bundle, cuda, operation, heads, dim, mask, dtype):
    """Runs one small case through bare addresses; returns the names that were launched."""
    cuda.launches.clear()
    a = [cuda.allocate(1 << 42) for _ in range(8)]
    runner = bundle.runner(*heads, dim, 2, 17, 256, device=0, dtype=dtype)
    window = WINDOWS.get(mask, INT_MAX)
    if operation == "llm":
        runner.run(*a[:5], 0, 0.1, window)
    elif operation == "padding":
        runner.run_padding(*a[:6], 0, 0.1)
    elif operation == "vision_block":
        runner.run_vision_block(*a[:7], 0, 0.1, 5)
    elif operation == "paged":
        runner.run_paged(*a[:6], 4, 2, 128, 0, 0.1, window)
    elif operation == "paged_ragged":
        runner.run_paged_ragged(*a[:6], 20, 17, 4, 2, 128, 0, 0.1, window)
    else:
        runner.run_vit(*a[:5], 20, 17, 2, 0, 0.1)
    return [launched.symbol for launched in cuda.launches]


QUERIES = {"llm": "can_implement", "padding": "can_implement", "vision_block": "can_implement", "paged": "can_implement_paged",
           "paged_ragged": "can_implement_paged_ragged"}


def agree(bundle, cuda, sm, operation, heads, dim, mask, dtype="float16"):
    """Asserts that query and launch say the same; returns what they say."""
    if operation == "vit":
        support = bundle.can_implement_vit(dim, sm, dtype)
    else:
        support = getattr(bundle, QUERIES[operation])(*heads, dim, sm, dtype, mask)
    case = (sm, operation, heads, dim, mask, dtype)
    try:
        launched = launch(bundle, cuda, operation, heads, dim, mask, dtype)
    except FmhaForgeError as error:
        assert not support, (case, support, error)
        assert cuda.launches == [], case
        return False
    assert support, (case, support.reason)
    assert len(launched) == 1 and launched[0] in {row.symbol for row in support.rows}, (case, launched, support.variants)
    return True


def operation_of(mask, rng):
    """An operation of the seed that can be asked for with this mask."""
    if mask in WINDOWS:
        return rng.choice(["llm", "paged", "paged_ragged"])
    return {"padding": "padding", "vision_block": "vision_block", "bidirectional": "vit"}[mask]


@pytest.mark.parametrize("sm", DEVICES)
@pytest.mark.parametrize("path", ["bundle", "partial"])
def test_random_requests(request, path, sm):
    rng = random.Random(sm)
    cuda = FakeCuda(sm)
    bundle = over(request.getfixturevalue(path), cuda)
    said = []
    for _ in range(150):
        mask = rng.choice([mask.value for mask in MaskType])
        operation = operation_of(mask, rng)
        kv = rng.choice(HEADS)
        heads = rng.choice([(kv * rng.choice((1, 2, 4)), kv), (rng.choice(HEADS), kv)])
        if operation == "vit":
            heads = (4, 2)  # the query does not examine them
        dtype = "float16" if rng.random() < 0.95 else "bfloat16"
        said.append(agree(bundle, cuda, sm, operation, heads, rng.choice(DIMS), mask, dtype))
    served = sm in bundle.metadata.arch_table
    assert not all(said) and any(said) == served


def test_every_row_loads_and_launches_on_every_device_it_serves(bundle):
    devices = {sm: FakeCuda(sm) for sm in SHARED_LIMIT}
    bundles = {sm: over(bundle, cuda) for sm, cuda in devices.items()}
    metadata = bundle.metadata
    launched = set()
    for row in metadata.rows:
        assert agree(bundles[row.sm], devices[row.sm], row.sm, row.operation, (8, 2), row.head_dim, row.mask)
        launched |= {(kernel.row.variant, kernel.row.sm) for kernel in bundles[row.sm].loader.loaded()}
    without_rule = {(row.variant, row.sm) for row in metadata.rows}
    unreached = without_rule - launched
    assert {variant for variant, _ in unreached} == {"fmha_v2_d64", "fmha_v2_d64_paged"}  # 17 queries take the small tile
    for sm in metadata.arch_table:
        for operation, run in (("llm", "preflight_llm"), ("paged", "preflight_paged")):
            assert getattr(bundles[sm].runner(8, 2, 64, 1, 4096), run)(0).rows[0].sm == sm, operation
