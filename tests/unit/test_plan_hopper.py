# SPDX-License-Identifier: Apache-2.0
"""Geometry and launch plans of the hopper family: numbers worked out by hand."""

import pytest

from generator.families import FAMILY_RULES, TileError
from generator.model import KernelSpec
from generator.operations import OPERATIONS
from generator.plan import PlanError, plan_for_spec
from generator.plans.hopper_geometry import geometry

PAIR = {"m": 128, "n": 128, "consumers": 2, "producer_registers": 40, "consumer_registers": 232}
SPLIT = {"m": 64, "n": 32, "consumers": 2, "columns": 2, "producer_registers": 40, "consumer_registers": 232}


def _spec(operation, head_dim, mask, tile):
    built = FAMILY_RULES["hopper"].tile(tile, head_dim)
    return KernelSpec("hopper", operation, head_dim, mask, OPERATIONS[operation].kv_layout, "float16", built, False, "sm_90a")


def test_dense_plan():
    plan = plan_for_spec(_spec("llm", 128, "causal", PAIR))
    # Q 128 x 128, two stages of K and of V of 128 x 128, in fp16; 10 barriers of 8 bytes; 3 notices of 64 bytes.
    assert plan.smem_bytes == 2 * (128 * 128 + 4 * 128 * 128) + 10 * 8 + 3 * 64
    assert plan.block == (384, 1, 1)
    assert plan.grid == ("min(ceil_div(seqlen_q, 128) * num_q_heads * batch, sm_count)", "1", "1")
    names = [param.name for param in plan.params]
    assert names[:3] == ["q_map", "k_map", "v_map"]
    assert names[3:] == ["o", "cu_kv_seqlens", "o_stride_batch", "o_stride_seq", "batch", "seqlen_q", "seqlen_kv", "num_q_heads", "num_kv_heads",
                         "scale_log2"]
    assert plan.param_layout()[:4] == ((0, 128), (128, 128), (256, 128), (384, 8))


def test_a_second_q_buffer():
    spec = _spec("llm", 128, "causal", {**PAIR, "q_stages": 2})
    g = geometry(spec)
    assert (g.k_offset, g.barriers, g.notices) == (2 * 128 * 128, 12, 5)
    # Two Q of 128 x 128, two stages of K and of V of 128 x 128; 12 barriers of 8 bytes; a notice for each of 2 x 2 positions and the draft.
    assert plan_for_spec(spec).smem_bytes == 2 * 6 * 128 * 128 + 12 * 8 + 5 * 64
    with pytest.raises(TileError, match="q_stages must be 1 with columns 2"):
        FAMILY_RULES["hopper"].tile({**SPLIT, "q_stages": 2}, 512)


def test_dense_maps():
    q, k, _ = plan_for_spec(_spec("llm", 128, "causal", PAIR)).params[:3]
    assert q.map.dims == ("128", "max(seqlen_q, 1)", "max(num_q_heads, 1)", "max(batch, 1)")
    assert q.map.strides_bytes == ("q_stride_seq * 2", "128 * 2", "q_stride_batch * 2")
    assert (q.map.box, k.map.box) == ((64, 64, 1, 1), (64, 128, 1, 1))


def test_pool_map_reads_pages():
    plan = plan_for_spec(_spec("paged", 128, "sliding_causal", PAIR))
    pool = plan.params[1].map
    assert [param.name for param in plan.params[:2]] == ["q_map", "kv_pool_map"]
    assert pool.dims == ("128", "max(128, 1)", "max(num_kv_heads, 1)", "max(num_flat_pages, 1)")
    assert pool.strides_bytes == ("pool_stride_token * 2", "pool_stride_head * 2", "pool_stride_page * 2")
    assert "window_size_left" in [param.name for param in plan.params]


def test_packed_maps_have_no_batch():
    q = plan_for_spec(_spec("vit", 64, "bidirectional", PAIR)).params[0].map
    assert q.dims == ("64", "max(total_seqlen, 1)", "max(num_q_heads, 1)") and q.box == (64, 64, 1)


@pytest.mark.parametrize("head_dim, inner, boxes", ((64, 64, 1), (72, 80, 2), (80, 80, 2), (96, 96, 2), (128, 128, 2), (256, 256, 4)))
def test_boxes_cover_the_head(head_dim, inner, boxes):
    g = geometry(_spec("vit", head_dim, "bidirectional", {**PAIR, "n": 64}))
    assert (g.dim, g.boxes, g.width, g.value_dim) == (inner, boxes, 64 * boxes, head_dim)


def test_split_consumers_share_rows():
    g = geometry(_spec("llm", 512, "causal", SPLIT))
    assert (g.row_groups, g.step, g.value_dim) == (1, 64, 256)
    # Q 64 x 512, four tiles of 32 x 512, four tiles of probabilities of 64 x 32; 2 x 64 row values; 10 barriers; 3 notices.
    assert g.shared_bytes == 2 * (64 * 512 + 4 * 32 * 512 + 4 * 64 * 32) + 4 * 2 * 64 + 10 * 8 + 3 * 64


@pytest.mark.parametrize("tile", ({**PAIR, "n": 80}, {**SPLIT, "n": 48}))
def test_a_step_that_straddles_pages_is_refused(tile):
    with pytest.raises(PlanError, match="straddles pages"):
        plan_for_spec(_spec("paged", 256, "causal", tile))


@pytest.mark.parametrize("change", ({"m": 192}, {"consumers": 3}, {"columns": 2, "stages": 3}, {"consumer_registers": 240}))
def test_tiles_that_do_not_add_up_are_refused(change):
    with pytest.raises(TileError):
        FAMILY_RULES["hopper"].tile({**PAIR, **change}, 128)


SMALL = {"m": 64, "n": 64, "consumers": 1, "producer_registers": 40, "consumer_registers": 120, "blocks_per_sm": 3}


def test_several_blocks_share_an_sm():
    plan = plan_for_spec(_spec("llm", 64, "causal", SMALL))
    assert plan.grid[0] == "min(ceil_div(seqlen_q, 64) * num_q_heads * batch, sm_count * 3)" and plan.block == (256, 1, 1)
    # Q and two stages of K and V, 64 x 64 each; 10 barriers, 3 notices.
    assert plan.smem_bytes == 2 * 5 * 64 * 64 + 10 * 8 + 3 * 64
    # 65,536 registers for 3 x 256 threads: 80 a thread at launch, 160 for a producer and a consumer thread together.
    with pytest.raises(TileError, match="more registers"):
        FAMILY_RULES["hopper"].tile({**SMALL, "consumer_registers": 128}, 64)


def test_blocks_that_an_sm_cannot_hold_are_refused():
    # Q, K and V are 64 x 128 in shared memory: two blocks fit into the 228 KiB, three do not.
    assert plan_for_spec(_spec("vit", 96, "bidirectional", {**SMALL, "blocks_per_sm": 2, "consumer_registers": 208})).smem_bytes == 82192
    with pytest.raises(PlanError, match="3 blocks of 82192 bytes.*take 249648 bytes.*an SM has 233472"):
        plan_for_spec(_spec("vit", 96, "bidirectional", SMALL))
