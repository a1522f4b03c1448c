# SPDX-License-Identifier: Apache-2.0
"""What a launch costs the host: ours by every road, the driver's own call, and torch's attention, in one run; a table, and JSON.

    python bench/launch.py [--bundle DIR] [--rounds N] [--out FILE]

The shape is small, so that the device never holds the host up; each round enqueues a batch of launches and then waits for the device
outside the measured time. The roads take turns, round by round. "C launch over driver" is the difference of the two foreign calls that
differ in nothing else: fmhaforge_launch_llm and cuLaunchKernel, both through ctypes.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "runtime"), str(ROOT)]

HEADS, KV_HEADS, HEAD_DIM, SEQLEN = 8, 8, 128, 64
BATCH = 200
"""Launches per round: fewer than the driver queues before it makes the host wait."""


def driver_call(bundle, launch, torch) -> Callable[[], object]:
    """cuLaunchKernel by ctypes, with the very parameters that `launch` gives it, tensor maps included. Raises ValueError for a plan that needs more."""
    plan = launch.row.plan
    if plan.cluster != (1, 1, 1):
        raise ValueError("the row launches with a cluster")
    from fmhaforge.launch import compiled

    driver, made = bundle.driver, compiled(plan)
    kernel = next(kernel for kernel in bundle.loader.loaded() if kernel.row == launch.row)
    values = {name: getattr(launch.args, name) for name in bundle.metadata.operations[launch.row.operation].arguments}
    evaluated = made.evaluate({**values, "sm_count": kernel.sm_count}, driver)
    buffer = ctypes.create_string_buffer(evaluated.parameters, len(evaluated.parameters))
    pointers = (ctypes.c_void_p * len(made.offsets))(*[ctypes.addressof(buffer) + offset for offset in made.offsets])
    function = ctypes.CDLL("libcuda.so.1").cuLaunchKernel
    function.argtypes = (ctypes.c_void_p, *[ctypes.c_uint] * 7, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
    arguments = (kernel.handle, *evaluated.grid, *plan.block, plan.smem_bytes, launch.stream, ctypes.addressof(pointers), None)

    def call(_kept=(buffer, pointers)):
        return function(*arguments)
    if call() != 0:
        raise RuntimeError("cuLaunchKernel failed")
    torch.cuda.synchronize()
    return call


def roads(torch, bundle) -> dict[str, Callable[[], object]]:
    """Name -> a function that enqueues one launch of the same attention."""
    q, k, v = (torch.randn(1, SEQLEN, heads, HEAD_DIM, dtype=torch.float16, device="cuda") for heads in (HEADS, KV_HEADS, KV_HEADS))
    o, lengths = torch.empty_like(q), torch.tensor([0, SEQLEN], dtype=torch.int32, device="cuda")
    stream, scale = torch.cuda.current_stream().cuda_stream, HEAD_DIM**-0.5
    sizes = (HEADS, KV_HEADS, HEAD_DIM, 1, SEQLEN, SEQLEN)
    plain, library = bundle.runner(*sizes), bundle.runner(*sizes, library=True)
    tensors = (q, k, v, o, lengths, stream, scale)
    addresses = (*(tensor.data_ptr() for tensor in (q, k, v, o, lengths)), stream, scale)
    plain.run(*tensors)
    prepared = library.prepare("run", *tensors)
    entry, handle, args = bundle.library.launcher("llm"), prepared._handle, ctypes.addressof(prepared.args)
    heads_first = [tensor.transpose(1, 2) for tensor in (q, k, v)]

    def sdpa():
        return torch.nn.functional.scaled_dot_product_attention(*heads_first, is_causal=True, scale=scale)
    found = {
        "prepared launch": prepared,
        "C launch by ctypes": lambda: entry(handle, args, stream),
        "runner.run, C library, tensors": lambda: library.run(*tensors),
        "runner.run, C library, addresses": lambda: library.run(*addresses),
        "runner.run, cuda.bindings, tensors": lambda: plain.run(*tensors),
        "torch SDPA": sdpa,
    }
    try:
        found["cuLaunchKernel by ctypes"] = driver_call(bundle, prepared, torch)
    except ValueError as error:
        print(f"no bare driver call: {error}", file=sys.stderr)
    return found


def measure(torch, functions: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Microseconds of host time per launch: the median over the rounds."""
    samples: dict[str, list[float]] = {name: [] for name in functions}
    for number in range(rounds + 2):
        for name, function in functions.items():
            torch.cuda.synchronize()
            begin = time.perf_counter_ns()
            for _ in range(BATCH):
                function()
            taken = time.perf_counter_ns() - begin
            if number >= 2:
                samples[name].append(taken / BATCH / 1000)
    torch.cuda.synchronize()
    return {name: statistics.median(times) for name, times in samples.items()}


def main() -> int:
    """Prints the table; exit status 0, or 2 when there is nothing to measure on."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bundle", type=Path, help="bundle folder (default: the newest in dist/)")
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--out", type=Path, help="write the numbers as JSON")
    options = parser.parse_args()
    try:
        import torch
    except ImportError:
        print("torch is not installed here", file=sys.stderr)
        return 2
    if not torch.cuda.is_available():
        print("torch sees no CUDA device here", file=sys.stderr)
        return 2
    import fmhaforge

    built = sorted((ROOT / "dist").glob("fmhaforge-*/metadata.json"), key=lambda path: path.stat().st_mtime)
    if options.bundle is None and not built:
        print("no bundle: run `make bundle` or give --bundle", file=sys.stderr)
        return 2
    bundle = fmhaforge.open(options.bundle or built[-1].parent)
    times = measure(torch, roads(torch, bundle), options.rounds)
    if "cuLaunchKernel by ctypes" in times:
        times["C launch over driver"] = times["C launch by ctypes"] - times["cuLaunchKernel by ctypes"]
    print(f"host microseconds per launch, {torch.cuda.get_device_name()}, {BATCH} launches x {options.rounds} rounds")
    for name, microseconds in sorted(times.items(), key=lambda item: item[1]):
        print(f"  {name:38} {microseconds:8.2f}")
    if options.out:
        record = {"device": torch.cuda.get_device_name(), "launches": BATCH, "rounds": options.rounds, "microseconds": times}
        options.out.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
