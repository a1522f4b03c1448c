# SPDX-License-Identifier: Apache-2.0
"""What a launch costs the host: ours by every road, the driver's own call, and torch's attention, in one run; a table, and JSON.

    python bench/launch.py [--bundle DIR] [--rounds N] [--out FILE]

The shape is small, so that the device never holds the host up; each round enqueues a batch of launches and then waits for the device
outside the measured time. The roads take turns, round by round. "C launch" and "cuLaunchKernel" are loops in C (launch_loop.c, compiled
by $CC or cc) with the same kernel and parameters; "C launch over driver" is the median of what they differ by in a round.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import operator
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "runtime"), str(ROOT)]

HEADS, KV_HEADS, HEAD_DIM, SEQLEN = 8, 8, 128, 64
BATCH = 200
"""Launches per round: fewer than the driver queues before it makes the host wait."""
WARM_UP = 2
"""Rounds that do not count."""

Road = Callable[[], int]
"""Enqueues a batch of launches; the nanoseconds of host time that it took."""


def c_loops() -> ctypes.CDLL:
    """launch_loop.c, compiled. Raises RuntimeError when there is no C compiler."""
    compiler = shlex.split(os.environ.get("CC", "cc"))
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder, "launch_loop.so")
        command = [*compiler, "-O2", "-shared", "-fPIC", "-o", str(library), str(Path(__file__).with_name("launch_loop.c"))]
        try:
            subprocess.run(command, check=True, capture_output=True, text=True)
        except (OSError, subprocess.CalledProcessError) as error:
            reason = getattr(error, "stderr", "") or error
            raise RuntimeError(f"{shlex.join(compiler)} cannot compile launch_loop.c: name a C compiler by CC ({reason})") from error
        loops = ctypes.CDLL(str(library))
    loops.time_launch.restype = loops.time_driver.restype = ctypes.c_int64
    return loops


def in_c(loop: Callable[..., int], *arguments: object) -> Road:
    """A road whose batch is enqueued by a loop in C: the nanoseconds that it took. Raises RuntimeError when a launch fails."""
    def batch() -> int:
        nanoseconds = loop(*arguments, BATCH)
        if nanoseconds < 0:
            raise RuntimeError(f"a launch failed with status {-nanoseconds}")
        return nanoseconds
    return batch


def in_python(call: Callable[[], object]) -> Road:
    """A road whose batch is enqueued by a loop in Python."""
    def batch() -> int:
        begin = time.perf_counter_ns()
        for _ in range(BATCH):
            call()
        return time.perf_counter_ns() - begin
    return batch


def driver_loop(loops: ctypes.CDLL, bundle, launch) -> Road:
    """cuLaunchKernel with the very parameters that `launch` gives it, tensor maps included. Raises ValueError for a plan that needs more."""
    plan = launch.row.plan
    if plan.cluster != (1, 1, 1):
        raise ValueError("the row launches with a cluster")
    from fmhaforge.launch import compiled

    made = compiled(plan)
    kernel = next(kernel for kernel in bundle.loader.loaded() if kernel.row == launch.row)
    values = {name: getattr(launch.args, name) for name in bundle.metadata.operations[launch.row.operation].arguments}
    evaluated = made.evaluate({**values, "sm_count": kernel.sm_count}, bundle.driver)
    buffer = ctypes.create_string_buffer(evaluated.parameters, len(evaluated.parameters))
    pointers = (ctypes.c_void_p * len(made.offsets))(*[ctypes.addressof(buffer) + offset for offset in made.offsets])
    pointers.kept = buffer
    sizes = (ctypes.c_uint * 7)(*evaluated.grid, *plan.block, plan.smem_bytes)
    call = ctypes.cast(ctypes.CDLL("libcuda.so.1").cuLaunchKernel, ctypes.c_void_p)
    return in_c(loops.time_driver, call, ctypes.c_void_p(kernel.handle), sizes, ctypes.c_void_p(launch.stream), pointers)


def roads(torch, bundle, loops: ctypes.CDLL) -> dict[str, Road]:
    """Name -> a road: what enqueues a batch of launches of the same attention."""
    q, k, v = (torch.randn(1, SEQLEN, heads, HEAD_DIM, dtype=torch.float16, device="cuda") for heads in (HEADS, KV_HEADS, KV_HEADS))
    o, lengths = torch.empty_like(q), torch.tensor([0, SEQLEN], dtype=torch.int32, device="cuda")
    stream, scale = torch.cuda.current_stream().cuda_stream, HEAD_DIM**-0.5
    sizes = (HEADS, KV_HEADS, HEAD_DIM, 1, SEQLEN, SEQLEN)
    plain, library = bundle.runner(*sizes), bundle.runner(*sizes, library=True)
    tensors = (q, k, v, o, lengths, stream, scale)
    addresses = (*(tensor.data_ptr() for tensor in (q, k, v, o, lengths)), stream, scale)
    plain.run(*tensors)
    prepared = library.prepare("run", *tensors)
    row = bundle.library.find_row(prepared.row.variant)
    entry = ctypes.cast(bundle.library.launcher("llm"), ctypes.c_void_p)
    heads_first = [tensor.transpose(1, 2) for tensor in (q, k, v)]
    found = {
        "prepared launch": in_python(prepared),
        "C launch": in_c(loops.time_launch, entry, row, ctypes.byref(prepared.args), ctypes.c_void_p(stream)),
        "runner.run, C library, tensors": in_python(lambda: library.run(*tensors)),
        "runner.run, C library, addresses": in_python(lambda: library.run(*addresses)),
        "runner.run, cuda.bindings, tensors": in_python(lambda: plain.run(*tensors)),
        "torch SDPA": in_python(lambda: torch.nn.functional.scaled_dot_product_attention(*heads_first, is_causal=True, scale=scale)),
    }
    try:
        found["cuLaunchKernel"] = driver_loop(loops, bundle, prepared)
    except ValueError as error:
        print(f"no bare driver call: {error}", file=sys.stderr)
    return found


def measure(torch, found: dict[str, Road], rounds: int) -> dict[str, list[float]]:
    """Microseconds of host time per launch, for each round."""
    samples: dict[str, list[float]] = {name: [] for name in found}
    for number in range(rounds + WARM_UP):
        for name, batch in found.items():
            torch.cuda.synchronize()
            taken = batch()
            if number >= WARM_UP:
                samples[name].append(taken / BATCH / 1000)
    torch.cuda.synchronize()
    return samples


def medians(samples: dict[str, list[float]]) -> dict[str, float]:
    """The median of each road over the rounds, and of what our C launch takes more than the driver's in a round."""
    found = {name: statistics.median(times) for name, times in samples.items()}
    if "cuLaunchKernel" in samples:
        found["C launch over driver"] = statistics.median(map(operator.sub, samples["C launch"], samples["cuLaunchKernel"]))
    return found


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
    try:
        loops = c_loops()
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return 2
    times = medians(measure(torch, roads(torch, bundle, loops), options.rounds))
    print(f"host microseconds per launch, {torch.cuda.get_device_name()}, {BATCH} launches x {options.rounds} rounds")
    for name, microseconds in sorted(times.items(), key=lambda item: item[1]):
        print(f"  {name:38} {microseconds:8.2f}")
    if options.out:
        record = {"device": torch.cuda.get_device_name(), "launches": BATCH, "rounds": options.rounds, "microseconds": times}
        options.out.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
