# SPDX-License-Identifier: Apache-2.0
"""Launch plans as data: layout, JSON, checks, and the plans of the project's rows."""

import json
import sys
import types
from dataclasses import replace

import pytest

from fmhaforge.errors import SchemaError
from fmhaforge.plan import PARAM_TYPES
from generator import manifest as m
from generator import plan as plans
from generator.operations import OPERATIONS
from generator.plan import Count, LaunchPlan, Param, PlanError, TensorMap, argument_params, check_plan, plan_for

MAP = TensorMap("k", "float16", ("64", "seqlen_kv", "num_kv_heads", "batch"),
                ("2 * k_stride_seq", "128", "2 * k_stride_batch"), (64, 128, 1, 1))

PLAN = LaunchPlan(
    grid=("ceil_div(seqlen_q, 128)", "num_q_heads", "batch"),
    block=(128, 1, 1),
    smem_bytes=49152,
    params=(Param("q", "ptr", "q"), Param("rows", "i32", "seqlen_q * num_q_heads"), Param("k_map", "tensormap", map=MAP),
            Param("scale", "f32", "scale_log2"), Param("stride", "i64", "q_stride_seq * 2")),
    empty_if_zero=("batch", "seqlen_q"),
    counts=(Count("rows", "seqlen_q * num_q_heads", 1 << 30),),
)

LLM = OPERATIONS["llm"]


def test_param_layout_has_natural_alignment():
    assert PLAN.param_layout() == ((0, 8), (8, 4), (64, 128), (192, 4), (200, 8))
    assert replace(PLAN, params=()).param_layout() == ()


def test_json_round_trip():
    value = json.loads(json.dumps(PLAN.to_json()))
    assert LaunchPlan.from_json(value) == PLAN
    assert value == {
        "block": [128, 1, 1], "cluster": [1, 1, 1], "empty_if_zero": ["batch", "seqlen_q"], "smem_bytes": 49152,
        "counts": [{"things": "rows", "value": "seqlen_q * num_q_heads", "most": 1 << 30}],
        "grid": ["ceil_div(seqlen_q, 128)", "num_q_heads", "batch"],
        "params": [
            {"name": "q", "type": "ptr", "value": "q"},
            {"name": "rows", "type": "i32", "value": "seqlen_q * num_q_heads"},
            {"name": "k_map", "type": "tensormap", "map": {
                "base": "k", "dtype": "float16", "dims": ["64", "seqlen_kv", "num_kv_heads", "batch"], "box": [64, 128, 1, 1],
                "strides_bytes": ["2 * k_stride_seq", "128", "2 * k_stride_batch"], "swizzle": 128, "l2_promotion": 128}},
            {"name": "scale", "type": "f32", "value": "scale_log2"},
            {"name": "stride", "type": "i64", "value": "q_stride_seq * 2"},
        ]}


def test_what_the_build_writes_the_runtime_reads(manifest):
    """Every plan of the project, through the metadata's text."""
    plans_by_row = [(row, plan_for(row)) for row in manifest.rows(checked=True)]
    assert {param.type for _, plan in plans_by_row for param in plan.params} == set(PARAM_TYPES)
    for row, plan in plans_by_row:
        assert LaunchPlan.from_json(json.loads(json.dumps(plan.to_json()))) == plan, row.variant.name


@pytest.mark.parametrize("change, message", [
    ({"grid": ["1", "1"]}, "grid must have 3 items"),
    ({"grid": ["1", "1 +", "1"]}, "grid cannot be read"),
    ({"params": [{"name": "q", "type": "i32", "value": "q q"}]}, r"params\[0\].value cannot be read"),
    ({"params": [{"name": "q", "type": "f64", "value": "q"}]}, r"params\[0\].type must be one of ptr, i64, i32, f32, tensormap"),
    ({"params": [{"name": "q", "type": "tensormap"}]}, r"params\[0\].map is missing"),
    ({"smem_bytes": "1"}, "smem_bytes must be an integer"),
    ({"params": [{"name": "m", "type": "tensormap", "map": {**MAP.to_json(), "box": [64]}}]}, r"params\[0\].map.dims has 4 extents; there are 1 to 5"),
    ({"params": [{"name": "m", "type": "tensormap", "map": {**MAP.to_json(), "strides_bytes": []}}]}, r"map.dims has 4 extents"),
    ({"params": [{"name": "m", "type": "tensormap", "map": {**MAP.to_json(), "dims": []}}]}, r"map.dims has 0 extents"),
    ({"params": [{"name": "m", "type": "tensormap", "map": {**MAP.to_json(), "swizzle": 16}}]}, "map.swizzle must be one of 0, 32, 64, 128, not 16"),
    ({"params": [{"name": "m", "type": "tensormap", "map": {**MAP.to_json(), "l2_promotion": 1}}]}, "map.l2_promotion must be one of 0, 64, 128, 256"),
    ({"params": [{"name": "m", "type": "tensormap", "map": {**MAP.to_json(), "dtype": "float32"}}]}, "map.dtype must be one of float16, int32"),
])
def test_what_is_no_plan_is_refused(change, message):
    with pytest.raises(SchemaError, match=message):
        LaunchPlan.from_json({**PLAN.to_json(), **change})


