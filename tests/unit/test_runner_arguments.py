# SPDX-License-Identifier: Apache-2.0
"""Every precondition the host can see: the error names the argument and nothing is launched."""

import math

import fmhaforge
import pytest
from fake_cuda import FakeTensor
from fmhaforge import (INT_MAX, AlignmentError, ArgumentError, DeviceError, DtypeError, ReadOnlyError, ShapeError, StrideError,
                       UnsupportedError)
from runtime_fixtures import bundle, bundle_path, cuda, loaded  # noqa: F401
from test_runner_launch import B, D, HKV, HQ, MAX_PAGES, PAGES, SCALE, SK, SQ, dense, grid_of, lengths, paged

Q_PACKED = (SQ * HQ * D, HQ * D, D, 1)


def run(loaded, cuda, **change):
    """`run` with good arguments but for `change`."""
    call = {**dense(cuda), "cu_kv_seqlens": lengths(cuda), "stream": 0, "attention_scale": SCALE, "sliding_window_size": INT_MAX}
    loaded.runner(HQ, HKV, D).run(**{**call, **change})


def refused(cuda, kind, argument, function, *arguments, **keywords):
    """Calls `function`, which must raise exactly `kind` about `argument` and launch nothing."""
    before = len(cuda.launches)
    with pytest.raises(ArgumentError) as error:
        function(*arguments, **keywords)
    assert (type(error.value), error.value.argument) == (kind, argument), error.value
    assert len(cuda.launches) == before
    assert str(error.value).startswith(f"{argument}: ")
    return str(error.value)


class Described:
    """Whatever a tensor says of itself."""

    def __init__(self, **interface):
        self.__cuda_array_interface__ = {"typestr": "<f2", "data": (1 << 40, False), "version": 3, "strides": None, **interface}


@pytest.mark.parametrize("shape", [(2**70, SQ, HQ, D), (2**63, SQ, HQ, D), (B, 2**64, HQ, D)])
def test_extents_of_more_than_64_bits(loaded, cuda, shape):
    assert "does not fit in 64 bits" in refused(cuda, ShapeError, "q", run, loaded, cuda, q=Described(shape=shape))


def test_an_extent_whose_sum_has_more_than_64_bits(loaded, cuda):
    call = {name: Described(shape=(2**63 - 1, *dense(cuda)[name].shape[1:])) for name in ("q", "k", "v", "o")}
    text = refused(cuda, ShapeError, "cu_kv_seqlens", run, loaded, cuda, **call)
    assert f"its extent batch + 1 does not fit in 64 bits (batch_size {2**63 - 1})" in text


def test_good_arguments_launch(loaded, cuda):
    run(loaded, cuda)
    assert len(cuda.launches) == 1


BAD_TENSORS = {
    "rank": ("q", ShapeError, lambda c: FakeTensor(c, (B * SQ, HQ, D))),
    "extent": ("k", ShapeError, lambda c: FakeTensor(c, (B, SK, HKV + 1, D))),
    "head_dim": ("q", ShapeError, lambda c: FakeTensor(c, (B, SQ, HQ, 64))),
    "k and v differ": ("v", ShapeError, lambda c: FakeTensor(c, (B, SK + 1, HKV, D))),
    "o": ("o", ShapeError, lambda c: FakeTensor(c, (B, SQ + 1, HQ, D))),
    "lengths": ("cu_kv_seqlens", ShapeError, lambda c: FakeTensor(c, (B,), "<i4")),
    "bfloat16-like": ("q", DtypeError, lambda c: FakeTensor(c, (B, SQ, HQ, D), "<i2")),
    "float32": ("v", DtypeError, lambda c: FakeTensor(c, (B, SK, HKV, D), "<f4")),
    "int64 lengths": ("cu_kv_seqlens", DtypeError, lambda c: FakeTensor(c, (B + 1,), "<i8")),
    "big endian": ("q", DtypeError, lambda c: FakeTensor(c, (B, SQ, HQ, D), ">f2")),
    "complex": ("q", DtypeError, lambda c: FakeTensor(c, (B, SQ, HQ, D), "<c8")),
    "inner stride": ("q", StrideError, lambda c: FakeTensor(c, (B, SQ, HQ, D), strides=tuple(2 * s for s in Q_PACKED))),
    "head stride": ("q", StrideError, lambda c: FakeTensor(c, (B, SQ, HQ, D), strides=(SQ * HQ * 256, HQ * 256, 256, 1))),
    "heads first": ("q", StrideError, lambda c: FakeTensor(c, (B, SQ, HQ, D), strides=(SQ * HQ * D, D, SQ * D, 1))),
    "length stride": ("cu_kv_seqlens", StrideError, lambda c: FakeTensor(c, (B + 1,), "<i4", strides=(2,))),
    "odd stride": ("k", AlignmentError, lambda c: FakeTensor(c, (B, SK, HKV, D), strides=(SK * 260, 260, D, 1))),
    "odd address": ("q", AlignmentError, lambda c: FakeTensor(c, (B, SQ, HQ, D), offset=8)),
    "odd output": ("o", AlignmentError, lambda c: FakeTensor(c, (B, SQ, HQ, D), offset=2)),
    "odd lengths": ("cu_kv_seqlens", AlignmentError, lambda c: FakeTensor(c, (B + 1,), "<i4", offset=2)),
    "broadcast output": ("o", StrideError, lambda c: FakeTensor(c, (B, SQ, HQ, D), strides=(0, HQ * D, D, 1))),
    "overlapping output": ("o", StrideError, lambda c: FakeTensor(c, (B, SQ, HQ, D), strides=(HQ * D, HQ * D, D, 1))),
    "read-only output": ("o", ReadOnlyError, lambda c: FakeTensor(c, (B, SQ, HQ, D), read_only=True)),
    "other device": ("v", DeviceError, lambda c: FakeTensor(c, (B, SK, HKV, D), device=1)),
    "none": ("q", ArgumentError, lambda c: None),
    "null": ("k", ArgumentError, lambda c: 0),
    "a list": ("k", ArgumentError, lambda c: [1.0]),
    "a bool": ("k", ArgumentError, lambda c: True),
    "negative address": ("k", ArgumentError, lambda c: -16),
    "unknown address": ("q", DeviceError, lambda c: 1 << 20),
}


