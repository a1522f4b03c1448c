# SPDX-License-Identifier: Apache-2.0
"""Plans that use everything the language has (tensor maps, clusters, compound and overflowing values), rendered into C."""

import dataclasses
import hashlib

import pytest

import scenarios
from arguments import expected_launch
from c_build import build
from fake_bundle import fake_cubin
from fmhaforge.errors import ArgumentError
from fmhaforge.launch import compiled
from generator import cabi

VARIANT = "fmha_v2_d64"
SIZES = {"ptr": 8, "i64": 8, "i32": 4, "f32": 4, "tensormap": 128}
PLAN = {
    "grid": ["ceil_div(seqlen_q, 128) * 2", "min(num_q_heads, sm_count)", "max(batch, 1 + 1)"], "block": [384, 1, 1],
    "cluster": [2, 1, 1], "smem_bytes": 160000, "empty_if_zero": ["batch"],
    "counts": [{"things": "pairs", "value": "num_q_heads * seqlen_kv", "most": 1 << 24}],
    "params": [
        {"name": "tiles", "type": "i32", "value": "ceil_div(seqlen_q, 128) * num_q_heads * batch"},
        {"name": "k_map", "type": "tensormap", "map": {
            "base": "k", "dtype": "float16", "dims": ["64", "seqlen_kv", "num_kv_heads", "batch"],
            "strides_bytes": ["k_stride_seq * 2", "64 * 2", "k_stride_batch * 2"], "box": [64, 128, 1, 1], "swizzle": 128,
            "l2_promotion": 256}},
        {"name": "scale", "type": "f32", "value": "scale_log2"},
        {"name": "cu", "type": "ptr", "value": "cu_kv_seqlens"},
        {"name": "cu_map", "type": "tensormap", "map": {
            "base": "cu_kv_seqlens", "dtype": "int32", "dims": ["batch + 1"], "strides_bytes": [], "box": [64], "swizzle": 0,
            "l2_promotion": 0}},
        {"name": "elements", "type": "i64", "value": "batch * q_stride_batch - sm_count"},
    ],
}


@pytest.fixture(scope="module")
def planned(tmp_path_factory, manifest, zig):
    """The library of one row with PLAN."""
    folder = tmp_path_factory.mktemp("plans")

    def use_plan(document):
        row, = document["rows"]
        cubin = fake_cubin(90, False, {row["symbol"]: [SIZES[param["type"]] for param in PLAN["params"]]})
        row.update(plan=PLAN, smem_bytes=PLAN["smem_bytes"], threads=384, cubin="other.cubin",
                   cubin_sha256=hashlib.sha256(cubin).hexdigest(), cubin_bytes=len(cubin))
        (folder / "bundle").mkdir(exist_ok=True)
        (folder / "bundle" / "other.cubin").write_bytes(cubin)
    return build(folder, manifest, zig, sms=[90], variants=[VARIANT], change=use_plan)


def launch(stub_process, planned, changes):
    return stub_process(scenarios.launch_once, planned.libraries.shared, planned.metadata, VARIANT, 90, changes)


@pytest.mark.parametrize("seed", range(20))
def test_everything_reaches_the_driver(stub_process, planned, seed):
    (index, values, found), = stub_process(scenarios.launch_rows, planned.libraries.shared, planned.metadata, 90, seed)
    expected = expected_launch(planned.metadata.rows[index], values, 0, 100)
    assert dataclasses.asdict(found) == expected
    assert expected["cluster"] == (2, 1, 1) and len(expected["params"]) == 392


@pytest.mark.parametrize("changes, words", [
    ({"batch": 60000, "seqlen_q": 1 << 20, "num_q_heads": 8, "num_kv_heads": 8, "q_stride_batch": 8},
     "seqlen_q: 1048576 with num_q_heads 8 and batch 60000 is too large: the kernel's parameter tiles would be 3932160000, at most "
     "2147483647 is possible; split the work"),
    ({"batch": 60000, "seqlen_q": 128, "num_q_heads": 1, "num_kv_heads": 1, "q_stride_batch": 1 << 62},
     "q_stride_batch: 4611686018427387904 with batch 60000 is too large: the kernel's parameter elements does not fit in 64 bits; split the work"),
    ({"seqlen_kv": 1 << 25, "num_q_heads": 4},
     "seqlen_kv: 33554432 with num_q_heads 4 is too large: the number of pairs would be 134217728, at most 16777216 is possible; split the work"),
    ({"k_stride_seq": 1 << 62},
     "k_stride_seq: 4611686018427387904 is too large: byte stride 1 of tensor map k_map does not fit in 64 bits; split the work"),
    ({"k_stride_seq": 1 << 39},
     "k_stride_seq: 549755813888 is too large: byte stride 1 of tensor map k_map would be 1099511627776, at most 1099511627775 is possible; "
     "split the work"),
    ({"seqlen_kv": 0}, "seqlen_kv: 0 is too small: extent 1 of tensor map k_map would be 0, at least 1 is needed"),
    ({"batch": 70000, "num_q_heads": 1, "num_kv_heads": 1, "seqlen_q": 1, "q_stride_batch": 8},
     "batch: 70000 is too large: the launch's grid in z would be 70000, at most 65535 is possible; split the work"),
])
def test_values_that_do_not_fit(stub_process, planned, changes, words):
    """C and Python refuse with the same sentence, which names the arguments."""
    status, reason, launches, _ = launch(stub_process, planned, changes)
    assert (status, launches, reason) == ("INVALID_ARGUMENT", 0, words)
    row, = planned.metadata.rows
    values = scenarios.plain_values(planned.metadata.operations["llm"], changes)
    with pytest.raises(ArgumentError) as refused:
        compiled(row.plan).bind({**values, "sm_count": 100}, str)
    assert str(refused.value) == words


def test_a_number_that_never_fits_is_not_rendered(tmp_path, manifest, zig):
    def too_many(document):
        document["rows"][0]["plan"]["grid"][2] = "65536"
    with pytest.raises(cabi.RenderError, match=r"rows\[0\]\.plan\.grid is 65536, which is not in 1 \.\. 65535"):
        build(tmp_path, manifest, zig, sms=[86], variants=[VARIANT], change=too_many)


def test_a_refused_tensor_map_is_named(stub_process, planned):
    first, second, *counts = stub_process(
        scenarios.failing_call, planned.libraries.shared, planned.metadata, VARIANT, 90, "cuTensorMapEncodeTiled", 1)
    assert first[0] == "LAUNCH" and "k_map" in first[1] and "cuTensorMapEncodeTiled" in first[1]
    assert second == ("OK", "") and counts == [1, 0, 1]


def test_unchanged_tensor_maps_are_encoded_once(stub_process, planned):
    changes = ({}, {}, {"k": 1 << 20}, {"k": 1 << 20}, {"seqlen_kv": 77}, {"k_stride_seq": 640}, {"v": 1 << 21}, {})
    steps = stub_process(scenarios.launch_in_turn, planned.libraries.shared, planned.metadata, VARIANT, 90, "cuTensorMapEncodeTiled", changes)
    params, calls = zip(*steps)
    # Two maps at first, then k's whenever its base, an extent or a stride is another than before; v stands in no map of this plan.
    assert calls == (2, 2, 3, 3, 4, 5, 6, 6)
    assert params[0] == params[1] == params[6] == params[7] and params[2] == params[3]
    assert len(set(params)) == 4
