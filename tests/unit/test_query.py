# SPDX-License-Identifier: Apache-2.0
"""What a bundle says it can do: the truth table, the reasons, the selection rules."""

import itertools

import fmhaforge
import pytest
from fake_bundle import make_bundle, rewrite_metadata
from fmhaforge import ArgumentError, MaskType, Query
from fmhaforge.query import ROUTE_PTX
from runtime_fixtures import bundle, bundle_path  # noqa: F401

SMS = (80, 86, 87, 89, 90, 100, 101, 110, 120, 121)
OTHER_SMS = (0, 70, 75, 88, 103, 122, 200, -90)
HEADS = ((1, 1), (8, 8), (32, 8), (28, 4), (16, 1))
BAD_HEADS = ((0, 1), (8, 0), (-8, -8), (8, 16), (30, 8), (7, 2), (1 << 31, 1))
DIMS = (32, 64, 72, 80, 96, 128, 192, 256, 512, 1024)
LLM = {64, 128, 256, 512}
DENSE = {MaskType.CAUSAL: LLM, MaskType.SLIDING_CAUSAL: LLM, MaskType.PADDING: {256}, MaskType.VISION_BLOCK: {256, 512},
         MaskType.BIDIRECTIONAL: set()}


@pytest.mark.parametrize("sm", SMS + OTHER_SMS)
@pytest.mark.parametrize("mask", MaskType)
def test_truth_table(bundle, sm, mask):
    for dim, heads in itertools.product(DIMS, HEADS[:3]):
        served = sm in SMS
        paged = dim in LLM and mask in (MaskType.CAUSAL, MaskType.SLIDING_CAUSAL)
        assert bool(bundle.can_implement(*heads, dim, sm, "float16", mask)) == (served and dim in DENSE[mask])
        assert bool(bundle.can_implement_paged(*heads, dim, sm, "float16", mask)) == (served and paged)
        assert bool(bundle.can_implement_paged_ragged(*heads, dim, sm, "float16", mask)) == (served and paged)
        assert bool(bundle.can_implement_vit(dim, sm, "float16")) == (served and dim in {64, 72, 80, 96, 128})


@pytest.mark.parametrize("heads", HEADS)
def test_head_counts_that_divide_are_served(bundle, heads):
    assert bundle.can_implement(*heads, 128, 87, "float16", "causal")


@pytest.mark.parametrize("heads", BAD_HEADS)
def test_head_counts_that_do_not_are_refused_by_name(bundle, heads):
    support = bundle.can_implement(*heads, 128, 87, "float16", "causal")
    assert not support and support.field in ("num_q_heads", "num_kv_heads") and support.field in support.reason


def test_more_heads_than_a_grid_takes(tmp_path, manifest):
    def heads_in_y(document):
        document["rows"][0]["plan"]["grid"] = ["ceil_div(seqlen_q, 64)", "num_q_heads", "batch"]
    bundle = fmhaforge.open(make_bundle(tmp_path, manifest, sms=[90], variants=["fmha_v2_d128"], change=heads_in_y))
    assert bundle.can_implement(65535, 1, 128, 90, "float16", "causal")
    support = bundle.can_implement(65536, 1, 128, 90, "float16", "causal")
    assert not support and support.field == "num_q_heads" and "65535" in support.reason


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "int8", "fp8", ""])
def test_other_dtypes_are_refused(bundle, dtype):
    support = bundle.can_implement(32, 8, 128, 87, dtype, "causal")
    assert not support and support.field == "dtype" and "float16" in support.reason


def test_dtypes_of_other_libraries_are_read(bundle):
    numpy = pytest.importorskip("numpy")
    torch_like = type("dtype", (), {"__str__": lambda self: "torch.float16"})()
    for dtype in (numpy.float16, numpy.dtype("float16"), "torch.float16", "half", "FP16", "kHALF", torch_like):
        assert bundle.can_implement(32, 8, 128, 87, dtype, "CAUSAL"), dtype
    assert not bundle.can_implement(32, 8, 128, 87, numpy.float32, "causal")


@pytest.mark.parametrize("change", [{"num_q_heads": "32"}, {"head_size": 128.0}, {"sm": None}, {"dtype": 16}, {"mask": 3},
                                    {"num_kv_heads": True}])
def test_wrong_types_are_errors_that_name_the_argument(bundle, change):
    arguments = {"num_q_heads": 32, "num_kv_heads": 8, "head_size": 128, "sm": 87, "dtype": "float16", "mask": "causal", **change}
    with pytest.raises(ArgumentError) as error:
        bundle.can_implement(**arguments)
    assert error.value.argument == next(iter(change))