@pytest.mark.parametrize("case", BAD_TENSORS)
def test_bad_tensors(loaded, cuda, case):
    argument, kind, make = BAD_TENSORS[case]
    change = {argument: make(cuda)}
    if change[argument] == 1 << 20:  # a bare q needs the runner's sizes
        t = dense(cuda)
        runner = loaded.runner(HQ, HKV, D, B, SQ, SK)
        refused(cuda, kind, argument, runner.run, 1 << 20, t["k"], t["v"], t["o"], lengths(cuda), 0, SCALE)
        return
    refused(cuda, kind, argument, run, loaded, cuda, **change)


def test_negative_strides(loaded, cuda):
    tensor = FakeTensor(cuda, (B, SQ, HQ, D))
    tensor.interface["strides"] = (-2 * SQ * HQ * D, 2 * HQ * D, 2 * D, 2)
    refused(cuda, StrideError, "q", run, loaded, cuda, q=tensor)


@pytest.mark.parametrize("name", "qkv")
def test_output_in_the_memory_of_an_input(loaded, cuda, name):
    tensors = dense(cuda)
    if name == "q":
        refused(cuda, ArgumentError, "o", run, loaded, cuda, **{**tensors, "o": tensors["q"]})
    else:
        runner = loaded.runner(HQ, HKV, D, B, SQ, SK)
        addresses = {n: t.pointer for n, t in tensors.items()}
        addresses["o"] = addresses[name] + 2 * B * SK * HKV * D - 16
        refused(cuda, ArgumentError, "o", runner.run, *addresses.values(), lengths(cuda), 0, SCALE)


@pytest.mark.parametrize("scale", [0.0, -1.0, math.nan, math.inf, -math.inf, 65537, 2.0**80, 1e30, 3.4e38, 1e300, 1e-60, 10**400, "half", None, [1.0]])
def test_bad_scales(loaded, cuda, scale):
    refused(cuda, ArgumentError, "attention_scale", run, loaded, cuda, attention_scale=scale)


def test_the_largest_scale(loaded, cuda):
    run(loaded, cuda, attention_scale=65536)
    assert len(cuda.launches) == 1
    with pytest.raises(ArgumentError, match="attention_scale: 65537.0 is above 65536, where .* overflow the softmax; use a smaller scale"):
        run(loaded, cuda, attention_scale=65537)


@pytest.mark.parametrize("window", [1 << 31, -(1 << 31) - 1, 1.5, None, True])
def test_bad_windows(loaded, cuda, window):
    refused(cuda, ArgumentError, "sliding_window_size", run, loaded, cuda, sliding_window_size=window)


class Protocol:
    def __init__(self, answer):
        self.__cuda_stream__ = answer


