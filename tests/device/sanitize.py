# SPDX-License-Identifier: Apache-2.0
"""One small case of every variant in one process, for compute-sanitizer (see sanitize.sh). Needs no torch. Checked variants also run
with every fault planted: nothing wild may be read or written then.

Every array is an allocation of its own with exactly the bytes that its tensor spans, so one element too far is out of bounds,
and everything is uploaded from the host, so that no other kernel runs.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "runtime"), str(ROOT)]

import fmhaforge  # noqa: E402
from tests.device import faults, launch  # noqa: E402
from tests.device.backends import NumpyBackend  # noqa: E402
from tests.device.named import case  # noqa: E402
from tests.device.problem import compose, expect, judge  # noqa: E402
from tests.device.subjects import read_metadata, subjects  # noqa: E402

STREAM = 0


class DeviceArray:
    """A copy of a host view in device memory, with the view's strides."""

    def __init__(self, driver, flat, view):
        self.size = flat.nbytes
        self.address = driver.allocate(max(self.size, 1))
        driver.upload(self.address, flat.tobytes())
        self.__cuda_array_interface__ = {
            "shape": view.shape, "strides": view.strides, "typestr": view.dtype.str, "data": (self.address, False), "version": 3,
        }

    def __len__(self):
        return self.__cuda_array_interface__["shape"][0]


def sanitary_case(subject):
    """Two sequences that end inside a tile, the second one with more keys than fit one tile."""
    m, n = subject.tile_m, subject.tile_n
    q_lens = (m + 2, 5) if subject.own_q_lengths else (m + 2,) * 2
    kv_lens = q_lens if subject.operation == "vit" else (n - 1, 2 * n + 3)
    window = n // 2 if subject.sliding else None
    return case(
        subject, "sanitize", q_lens, kv_lens, num_q_heads=2, num_kv_heads=1, window=window, row_gap=8,
        batch_gap=16, extra_rows=3 * subject.packed,
    )


def run(bundle, made, route, fault=None):
    """Runs `made` on the device, with a planted fault if one is given, and returns what is wrong with the result."""
    backend, driver = NumpyBackend(), bundle.driver
    problem = compose(made, backend, guard=0)
    expect(problem)
    report = fault and fault.plant(problem)
    arrays, parts = [], [problem.o, *problem.inputs]
    hosts = [(part.flat, part.view) for part in parts]
    for part, (flat, view) in zip(parts, hosts):
        part.view = DeviceArray(driver, flat, view)
        arrays.append(part.view)
    for name in ("cu_q", "cu_kv", "page_list", "block_begin", "block_end"):
        values = getattr(problem, name)
        if values is not None:
            arrays.append(DeviceArray(driver, values, values))
            setattr(problem, name, arrays[-1])
    runner = launch.runner_for(bundle, made, route)
    found = faults.reported_by(lambda: launch.launch(runner, problem, STREAM))
    driver.synchronise()
    for part, (flat, view) in zip(parts, hosts):
        flat[...] = np.frombuffer(driver.download(part.view.address, part.view.size), flat.dtype)
        part.view = view
    for array in arrays:
        driver.free(array.address)
    if fault is None:
        return (() if found is None else (f"reports {found}",)) + judge(problem).faults
    return faults.findings(problem, fault.rows, report, found)


def run_all(bundle, subject, route):
    """Yields (what ran, what is wrong with it) for the case of a subject and for its faults."""
    yield subject.name, run(bundle, sanitary_case(subject), route)
    for fault in faults.faults(subject) if subject.checked else ():
        yield f"{subject.name} {fault.name}", run(bundle, faults.faulty_case(subject, fault), route, fault)


def main():
    """Prints one line per launch; exits with 1 if any result is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bundle", required=True)
    parser.add_argument("--variant", default="*")
    parser.add_argument("--family", default="*")
    parser.add_argument("--route", default="cubin")
    options = parser.parse_args()
    bundle = fmhaforge.open(options.bundle)
    bad = 0
    with bundle.driver.context_of(0):
        for subject in subjects(read_metadata(options.bundle), bundle.driver.sm(0), options.variant, options.family):
            if options.route in subject.routes:
                for name, wrong in run_all(bundle, subject, options.route):
                    bad += bool(wrong)
                    print(f"{name:34} {'; '.join(wrong) or 'right'}", flush=True)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
