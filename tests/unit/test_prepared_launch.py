# SPDX-License-Identifier: Apache-2.0
"""A launch prepared once: what the C library gets at each call, and what may be changed between calls."""

import ctypes
from types import SimpleNamespace

import pytest
from fmhaforge import ArgumentError
from fmhaforge.clib import Problem
from fmhaforge.library_runner import PreparedLaunch


class Prepared:
    """A prepared launch through a C function that notes what it gets."""

    def __init__(self, stream):
        self.got = []
        self.row, self.args = ctypes.c_int(), Problem()

        @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
        def entry(row, args, stream):
            self.got.append((row, args, stream))
            return 0
        library = SimpleNamespace(launcher=lambda operation: entry)
        self.launch = PreparedLaunch(library, SimpleNamespace(operation="llm"), ctypes.pointer(self.row), self.args, stream, "preflight_llm")


def test_it_keeps_its_arguments():
    """Their address is what the library gets: another struct in their place would leave a dangling one."""
    prepared = Prepared(7)
    with pytest.raises(AttributeError):
        prepared.launch.args = Problem()
    prepared.launch()
    prepared.launch()
    assert prepared.launch.args is prepared.args
    assert prepared.got == [(ctypes.addressof(prepared.row), ctypes.addressof(prepared.args), 7)] * 2


@pytest.mark.parametrize("stream, other", [(0, 2**64 - 1), (2**64 - 1, 0), (1, 1 << 47)])
def test_its_stream_may_be_changed(stream, other):
    prepared = Prepared(stream)
    prepared.launch()
    prepared.launch.stream = SimpleNamespace(cuda_stream=other)
    prepared.launch()
    assert [at or 0 for _, _, at in prepared.got] == [stream, other] and prepared.launch.stream == other


def test_a_stream_that_is_none_is_refused_when_it_is_stored():
    prepared = Prepared(7)
    for wrong in (2**64 + 7, -1, None, "7", 7.0, True):
        with pytest.raises(ArgumentError, match="stream: "):
            prepared.launch.stream = wrong
        assert prepared.launch.stream == 7
    prepared.launch()
    assert prepared.got[0][2] == 7