@pytest.mark.parametrize("stream", [None, -1, 1.5, "0", True, object(), 1 << 64, Protocol(None), Protocol((0,)), Protocol((0, None)), Protocol(lambda: 7)])
def test_bad_streams(loaded, cuda, stream):
    refused(cuda, ArgumentError, "stream", run, loaded, cuda, stream=stream)
    refused(cuda, ArgumentError, "stream", loaded.runner(HQ, HKV, D).preflight_llm, stream)


@pytest.mark.parametrize("arguments, argument", [
    ((0, 1, 128), "num_q_heads"), ((8, 0, 128), "num_kv_heads"), ((8, 3, 128), "num_q_heads"), ((4, 8, 128), "num_q_heads"),
    ((8, 8, 0), "head_dim"), ((8, 8, 128, -1), "batch_size"), ((8, 8, 128, 1, -1), "seqlen_q"), ((8, 8, 128, 1, 1, 1 << 31), "kv_seqlen"),
    ((8.0, 8, 128), "num_q_heads"), ((8, 8, "128"), "head_dim"), ((8, 8, 128, 0, 0, 0, True, -1), "device")])
def test_bad_runners(loaded, cuda, arguments, argument):
    refused(cuda, ArgumentError, argument, loaded.runner, *arguments)


@pytest.mark.parametrize("options, argument", [({"dtype": 16}, "dtype"), ({"dtype": None}, "dtype"), ({"row_sm": "80"}, "row_sm"), ({"row_sm": -1}, "row_sm")])
def test_bad_options(loaded, cuda, options, argument):
    refused(cuda, ArgumentError, argument, loaded.runner, 8, 8, 128, **options)


def test_a_pool_without_pages(loaded, cuda):
    pool = FakeTensor(cuda, (2, 0, 128, HKV, D))
    message = refused(cuda, ArgumentError, "num_flat_pages", run_paged, loaded, cuda, tensors={"pool": pool}, num_flat_pages=None)
    assert "0 is below 2" in message


def test_bad_route(loaded, cuda):
    refused(cuda, ArgumentError, "route", loaded.runner, 8, 8, 128, route="jit")


def test_device_that_does_not_exist(loaded, cuda):
    refused(cuda, ArgumentError, "device", loaded.runner(HQ, HKV, D, device=3).preflight_llm, 0)


@pytest.mark.parametrize("sizes, argument", [((0, SQ, SK), "batch_size"), ((B, 0, SK), "seqlen_q"), ((B, SQ, 0), "kv_seqlen")])
def test_bare_addresses_need_every_size(loaded, cuda, sizes, argument):
    runner = loaded.runner(HQ, HKV, D, *sizes)
    addresses = [tensor.pointer for tensor in dense(cuda).values()]
    refused(cuda, ArgumentError, argument, runner.run, *addresses, lengths(cuda).pointer, 0, SCALE)


def test_sizes_of_the_runner_must_agree_with_the_tensors(loaded, cuda):
    runner = loaded.runner(HQ, HKV, D, B + 1)
    message = refused(cuda, ShapeError, "q", runner.run, *dense(cuda).values(), lengths(cuda), 0, SCALE)
    assert f"[{B}, {SQ}, {HQ}, {D}]" in message and f"[{B + 1}, {SQ}, {HQ}, {D}]" in message


def run_paged(loaded, cuda, sizes=(), tensors=None, **change):
    call = {"num_flat_pages": PAGES, "max_pages_per_seq": MAX_PAGES, "tokens_per_page": 128, "stream": 0, "attention_scale": SCALE}
    loaded.runner(HQ, HKV, D, *sizes).run_paged(*{**paged(cuda), **(tensors or {})}.values(), **{**call, **change})


def test_paged_good(loaded, cuda):
    run_paged(loaded, cuda)
    run_paged(loaded, cuda, (B, SQ, MAX_PAGES * 128))
    assert len(cuda.launches) == 2


@pytest.mark.parametrize("change, kind, argument", [
    ({"tokens_per_page": 64}, ArgumentError, "tokens_per_page"), ({"tokens_per_page": 0}, ArgumentError, "tokens_per_page"),
    ({"num_flat_pages": 8}, ShapeError, "paged_kv_pool"), ({"num_flat_pages": -2}, ArgumentError, "num_flat_pages"),
    ({"max_pages_per_seq": 4}, ShapeError, "kv_cache_page_list"), ({"sliding_window_size": -1}, ArgumentError, "sliding_window_size"),
    ({"stream": None}, ArgumentError, "stream"), ({"attention_scale": None}, ArgumentError, "attention_scale")])
def test_bad_paged_numbers(loaded, cuda, change, kind, argument):
    refused(cuda, kind, argument, run_paged, loaded, cuda, **change)