def test_a_refusal_names_the_first_failing_field_and_the_nearest_rows(bundle):
    support = bundle.can_implement(32, 8, 96, 87, "float16", "causal")
    assert support.field == "head_dim"
    assert [near.value for near in support.nearest] == [64, 128, 256]
    assert support.reason == ("head_dim 96 is not served (there are 64, 128, 256, 512); nearest: fmha_v2_d64 (head_dim 64), "
                              "fmha_v2_d128 (head_dim 128), fmha_v2_d256 (head_dim 256)")
    support = bundle.can_implement(32, 8, 128, 103, "float16", "causal")
    assert support.field == "sm" and [near.value for near in support.nearest] == [101, 100, 110]
    assert bundle.can_implement(32, 8, 96, 103, "int4", "nothing").field == "mask"


def test_variants_and_rows_of_a_yes(bundle):
    support = bundle.can_implement(32, 8, 64, 87, "float16", "causal")
    assert support.variants == ("fmha_v2_d64_small", "fmha_v2_d64")
    assert [(row.variant, row.sm) for row in support.rows] == [("fmha_v2_d64_small", 87), ("fmha_v2_d64", 87)]
    assert bundle.can_implement(32, 8, 128, 87, "float16", "sliding_causal").variants == ("fmha_v2_d128_sw",)


def selected(bundle, operation="llm", seqlen_q=None, **flags):
    known = {} if seqlen_q is None else {"seqlen_q": seqlen_q}
    return bundle.query(Query((operation,), 64, 90, mask="causal", known=known, flags=flags)).variants


def test_selection_rules(bundle):
    small, large = "fmha_v2_d64_small", "fmha_v2_d64"
    assert selected(bundle, seqlen_q=512, use_small_d64=True) == (small,)
    assert selected(bundle, seqlen_q=513, use_small_d64=True) == (large,)
    assert selected(bundle, seqlen_q=1, use_small_d64=False) == (large,)
    assert selected(bundle, seqlen_q=1) == (small, large)
    assert selected(bundle, use_small_d64=False) == (large,)
    assert selected(bundle, use_small_d64=True) == (small, large)
    assert selected(bundle, "paged", 512, use_small_d64=False) == ("fmha_v2_d64_small_paged",)
    assert selected(bundle, "paged", 513) == ("fmha_v2_d64_paged",)


def test_rules_that_cannot_hold_are_a_reason(tmp_path, manifest):
    bundle = fmhaforge.open(make_bundle(tmp_path, manifest, sms=[90], variants=["fmha_v2_d64_small"]))
    assert selected(bundle, seqlen_q=512, use_small_d64=True) == ("fmha_v2_d64_small",)
    support = bundle.query(Query(("llm",), 64, 90, mask="causal", known={"seqlen_q": 513}, flags={"use_small_d64": True}))
    assert not support and support.field == "seqlen_q"
    assert support.reason == ("no selection rule holds for seqlen_q 513: fmha_v2_d64_small takes seqlen_q up to 512 with use_small_d64; "
                              "build the variant without a rule")
    support = bundle.query(Query(("llm",), 64, 90, mask="causal", flags={"use_small_d64": False}))
    assert support.reason == ("no selection rule holds for an unknown seqlen_q: fmha_v2_d64_small takes seqlen_q up to 512 with use_small_d64, "
                              "which is off; build the variant without a rule")


