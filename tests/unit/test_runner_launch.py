# SPDX-License-Identifier: Apache-2.0
"""What reaches the driver: grid, parameters, strides, for every operation and both kinds of argument."""

import dataclasses
import math
import struct

import fmhaforge
import pytest
from fake_bundle import make_bundle, rewrite_metadata
from fake_cuda import FakeCuda, FakeTensor
from fmhaforge import INT_MAX, DriverError
from fmhaforge.driver import Driver
from runtime_fixtures import bundle, bundle_path, loaded  # noqa: F401

SCALE = 0.125
SCALE_LOG2 = struct.pack("<f", SCALE * math.log2(math.e))
B, SQ, SK, HQ, HKV, D = 2, 100, 300, 8, 2, 128
PAGES, MAX_PAGES = 6, 3
TYPES = {"ptr": "<Q", "i64": "<q", "i32": "<i", "f32": "<f"}


AXES = {"kv_pool": ("pool_stride_token", "pool_stride_head", "pool_stride_page")}


@pytest.fixture(params=[90, 86], ids=["hopper", "ampere"])
def cuda(request):
    """A device of each family: tensors by tensor maps and a block per SM, or by addresses and a block per tile."""
    return FakeCuda(request.param)


def row_of(bundle, cuda, launched):
    """The row that was launched."""
    return next(row for row in bundle.metadata.rows if row.symbol == launched.symbol and row.sm == cuda.sms[launched.device])


def decode(bundle, cuda, launched):
    """The row and the arguments of a launch by name, whether they reached the kernel as parameters or in tensor maps.

    The head stride of a map must be head_dim, and its box that of the kernel; `<tensor>_dims` are the dims of a map.
    """
    row, found = row_of(bundle, cuda, launched), {}
    assert row.family == {90: "hopper", 86: "ampere"}[row.sm]
    for param, value in zip(row.plan.params, launched.params, strict=True):
        if param.map is None:
            found[param.name], = struct.unpack(TYPES[param.type], value)
            continue
        name, encoded = param.map.base, cuda.map_of(value)
        tokens = 64 if name == "q" else row.raw["tile"]["n"]
        assert encoded["box"] == [64, tokens, 1, 1][:len(encoded["dims"])] and encoded["rest"] == ([1] * len(encoded["dims"]), 0, 0)
        assert (encoded["dtype"], encoded["swizzle"]) == ("CU_TENSOR_MAP_DATA_TYPE_FLOAT16", "CU_TENSOR_MAP_SWIZZLE_128B")
        axes = AXES.get(name, (f"{name}_stride_seq", "head_dim", f"{name}_stride_batch"))
        strides = dict(zip(axes, (stride / 2 for stride in encoded["strides"])))
        assert strides.pop("head_dim", row.head_dim) == row.head_dim
        found |= {name: encoded["address"], f"{name}_dims": encoded["dims"], **strides}
    return row, found


def by_maps(row, **arguments):
    """Those arguments that reach the kernels of family hopper only."""
    return arguments if row.family == "hopper" else {}


def grid_of(row, rows, heads, batch):
    """The blocks that `rows` query rows take, sorted: one for each tile, or as many at most as the 132 SMs hold at once."""
    tiles = math.ceil(rows / row.raw["tile"]["m"])
    if row.family == "hopper":
        return [1, 1, min(tiles * heads * batch, 132 * row.raw["tile"]["blocks_per_sm"])]
    return sorted((tiles, heads, batch))


def told(cuda, launched):
    """A launch with what its tensor maps say in place of their bytes."""
    return dataclasses.replace(launched, params=[cuda.map_of(value) if len(value) == 128 else value for value in launched.params])


def dense(cuda, dim=D, sk=SK, **strides):
    return {name: FakeTensor(cuda, (B, SQ if name in "qo" else sk, HQ if name in "qo" else HKV, dim), strides=strides.get(name))
            for name in "qkvo"}


def lengths(cuda, batch=B):
    return FakeTensor(cuda, (batch + 1,), "<i4")


def only_launch(cuda):
    assert len(cuda.launches) == 1
    return cuda.launches[0]


