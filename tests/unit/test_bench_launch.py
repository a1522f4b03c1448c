# SPDX-License-Identifier: Apache-2.0
"""What bench/launch.py measures with: the loops in C, and the figures made of the samples."""

import ctypes
import shlex
import sys

import pytest

from bench import launch


@pytest.fixture(scope="module")
def loops():
    """Compiled by the compiler that the project pins, which any machine with the tests has."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CC", shlex.join([sys.executable, "-m", "ziglang", "cc"]))
        return launch.c_loops()


def test_the_loop_calls_the_library_and_counts_nanoseconds(loops):
    seen = []

    @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
    def enqueue(row, args, stream):
        seen.append((row, args, stream))
        return 0
    batch = launch.in_c(loops.time_launch, enqueue, ctypes.c_void_p(1 << 40), ctypes.c_void_p(2), ctypes.c_void_p(3))
    assert batch() > 0 and seen == [(1 << 40, 2, 3)] * launch.BATCH


def test_the_loop_calls_the_driver_with_all_sizes(loops):
    seen = []

    @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, *[ctypes.c_uint] * 7, *[ctypes.c_void_p] * 3)
    def enqueue(*arguments):
        seen.append(arguments)
        return 0
    sizes = (ctypes.c_uint * 7)(1, 2, 3, 4, 5, 6, 7)
    batch = launch.in_c(loops.time_driver, enqueue, ctypes.c_void_p(1 << 40), sizes, ctypes.c_void_p(9), ctypes.c_void_p(10))
    assert batch() > 0 and seen == [(1 << 40, 1, 2, 3, 4, 5, 6, 7, 9, 10, None)] * launch.BATCH


def test_a_failed_launch_ends_the_measurement(loops):
    @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
    def refuse(row, args, stream):
        return 5
    with pytest.raises(RuntimeError, match="a launch failed with status 5"):
        launch.in_c(loops.time_launch, refuse, None, None, None)()


def test_a_machine_without_a_compiler_is_told(monkeypatch):
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(RuntimeError, match="no-such-compiler cannot compile launch_loop.c: name a C compiler by CC"):
        launch.c_loops()


def test_the_difference_is_taken_within_each_round():
    samples = {"C launch": [5.0, 9.0, 4.0], "cuLaunchKernel": [4.0, 6.0, 3.5], "prepared launch": [6.0, 10.0, 5.0]}
    assert launch.medians(samples) == {"C launch": 5.0, "cuLaunchKernel": 4.0, "prepared launch": 6.0, "C launch over driver": 1.0}
    assert launch.medians({"C launch": [1.0]}) == {"C launch": 1.0}