@pytest.mark.parametrize("capacity", [MAX_PAGES * 128 + 128, MAX_PAGES * 128 + 1, 1])
def test_capacity_is_pages_times_128(loaded, cuda, capacity):
    refused(cuda, ArgumentError, "kv_seqlen", run_paged, loaded, cuda, (B, SQ, capacity))


@pytest.mark.parametrize("flat", [5, 0, 1])
def test_odd_page_counts(loaded, cuda, flat):
    bare = {"pool": cuda.allocate(1 << 20)}
    refused(cuda, ArgumentError, "num_flat_pages", run_paged, loaded, cuda, tensors=bare, num_flat_pages=flat)


@pytest.mark.parametrize("shape, strides, kind", [
    ((3, 2, 128, HKV, D), None, ShapeError), ((2, PAGES // 2, 64, HKV, D), None, ShapeError), ((PAGES, 128, HKV, 64), None, ShapeError),
    ((2, 3, 128, HKV, D), (1 << 20, 128 * HKV * D, HKV * D, D, 1), StrideError),
    ((PAGES, 128, HKV, D), (128 * HKV * D, HKV * D + 4, D, 1), AlignmentError)])
def test_bad_pools(loaded, cuda, shape, strides, kind):
    pool = FakeTensor(cuda, shape, strides=strides)
    refused(cuda, kind, "paged_kv_pool", run_paged, loaded, cuda, tensors={"pool": pool}, num_flat_pages=None)


def test_blocks_of_two_layouts(loaded, cuda):
    begin, end = FakeTensor(cuda, (B, SQ), "<i4"), FakeTensor(cuda, (B, SQ), "<i4", strides=(2 * SQ, 1))
    runner = loaded.runner(HQ, HKV, 256)
    refused(cuda, StrideError, "block_end", runner.run_vision_block, *dense(cuda, 256).values(), lengths(cuda), begin, end, 0, SCALE)


def test_more_batches_than_a_grid_takes(loaded, cuda):
    """A block per tile has the batch in the grid; a block per SM has not, so any batch is launched."""
    t = {name: FakeTensor(cuda, (65536, 1, 1, 64), device=2) for name in "qkvo"}
    runner, cu = loaded.runner(1, 1, 64, device=2), FakeTensor(cuda, (65537,), "<i4", device=2)
    message = refused(cuda, ArgumentError, "batch_size", runner.run, *t.values(), cu, 0, SCALE)
    assert "65535" in message
    t = {name: FakeTensor(cuda, (65536, 1, 1, 64)) for name in "qkvo"}
    loaded.runner(1, 1, 64).run(*t.values(), lengths(cuda, 65536), 0, SCALE)
    row = loaded.loader.loaded()[-1].row
    assert [sorted(launched.grid) for launched in cuda.launches] == [grid_of(row, 1, 1, 65536)] and row.family == "hopper"
    assert [encoded["dims"] for encoded in cuda.maps] == [[64, 1, 1, 65536]] * 3


def test_unsupported_requests(loaded, cuda):
    runner = loaded.runner(HQ, HKV, 96)
    for call in (lambda: runner.preflight_llm(0), lambda: runner.run(*dense(cuda, 96).values(), lengths(cuda), 0, SCALE)):
        with pytest.raises(UnsupportedError) as error:
            call()
        assert error.value.support.field == "head_dim" and "fmha_v2_d64" in error.value.reason
    assert cuda.launches == [] and cuda.libraries == {}


def test_streams_of_other_libraries(loaded, cuda):
    handle = cuda.stream(0)
    objects = [handle, type("Stream", (), {"cuda_stream": handle})(), type("Stream", (), {"ptr": handle})(),
               type("Stream", (), {"__cuda_stream__": lambda self: (0, handle)})(), cuda.CUstream(handle)]
    for stream in objects:
        run(loaded, cuda, stream=stream)
    assert [launched.stream for launched in cuda.launches] == [handle] * len(objects)


def test_stream_of_another_device(loaded, cuda):
    stream = cuda.stream(1)
    refused(cuda, DeviceError, "stream", loaded.runner(HQ, HKV, D, device=0).preflight_llm, stream)
    refused(cuda, DeviceError, "q", run, loaded, cuda, stream=stream)


def test_errors_are_value_errors_of_one_family():
    assert issubclass(fmhaforge.ShapeError, fmhaforge.ArgumentError) and issubclass(fmhaforge.ArgumentError, ValueError)
    assert issubclass(fmhaforge.ArgumentError, fmhaforge.FmhaForgeError)
