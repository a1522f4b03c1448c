# SPDX-License-Identifier: Apache-2.0
"""The runtime over the real cuda.bindings and a stub libcuda.so.1: every driver call, and what reaches the driver."""

import os
import subprocess
import sys
from pathlib import Path

import fmhaforge
import pytest
from fake_bundle import make_bundle
from fmhaforge import expr

HERE = Path(__file__).resolve().parent

CALLS = """
import sys
import fmhaforge
from fmhaforge.driver import Driver

driver = Driver()
print(driver.version(), driver.device_count(), driver.device_name(0), driver.sm(0))
bundle = fmhaforge.open(sys.argv[1])
runner = bundle.runner(8, 2, 64, 2, 100, 100)
print(*runner.preflight_llm(0).variants)
addresses = [0x1000000, 0x2000000, 0x3000000, 0x4000000, 0x5000000]
runner.run(*addresses, 0x77, 0.125)
runner.run(*addresses, 0, 0.125)
bundle.runner(8, 2, 64, 2, 100, 100, route="driver-ptx").preflight_llm(0)
for call in (lambda: runner.run(0xbad0, *addresses[1:], 0x77, 0.125), lambda: driver.load_library(b"bad PTX", jit=True)):
    try:
        call()
    except fmhaforge.FmhaForgeError as error:
        print(type(error).__name__, error)
print(driver.tensor_map("float16", 0x1000, (64, 100), (128,), (64, 32), 128, 256) == b"m" * 128)
driver.launch(0x300, (3, 2, 1), (128, 1, 1), (2, 1, 1), 1000, 0x77, b"\\1" * 8 + b"\\2" * 8, (0, 8))
address = driver.allocate(4)
print(driver.allocation(address) == 1 << 40, driver.allocation(0xbad0))
driver.upload(address, b"data")
print(driver.download(address, 4))
driver.free(address)
driver.synchronise()
bundle.unload()
"""


@pytest.fixture(scope="module")
def stub(tmp_path_factory, zig):
    """The folder of the stub libcuda.so.1."""
    folder = tmp_path_factory.mktemp("stub")
    zig.run(["cc", "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-o", str(folder / "libcuda.so.1"), str(HERE / "bindings_stub.c")],
            folder)
    return folder


@pytest.fixture(scope="module")
def bundle_path(tmp_path_factory, manifest):
    """A bundle of one row."""
    return make_bundle(tmp_path_factory.mktemp("bundle"), manifest, sms=[86], variants=["fmha_v2_d64_small"])


def test_every_call(stub, bundle_path):
    row = fmhaforge.open(bundle_path).metadata.rows[0]
    grid = " ".join(str(expr.compile(text)({"seqlen_q": 100, "num_q_heads": 8, "batch": 2})) for text in row.plan.grid)
    log = stub / "log"
    environment = {**os.environ, "STUB_LOG": str(log), "LD_LIBRARY_PATH": str(stub), "PYTHONPATH": str(HERE.parents[1] / "runtime")}
    done = subprocess.run([sys.executable, "-c", CALLS, str(bundle_path)], capture_output=True, text=True, env=environment)
    assert done.stderr == ""
    assert done.stdout.splitlines() == [
        "13000 1 Stub 0 86", "fmha_v2_d64_small", "DeviceError q: 0xbad0 is not memory that CUDA knows; give device memory",
        "DriverError cuLibraryLoadData failed: CUDA_ERROR_INVALID_PTX (218); ptxas says why", "True", "True None", "b'data'"]
    calls = [call.split(" of ")[0] + " of" if call.startswith("pointer attribute 7") else call for call in log.read_text().splitlines()]
    load = ["count 200", f"kernel {row.symbol} of 200", f"attribute 8 = {row.smem_bytes} of 300 on 0", "function of 300", "finish 400"]
    pointers = [f"pointer attribute 9 of {n}000000" for n in range(1, 6)]
    launch = f"launch 300 grid {grid} block {row.threads} 1 1 smem {row.smem_bytes} stream {{}}, first 1000000, extra 0"
    of_stream = ["context of stream 77", "push 100", "pop"]
    assert [call for call in calls if not call.startswith("init")] == [
        "retain 0", "push 100", "id of 100", "capturing 0", "load a cubin with 0 and 0 options", *load, "pop",
        *of_stream, "push 100", *pointers, "id of 100", launch.format("77"), "pop",
        "push 100", *pointers, "id of 100", launch.format("0"), "pop",
        "push 100", "id of 100", "capturing 0", "load .version with 2 and 0 options", "options 5 6, log of 8192 bytes", *load, "pop",
        *of_stream, "push 100", "pointer attribute 9 of bad0", "pop",
        "load bad PTX with 2 and 0 options", "options 5 6, log of 8192 bytes",
        "map type 6 rank 2 base 1000 dims 64 100 stride 128 box 64 32 steps 1 1 interleave 0 swizzle 3 promotion 3 fill 0 aligned 1",
        "launch 300 grid 3 2 1 block 128 1 1 smem 1000 stream 77, 1 attribute 4 cluster 2 1 1, last 202020202020202, extra 0",
        "allocate 4", "pointer attribute 7 of", "pointer attribute 7 of", "free", "synchronize", "push 100", "unload 200", "pop", "push 100", "unload 200", "pop"]