def test_names_of_a_plan():
    assert PLAN.integer_names() == {"seqlen_q", "num_q_heads", "batch", "seqlen_kv", "num_kv_heads", "k_stride_seq", "k_stride_batch", "q_stride_seq"}
    assert PLAN.names() == PLAN.integer_names() | {"q", "k", "scale_log2"}


def test_a_good_plan_passes_and_counts_threads():
    check_plan(PLAN, LLM)
    assert replace(PLAN, block=(64, 2, 2)).threads == 256


def with_param(param):
    return replace(PLAN, params=(param,))


def with_map(**changes):
    return with_param(Param("k_map", "tensormap", map=replace(MAP, **changes)))


@pytest.mark.parametrize("plan, reason", [
    (replace(PLAN, grid=("seqlen", "1", "1")), "grid x: 'seqlen' is no integer argument of llm; there are batch, k_stride_batch"),
    (replace(PLAN, grid=("1", "q", "1")), "grid y: 'q' is no integer argument"),
    (replace(PLAN, grid=("1", "1", "1 +")), "grid z: expression '1 +'"),
    (replace(PLAN, grid=("1", "1")), "must be three expressions"),
    (replace(PLAN, block=(0, 1, 1)), "block (0, 1, 1) must be three integers >= 1"),
    (replace(PLAN, block=(128, 1)), "block (128, 1) must be three integers"),
    (replace(PLAN, block=(48, 1, 1)), "is not made of whole warps"),
    (replace(PLAN, block=(2048, 1, 1)), "has 2048 members, more than 1024"),
    (replace(PLAN, cluster=(32, 1, 1)), "cluster (32, 1, 1) has 32 members, more than 16"),
    (replace(PLAN, smem_bytes=-1), "smem_bytes -1"),
    (replace(PLAN, empty_if_zero=("total_seqlen",)), "empty_if_zero: 'total_seqlen' is no integer argument of llm"),
    (replace(PLAN, counts=(Count("rows", "rows", 5),)), "count of 'rows': 'rows' is no integer argument of llm"),
    (replace(PLAN, counts=(Count("rows", "5", 5),)), "count of 'rows': 5 is the same for every launch"),
    (replace(PLAN, counts=(Count("rows", "batch", 1 << 31),)), "count of 'rows': most 2147483648 is not in 1..2147483647"),
    (replace(PLAN, params=(Param("a", "ptr", "q"), Param("a", "ptr", "k"))), "parameter 'a' stands twice"),
    (replace(PLAN, params=tuple(Param(f"p{i}", "i64", "1") for i in range(513))), "parameters take 4104 bytes, more than 4096"),
    (with_param(Param("a", "u32", "seqlen_q")), "parameter 'a': unknown type 'u32'"),
    (with_param(Param("a", "ptr", "kv_pool")), "parameter 'a': 'kv_pool' is no ptr argument of llm; there are q, k, v, o"),
    (with_param(Param("a", "ptr", "q + 1")), "'q + 1' is no ptr argument"),
    (with_param(Param("a", "f32", "seqlen_q")), "'seqlen_q' is no f32 argument"),
    (with_param(Param("a", "i64", "q")), "'q' is no integer argument"),
    (with_param(Param("a", "i32", "scale_log2")), "'scale_log2' is no integer argument"),
    (with_param(Param("a", "i32")), "a tensormap has a map and no value"),
    (with_param(Param("a", "i32", "1", MAP)), "a tensormap has a map and no value"),
    (with_param(Param("a", "tensormap", "q")), "a tensormap has a map and no value"),
    (with_map(base="scale_log2"), "'scale_log2' is no ptr argument"),
    (with_map(dtype="int32"), "dtype 'int32' is not that of k"),
    (with_map(box=(64, 128)), "rank 4 needs as many box extents"),
    (with_map(strides_bytes=("1",)), "rank 4 needs as many box extents and one stride less"),
    (with_map(dims=("64",) * 6, box=(8,) * 6, strides_bytes=("1",) * 5), "is at most 5"),
    (with_map(dims=("64", "kv", "1", "1")), "'kv' is no integer argument"),
    (with_map(box=(64, 257, 1, 1)), "box extent 257 is not in 1..256"),
    (with_map(box=(128, 1, 1, 1)), "innermost box of 256 bytes must be a multiple of 16 and at most the swizzle of 128"),
    (with_map(box=(4, 1, 1, 1)), "innermost box of 8 bytes"),
    (with_map(swizzle=96), "swizzle is one of (0, 32, 64, 128)"),
    (with_map(l2_promotion=1), "l2_promotion one of"),
])
def test_plans_that_are_refused(plan, reason):
    with pytest.raises(PlanError) as caught:
        check_plan(plan, LLM)
    assert reason in str(caught.value)