def test_the_size_of_a_launch_is_a_limit_in_the_words_of_the_request(bundle):
    def asked(operation, head_dim, sm, **known):
        return bundle.query(Query((operation,), head_dim, sm, known=known))
    support = asked("llm", 64, 86, seqlen_q=1 << 23)
    assert (support.field, support.reason) == (
        "seqlen_q", "seqlen_q: 8388608 is too large: the launch's grid in y would be 65536, at most 65535 is possible; split the work")
    assert asked("llm", 64, 86, seqlen_q=(1 << 23) - 128) and asked("llm", 64, 90, seqlen_q=1 << 23)
    assert asked("paged_ragged", 128, 86, max_seqlen_q=1 << 30).field == "max_seqlen_q"
    tiles = 1 << 30  # what family hopper counts, which SM 90 has
    assert asked("paged_ragged", 128, 90, max_seqlen_q=128, num_q_heads=32, num_kv_heads=8, batch=tiles // 32)
    support = asked("paged_ragged", 128, 90, max_seqlen_q=129, num_q_heads=32, num_kv_heads=8, batch=tiles // 32)
    assert (support.field, support.reason) == (
        "batch", f"batch: {tiles // 32} with max_seqlen_q 129 and num_q_heads 32 is too large: the number of query tiles would be {2 * tiles}, "
        f"at most {tiles} is possible; split the work")
    support = asked("vit", 64, 86, batch=65536)
    assert support.reason == "batch: 65536 is too large: the launch's grid in z would be 65536, at most 65535 is possible; split the work"
    assert asked("vit", 64, 86, batch=65536, max_seqlen=0), "nothing is launched"


def test_the_architecture_table_decides(tmp_path, manifest):
    bundle = fmhaforge.open(make_bundle(tmp_path, manifest, sms=[80, 110], variants=["fmha_v2_d128"]))
    served = {sm: bundle.can_implement(8, 8, 128, sm, "float16", "causal") for sm in SMS}
    assert {sm: support.rows[0].sm for sm, support in served.items() if support} == {80: 80, 86: 80, 89: 80, 101: 110, 110: 110}
    assert served[87].field == "sm"


def test_exact_rows_first(bundle):
    for sm in SMS:
        assert bundle.can_implement(8, 8, 128, sm, "float16", "causal").rows[0].sm == sm


def test_shared_memory_limit_of_the_device(tmp_path, manifest):
    def grow(document):
        for row in document["rows"]:
            row["smem_bytes"] = row["plan"]["smem_bytes"] = 101377
    bundle = fmhaforge.open(make_bundle(tmp_path, manifest, sms=[80, 86], variants=["fmha_v2_d128"], change=grow))
    assert bundle.can_implement(8, 8, 128, 80, "float16", "causal")
    support = bundle.can_implement(8, 8, 128, 86, "float16", "causal")
    assert not support and support.field == "smem_bytes"
    assert "101377" in support.reason and "101376" in support.reason


def test_exact_families_serve_their_own_sm_only(tmp_path, manifest):
    path = make_bundle(tmp_path, manifest, sms=[80], variants=["fmha_v2_d128"])

    def make_exact(document):
        document["families"]["ampere"]["exact"] = True
    rewrite_metadata(path, make_exact)
    bundle = fmhaforge.open(path)
    assert bundle.can_implement(8, 8, 128, 80, "float16", "causal")
    assert bundle.can_implement(8, 8, 128, 86, "float16", "causal").field == "sm"


def test_a_row_can_be_pinned_for_validation(bundle):
    def query(**options):
        return bundle.query(Query(("llm",), 128, 90, mask="causal", **options))
    assert query(row_sm=90).rows[0].sm == 90
    assert query(row_sm=80).field == "sm"
    assert query(row_sm=120, route=ROUTE_PTX).rows[0].sm == 120
    assert query(family="nothing").field == "family"
    assert query(checked=True).field == "checked"


def test_explain_gives_a_verdict_for_every_variant(bundle, manifest):
    verdicts = {v.variant: v for v in bundle.explain(Query(("llm",), 64, 90, mask="causal", known={"seqlen_q": 100},
                                                           flags={"use_small_d64": True}))}
    assert list(verdicts) == [variant.name for variant in manifest.variants if not variant.checked]
    assert verdicts["fmha_v2_d64_small"].field is None
    assert verdicts["fmha_v2_d64"].field == "select" and "fmha_v2_d64_small" in verdicts["fmha_v2_d64"].reason
    assert verdicts["fmha_v2_d128"].field == "head_dim"
    assert verdicts["fmha_v2_d64_small_paged"].field == "operation"
    assert verdicts["fmha_v2_d64_sw"].field == "mask"
    assert verdicts["fmha_v2_vit_d64"].field == "operation"


@pytest.mark.parametrize("known, flags, reason", [
    ({"seqlen_q": 600}, {"use_small_d64": True},
     "its selection rule does not hold for seqlen_q 600: it takes seqlen_q up to 512 with use_small_d64"),
    ({"seqlen_q": 600}, {}, "its selection rule does not hold for seqlen_q 600: it takes seqlen_q up to 512 with use_small_d64"),
    ({"seqlen_q": 8}, {"use_small_d64": False},
     "its selection rule does not hold for seqlen_q 8: it takes seqlen_q up to 512 with use_small_d64, which is off"),
    ({}, {"use_small_d64": False}, "its selection rule does not hold: it takes seqlen_q up to 512 with use_small_d64, which is off"),
])
def test_explain_says_why_a_rule_does_not_hold(bundle, known, flags, reason):
    for sm in (86, 90):
        verdicts = {v.variant: v for v in bundle.explain(Query(("llm",), 64, sm, mask="causal", known=known, flags=flags))}
        small = verdicts["fmha_v2_d64_small"]
        assert (small.field, small.reason, small.row.sm) == ("seqlen_q", reason, sm)
        assert verdicts["fmha_v2_d64"].field is None
