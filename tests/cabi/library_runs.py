# SPDX-License-Identifier: Apache-2.0
"""Runs through the C library from the Python runtime, over a fake driver for Python and the stub driver for the library."""

import ctypes
import time

import fmhaforge
from arguments import MAP_BASE, encoded_map
from fake_cuda import FakeCuda, FakeTensor
from fmhaforge.driver import Driver
from fmhaforge.clib import library_file
from fmhaforge.launch import compiled
from stub import Stub, fresh_library

B, SQ, SK, HQ, HKV, D = 2, 100, 300, 8, 2, 128
SCALE = 0.125


class StubLikeCuda(FakeCuda):
    """Encodes tensor maps as the stub driver does, so that both give the same bytes."""

    def _encode_tiled(self, place, dtype, rank, address, dims, strides, box, element_strides, interleave, swizzle, promotion, fill):
        status = super()._encode_tiled(place, dtype, rank, address, dims, strides, box, element_strides, interleave, swizzle, promotion, fill)
        made = self.maps[-1]
        ctypes.memmove(place, encoded_map(dtype, address, made["dims"], made["strides"], made["box"], swizzle, promotion), 128)
        return status


def _inputs(cuda):
    q, k, v, o = (FakeTensor(cuda, (B, seqlen, heads, D)) for seqlen, heads in ((SQ, HQ), (SK, HKV), (SK, HKV), (SQ, HQ)))
    return q, k, v, o, FakeTensor(cuda, (B + 1,), "<i4")


def _opened(stub_path, bundle, sm=90):
    cuda = StubLikeCuda(sm)
    opened = fmhaforge.open(bundle, driver=Driver(cuda))
    opened._library = fresh_library(bundle / library_file())
    return Stub(stub_path, sm), cuda, opened


def both_paths(stub_path, bundle_path, sm):
    """The same call through cuda.bindings and through the library: two launches as (symbol, grid, block, smem, params)."""
    stub, cuda, bundle = _opened(stub_path, bundle_path, sm)
    inputs = _inputs(cuda)
    bundle.runner(HQ, HKV, D).run(*inputs, 0, SCALE)
    bundle.runner(HQ, HKV, D, library=True).run(*inputs, 0, SCALE)
    python, = cuda.launches
    library, = stub.launches()
    return ((python.symbol, python.grid, python.block, python.smem_bytes, b"".join(python.params)),
            (library.symbol.split("@")[0], library.grid, library.block, library.smem_bytes, library.params))


def _place_of_q(plan):
    """Where the address of q stands in the parameters of a plan: by itself, or in its tensor map."""
    for param, offset in zip(plan.params, compiled(plan).offsets):
        if param.map is not None and param.map.base == "q":
            return offset + MAP_BASE
        if param.value == "q":
            return offset
    raise AssertionError("no parameter holds q")


def prepared(stub_path, bundle_path, sm):
    """Prepare, launch three times with a changed address: counts before, parameters and where q stands in them, a refusal, seconds of a
    call, and what an empty call gives."""
    stub, cuda, bundle = _opened(stub_path, bundle_path, sm)
    runner, inputs = bundle.runner(HQ, HKV, D, library=True), _inputs(cuda)
    launch = runner.prepare("run", *inputs, 0, SCALE)
    before = stub.dll.stub_launch_count(), stub.calls("cuLibraryLoadData")
    launch()
    launch.args.q += 256
    launch()
    launch.args.q -= 256
    launch()
    launches = [found.params for found in stub.launches()]
    launch.args.q += 1
    try:
        launch()
        refused = ""
    except fmhaforge.clib.CLibraryError as error:
        refused = error.reason
    launch.args.q -= 1
    begin = time.perf_counter()
    for _ in range(2000):
        launch()
    seconds = (time.perf_counter() - begin) / 2000
    empty = tuple(FakeTensor(cuda, (0, *tensor.shape[1:])) for tensor in inputs[:4]) + (FakeTensor(cuda, (1,), "<i4"),)
    return before, launches, _place_of_q(launch.row.plan), refused, seconds, runner.prepare("run", *empty, 0, SCALE)


def captured(stub_path, bundle_path):
    """A first load while the stream captures, then preflight: what each gives."""
    stub, cuda, bundle = _opened(stub_path, bundle_path)
    runner, inputs, stream = bundle.runner(HQ, HKV, D, library=True), _inputs(cuda), stub.dll.stub_new_stream(0)
    cuda.streams[stream] = 100  # the primary context of device 0
    stub.dll.stub_set_capturing(stream, 1)
    try:
        runner.run(*inputs, stream, SCALE)
        first = ""
    except fmhaforge.CaptureError as error:
        first = str(error)
    stub.dll.stub_set_capturing(stream, 0)
    runner.preflight_llm(stream)
    stub.dll.stub_set_capturing(stream, 1)
    runner.run(*inputs, stream, SCALE)
    return first, stub.dll.stub_launch_count(), stub.calls("cuLibraryLoadData")
