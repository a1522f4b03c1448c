# SPDX-License-Identifier: Apache-2.0
"""The kernel benchmark's table and its choice of launches, on made-up timings."""

import pytest

from bench.kernel_cases import CASES
from bench.kernels import ASSUMED_FLOPS, TARGET_SECONDS, _record, launches_for, table
from bench.timing import Timing


def named(name):
    return next(case for case in CASES if case.name == name)


def record(case, **microseconds):
    timings = {
        (case.name if label.startswith("ours") else "", label): Timing(value, value - 1, value + 1, True)
        for label, value in microseconds.items()
    }
    refusals = {("", "flash"): "RuntimeError: no kernel", ("", "cudnn"): "RuntimeError: no kernel"}
    return _record(case, ["ours"], timings, refusals)


def test_speed_is_work_over_time():
    case = named("d128 causal 8x2048 32/8")
    result = record(case, ours=1000.0)["results"]
    assert result["ours"] == {
        "median_us": 1000.0, "fastest_us": 999.0, "slowest_us": 1001.0, "graph": True,
        "tflops": pytest.approx(case.flops / 1e-3 / 1e12, abs=0.05),
    }
    assert result["flash"] == {"refused": "RuntimeError: no kernel"}


def test_table_gives_ratios_within_the_run():
    dense, paged = named("d128 causal 8x2048 32/8"), named("d128 causal 8x2048 32/8 paged")
    lines = table([record(dense, ours=1000.0, flash=900.0, cudnn=500.0), record(paged, ours=1250.0)], ["ours"])
    assert lines[0].split() == ["TFLOP/s", "ours", "flash", "cudnn", "/flash", "/cudnn", "/dense", "peer/fl", "floor"]
    assert lines[1].split()[-8:] == ["274.9", "305.4", "549.8", "0.90", "0.50", "-", "0.95", "484"]
    assert lines[2].split()[-8:] == ["219.9", "-", "-", "-", "-", "0.80", "-", "480"]
    assert len({len(line) for line in lines}) == 1


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_launches_fill_a_graph_without_lasting_long(case):
    for sets in (2, 5, 32):
        launches = launches_for(case, sets)
        assert 2 <= launches <= 64
        seconds = launches * case.flops / ASSUMED_FLOPS
        assert launches == 2 or seconds <= 2 * TARGET_SECONDS
        assert launches < sets or launches % sets == 0 or launches == 64