def test_llm(loaded, cuda):
    t, cu = dense(cuda), lengths(cuda)
    loaded.runner(HQ, HKV, D).run(t["q"], t["k"], t["v"], t["o"], cu, 0, SCALE)
    launched = only_launch(cuda)
    row, params = decode(loaded, cuda, launched)
    assert row.variant == "fmha_v2_d128" and launched.device == 0
    assert sorted(launched.grid) == grid_of(row, SQ, HQ, B)
    assert (launched.block, launched.smem_bytes, launched.stream) == (row.plan.block, row.smem_bytes, 0)
    expected = {**{name: tensor.pointer for name, tensor in t.items()}, "cu_kv_seqlens": cu.pointer, "seqlen_q": SQ, "seqlen_kv": SK,
                "num_q_heads": HQ, "num_kv_heads": HKV, "q_stride_batch": SQ * HQ * D, "q_stride_seq": HQ * D,
                "o_stride_batch": SQ * HQ * D, "o_stride_seq": HQ * D, "k_stride_batch": SK * HKV * D, "k_stride_seq": HKV * D,
                "v_stride_batch": SK * HKV * D, "v_stride_seq": HKV * D, "scale_log2": struct.unpack("<f", SCALE_LOG2)[0],
                **by_maps(row, batch=B, q_dims=[D, SQ, HQ, B], k_dims=[D, SK, HKV, B], v_dims=[D, SK, HKV, B])}
    assert params == expected


@pytest.mark.parametrize("dim, seqlen_q, batch, hopper", [(D, 1, 1, HQ), (D, 129, 1, 2 * HQ), (D, 1024, 4, 132), (D, 4097, 3, 132),
                                                         (64, 257, 1, 5 * HQ), (64, 512, 8, 3 * 132)])
def test_a_block_per_tile_or_what_the_sms_hold(loaded, cuda, dim, seqlen_q, batch, hopper):
    addresses = [cuda.allocate(1 << 30) for _ in range(5)]
    loaded.runner(HQ, HKV, dim, batch, seqlen_q, seqlen_q).run(*addresses, 0, SCALE)
    row, _ = decode(loaded, cuda, only_launch(cuda))
    assert row.variant == {D: "fmha_v2_d128", 64: "fmha_v2_d64_small"}[dim]
    assert sorted(cuda.launches[0].grid) == grid_of(row, seqlen_q, HQ, batch)
    assert cuda.sms == (86,) or cuda.launches[0].grid == (hopper, 1, 1)


def test_bare_addresses_launch_the_same(loaded, cuda):
    t, cu = dense(cuda), lengths(cuda)
    loaded.runner(HQ, HKV, D).run(t["q"], t["k"], t["v"], t["o"], cu, 0, SCALE)
    loaded.runner(HQ, HKV, D, B, SQ, SK).run(*(t[name].pointer for name in "qkvo"), cu.pointer, 0, SCALE)
    assert told(cuda, cuda.launches[0]) == told(cuda, cuda.launches[1])


def test_strides_are_honoured(loaded, cuda):
    packed_qkv = (SQ * 3 * HQ * D, 3 * HQ * D, D, 1)
    t = dense(cuda, q=packed_qkv, k=(0, HKV * D, D, 1), o=(SQ * HQ * D * 2, HQ * D, D, 1))
    loaded.runner(HQ, HKV, D).run(t["q"], t["k"], t["v"], t["o"], lengths(cuda), 0, SCALE)
    _, params = decode(loaded, cuda, only_launch(cuda))
    assert (params["q_stride_batch"], params["q_stride_seq"]) == packed_qkv[:2]
    assert (params["k_stride_batch"], params["k_stride_seq"]) == (0, HKV * D)
    assert params["o_stride_batch"] == 2 * SQ * HQ * D


def test_strides_past_32_bits(loaded, cuda):
    huge = (1 << 33, HQ * D, D, 1)
    t = dense(cuda, q=huge)
    loaded.runner(HQ, HKV, D).run(t["q"], t["k"], t["v"], t["o"], lengths(cuda), 0, SCALE)
    assert decode(loaded, cuda, only_launch(cuda))[1]["q_stride_batch"] == 1 << 33


@pytest.mark.parametrize("window, variant, left", [
    (INT_MAX, "fmha_v2_d128", None), (INT_MAX - 1, "fmha_v2_d128_sw", 1 << 30), (1 << 30, "fmha_v2_d128_sw", 1 << 30),
    (4096, "fmha_v2_d128_sw", 4096), (0, "fmha_v2_d128_sw", 0), (-1, "fmha_v2_d128_sw", -1), (-(1 << 31), "fmha_v2_d128_sw", -1)])