def test_argument_params():
    params = argument_params(OPERATIONS["vit"])
    assert [(p.name, p.type, p.value) for p in params] == [(a.name, a.type, a.name) for a in OPERATIONS["vit"].arguments]
    assert argument_params(LLM, ["scale_log2", "q"]) == (Param("scale_log2", "f32", "scale_log2"), Param("q", "ptr", "q"))
    with pytest.raises(KeyError, match="no argument 'block_begin'"):
        argument_params(LLM, ["block_begin"])


@pytest.fixture
def fake_family(monkeypatch, sample_text):
    """Rows of the sample manifest whose family has the plan function that the test gives."""
    def rows(plan_function):
        plans.plan_for_spec.cache_clear()
        module = types.ModuleType("generator.plans.ampere")
        module.plan = plan_function
        monkeypatch.setitem(sys.modules, "generator.plans.ampere", module)
        return m.parse(sample_text.encode(), "variants.yaml").rows(variants=["*_small"])

    yield rows
    plans.plan_for_spec.cache_clear()


def test_plan_for_dispatches_to_the_family_once_per_kernel(fake_family):
    seen = []

    def plan(spec):
        seen.append(spec)
        return PLAN

    rows = fake_family(plan)
    assert [plan_for(row) for row in rows] == [PLAN] * 4
    assert seen == [rows[0].spec]


def test_too_much_shared_memory_is_an_error_at_the_tile(fake_family):
    rows = fake_family(lambda spec: replace(PLAN, smem_bytes=166913))
    assert plan_for(rows[1]).smem_bytes == 166913
    with pytest.raises(m.ManifestError) as caught:
        plan_for(rows[0])
    assert str(caught.value) == (
        "variants.yaml:35:11: fmha_v2_d64_small on SM 80 needs 166913 bytes of shared memory, the limit is 166912. "
        "Make the tile smaller, or add an override for SM 80")
    assert plan_for(fake_family(lambda spec: replace(PLAN, smem_bytes=166912))[0]).smem_bytes == 166912


def test_a_wrong_plan_names_the_kernel(fake_family):
    (row, *_) = fake_family(lambda spec: replace(PLAN, grid=("x", "1", "1")))
    with pytest.raises(PlanError, match="plan of ampere-llm-d64-causal-.*: grid x: 'x' is no integer argument"):
        plan_for(row)


def test_a_family_without_plans_is_a_clear_error(fake_family, monkeypatch):
    (row, *_) = fake_family(None)
    monkeypatch.setitem(sys.modules, "generator.plans.ampere", None)
    with pytest.raises(PlanError, match="family ampere has no launch plans"):
        plan_for(row)


def test_every_row_has_a_plan_within_its_limits(manifest):
    for row in manifest.rows(checked=True):
        plan = plan_for(row)
        assert 0 < plan.smem_bytes <= row.target.smem_limit
        assert plan.threads % 32 == 0
        assert LaunchPlan.from_json(json.loads(json.dumps(plan.to_json()))) == plan
        assert {"q", "o"} <= {name for param in plan.params for name in [param.value, param.map and param.map.base]}