def test_windows(loaded, cuda, window, variant, left):
    t = dense(cuda)
    loaded.runner(HQ, HKV, D).run(t["q"], t["k"], t["v"], t["o"], lengths(cuda), 0, SCALE, window)
    row, params = decode(loaded, cuda, only_launch(cuda))
    assert row.variant == variant and params.get("window_size_left") == left


@pytest.mark.parametrize("seqlen_q, use_small, variant", [(512, True, "fmha_v2_d64_small"), (513, True, "fmha_v2_d64"),
                                                          (512, False, "fmha_v2_d64")])
def test_run_selects_by_rule(loaded, cuda, seqlen_q, use_small, variant):
    runner = loaded.runner(HQ, HKV, 64, 1, seqlen_q, seqlen_q, use_small_d64=use_small)
    addresses = [cuda.allocate(2 * seqlen_q * HQ * 64) for _ in "qkvo"]
    assert runner.preflight_llm(0).variants == (variant,)
    runner.run(*addresses, cuda.allocate(8), 0, SCALE)
    assert decode(loaded, cuda, only_launch(cuda))[0].variant == variant


def paged(cuda, pool_shape=(2, PAGES // 2, 128, HKV, D), **pool):
    return {"q": FakeTensor(cuda, (B, SQ, HQ, D)), "pool": FakeTensor(cuda, pool_shape, **pool),
            "pages": FakeTensor(cuda, (B, 2, MAX_PAGES), "<i4"), "o": FakeTensor(cuda, (B, SQ, HQ, D)), "cu_q": lengths(cuda),
            "cu_kv": lengths(cuda)}


@pytest.mark.parametrize("shape", [(2, PAGES // 2, 128, HKV, D), (PAGES, 128, HKV, D)])
def test_paged(loaded, cuda, shape):
    t = paged(cuda, shape)
    loaded.runner(HQ, HKV, D).run_paged(*t.values(), PAGES, MAX_PAGES, 128, 0, SCALE)
    row, params = decode(loaded, cuda, only_launch(cuda))
    assert row.variant == "fmha_v2_d128_paged"
    assert (params["kv_pool"], params["page_list"]) == (t["pool"].pointer, t["pages"].pointer)
    assert params["max_pages"] == MAX_PAGES and sorted(cuda.launches[0].grid) == grid_of(row, SQ, HQ, B)
    for name, dims in by_maps(row, q_dims=[D, SQ, HQ, B], kv_pool_dims=[D, 128, HKV, PAGES]).items():
        assert params[name] == dims
    assert (params["pool_stride_page"], params["pool_stride_token"], params["pool_stride_head"]) == (128 * HKV * D, HKV * D, D)
    assert (params["page_list_stride_batch"], params["page_list_stride_plane"]) == (2 * MAX_PAGES, MAX_PAGES)


def test_paged_sizes_may_be_left_out_or_bare(loaded, cuda):
    t = paged(cuda)
    loaded.runner(HQ, HKV, D).run_paged(*t.values(), stream=0, attention_scale=SCALE, sliding_window_size=7)
    runner = loaded.runner(HQ, HKV, D, B, SQ, MAX_PAGES * 128)
    runner.run_paged(*(tensor.pointer for tensor in t.values()), PAGES, MAX_PAGES, 128, 0, SCALE, 7)
    assert told(cuda, cuda.launches[0]) == told(cuda, cuda.launches[1])
    assert decode(loaded, cuda, cuda.launches[0])[0].variant == "fmha_v2_d128_sw_paged"


def test_a_pool_by_heads_first(loaded, cuda):
    t = paged(cuda, (PAGES, 128, HKV, D), strides=(HKV * 128 * D, D, 128 * D, 1))
    loaded.runner(HQ, HKV, D).run_paged(*t.values(), stream=0, attention_scale=SCALE)
    _, params = decode(loaded, cuda, only_launch(cuda))
    assert (params["pool_stride_token"], params["pool_stride_head"]) == (D, 128 * D)


def test_paged_ragged(loaded, cuda):
    t = {**paged(cuda), "q": FakeTensor(cuda, (150, HQ, D)), "o": FakeTensor(cuda, (150, HQ, D))}
    runner = loaded.runner(HQ, HKV, D, B)
    runner.run_paged_ragged(*t.values(), 150, 90, PAGES, MAX_PAGES, 128, 0, SCALE)
    runner.run_paged_ragged(*t.values(), stream=0, attention_scale=SCALE)
    row, params = decode(loaded, cuda, cuda.launches[0])
    assert row.variant == "fmha_v2_d128_paged_ragged" and params["q_stride_seq"] == HQ * D
    assert [sorted(launched.grid) for launched in cuda.launches] == [grid_of(row, rows, HQ, B) for rows in (90, 150)]
    assert params["kv_pool"] == t["pool"].pointer and params["q"] == t["q"].pointer
    for name, dims in by_maps(row, q_dims=[D, 150, HQ], kv_pool_dims=[D, 128, HKV, PAGES]).items():
        assert params[name] == dims


def test_padding(loaded, cuda):
    t, cu_q, cu_kv = dense(cuda, 256), lengths(cuda), lengths(cuda)
    loaded.runner(HQ, HKV, 256).run_padding(*t.values(), cu_q, cu_kv, 0, SCALE)
    row, params = decode(loaded, cuda, only_launch(cuda))
    assert row.variant == "fmha_v2_d256_padding"
    assert (params["cu_q_seqlens"], params["cu_kv_seqlens"]) == (cu_q.pointer, cu_kv.pointer)
    assert {name: params[name] for name in "qkvo"} == {name: tensor.pointer for name, tensor in t.items()}


@pytest.mark.parametrize("window, left", [(INT_MAX, 1 << 30), (-1, 1 << 30), (0, 0), (1023, 1023)])
def test_vision_block(loaded, cuda, window, left):
    t, begin, end = dense(cuda, 512), FakeTensor(cuda, (B, SQ), "<i4"), FakeTensor(cuda, (B, SQ), "<i4")
    loaded.runner(HQ, HKV, 512).run_vision_block(*t.values(), lengths(cuda), begin, end, 0, SCALE, window)
    row, params = decode(loaded, cuda, only_launch(cuda))
    assert row.variant == "fmha_v2_d512_bidirectional"
    assert (params["block_begin"], params["block_end"], params["block_stride_batch"]) == (begin.pointer, end.pointer, SQ)
    assert params["window_size_left"] == left and (params["q"], params["v"]) == (t["q"].pointer, t["v"].pointer)


@pytest.mark.parametrize("dim", [64, 72, 80, 96, 128])
def test_vit(loaded, cuda, dim):
    t = {name: FakeTensor(cuda, (500, HQ if name in "qo" else HKV, dim)) for name in "qkvo"}
    cu = lengths(cuda, 4)
    runner = loaded.runner(HQ, HKV, dim)
    runner.run_vit(*t.values(), cu, 500, 200, 4, 0, SCALE)
    runner.run_vit(*t.values(), cu, max_seqlen=200, stream=0, attention_scale=SCALE)
    assert told(cuda, cuda.launches[0]) == told(cuda, cuda.launches[1])
    row, params = decode(loaded, cuda, cuda.launches[0])
    assert row.variant == f"fmha_v2_vit_d{dim}" and params["v_stride_seq"] == HKV * dim
    assert sorted(cuda.launches[0].grid) == grid_of(row, 200, HQ, 4)
    assert {name: params[name] for name in "qkvo"} == {name: tensor.pointer for name, tensor in t.items()}
    for name, dims in by_maps(row, q_dims=[dim, 500, HQ], k_dims=[dim, 500, HKV], v_dims=[dim, 500, HKV]).items():
        assert params[name] == dims


def test_nothing_to_do_launches_nothing(loaded, cuda):
    empty = {name: FakeTensor(cuda, (0, SQ, HQ if name in "qo" else HKV, D)) for name in "qkvo"}
    loaded.runner(HQ, HKV, D).run(*empty.values(), lengths(cuda, 0), 0, SCALE)
    assert cuda.launches == []


def test_no_keys_at_all(loaded, cuda):
    t = dense(cuda, sk=0)
    assert t["k"].pointer == 0
    loaded.runner(HQ, HKV, D).run(*t.values(), lengths(cuda), 0, SCALE)
    row, params = decode(loaded, cuda, only_launch(cuda))
    assert params["seqlen_kv"] == 0 and params["k"] == params["v"] == t["o"].pointer
    for name, dims in by_maps(row, k_dims=[D, 1, HKV, B], v_dims=[D, 1, HKV, B]).items():
        assert params[name] == dims  # a map has no empty extents; none of it is read


def test_scale_is_rounded_once(loaded, cuda):
    t = dense(cuda)
    for scale in (1 / math.sqrt(D), 0.37, 1.0):
        loaded.runner(HQ, HKV, D).run(*t.values(), lengths(cuda), 0, scale)
        index = [param.name for param in decode(loaded, cuda, cuda.launches[-1])[0].plan.params].index("scale_log2")
        assert cuda.launches[-1].params[index] == struct.pack("<f", scale * math.log2(math.e))


def test_tensor_maps_and_clusters(tmp_path, manifest):
    """A plan with tensor maps, an expression, a cluster and parameters that need padding."""
    path = make_bundle(tmp_path, manifest, sms=[90], variants=["fmha_v2_d128"])
    spec = {"base": "k", "dtype": "float16", "dims": ["128", "seqlen_kv", "num_kv_heads", "batch"],
            "strides_bytes": ["2 * k_stride_seq", "256", "2 * k_stride_batch"], "box": [64, 128, 1, 1], "swizzle": 128,
            "l2_promotion": 256}

    def change(document):
        plan = document["rows"][0]["plan"]
        plan["params"] = [{"name": "seqlen_q", "type": "i32", "value": "seqlen_q"}, {"name": "k_map", "type": "tensormap", "map": spec},
                          {"name": "tiles", "type": "i32", "value": "min(sm_count, ceil_div(seqlen_q, 64) * num_q_heads)"},
                          {"name": "q", "type": "ptr", "value": "q"}]
        plan["grid"], plan["cluster"] = ["min(sm_count, 2 * num_q_heads * batch)", "1", "1"], [2, 1, 1]
    rewrite_metadata(path, change)
    cuda = FakeCuda(90)
    bundle = fmhaforge.open(path, driver=Driver(cuda))
    t = dense(cuda)
    runner = bundle.runner(HQ, HKV, D)
    runner.preflight_llm(0)
    symbol = bundle.metadata.rows[0].symbol
    for handle in cuda.kernels:
        cuda.kernels[handle] = (symbol, [4, 128, 4, 8])
    runner.run(*t.values(), lengths(cuda), 0, SCALE)
    launched = only_launch(cuda)
    assert (launched.grid, launched.cluster) == ((32, 1, 1), (2, 1, 1))
    assert told(cuda, launched).params == [struct.pack("<i", SQ), cuda.maps[0], struct.pack("<i", 16), struct.pack("<Q", t["q"].pointer)]
    assert bundle.loader.loaded()[0].plan.offsets == (0, 64, 192, 200)
    assert cuda.maps == [{"dtype": "CU_TENSOR_MAP_DATA_TYPE_FLOAT16", "address": t["k"].pointer, "dims": [128, SK, HKV, B],
                          "box": [64, 128, 1, 1], "strides": [2 * HKV * D, 256, 2 * SK * HKV * D],
                          "swizzle": "CU_TENSOR_MAP_SWIZZLE_128B", "promotion": "CU_TENSOR_MAP_L2_PROMOTION_L2_256B",
                          "rest": ([1, 1, 1, 1], 0, 0)}]
    runner.run(*t.values(), lengths(cuda), 0, SCALE)
    assert len(cuda.maps) == 1 and cuda.launches[1].params == launched.params  # encoded once for an address
    other = dense(cuda)
    runner.run(t["q"], other["k"], t["v"], t["o"], lengths(cuda), 0, SCALE)
    assert cuda.maps[1:] == [told(cuda, cuda.launches[2]).params[1]] == [{**cuda.maps[0], "address": other["k"].pointer}]
    cuda.fail["cuTensorMapEncodeTiled"] = cuda.CUresult.CUDA_ERROR_INVALID_VALUE
    with pytest.raises(DriverError, match=r"cuTensorMapEncodeTiled.*INVALID_VALUE.*dims \[128, 300, 2, 2\]"):
        runner.run(t["q"], dense(cuda)["k"], t["v"], t["o"], lengths(cuda), 0, SCALE)
