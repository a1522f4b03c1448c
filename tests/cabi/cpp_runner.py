# SPDX-License-Identifier: Apache-2.0
"""The C++ runner through its shim, in a process with the stub driver."""

import ctypes
import shutil
import tempfile
from pathlib import Path

from stub import Stub

OPERATIONS = ("llm", "paged", "paged_ragged", "padding", "vision_block", "vit")
INT_MAX = (1 << 31) - 1


class CppRunner:
    """A fresh copy of the shim with one runner. `sizes`: heads, KV heads, head_dim, batch, seqlen_q, kv_seqlen."""

    def __init__(self, path, sizes, use_small_d64=True):
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder) / "copy.so"
            shutil.copyfile(path, copy)
            self._dll = ctypes.CDLL(str(copy))
        self._dll.thrown.restype = self._dll.reason.restype = ctypes.c_char_p
        self._dll.make.restype = ctypes.c_void_p
        self._dll.make.argtypes = (ctypes.c_void_p, ctypes.c_bool)
        self._dll.preflight.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p, ctypes.c_int32)
        self._dll.run.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_float,
                                  ctypes.c_int32)
        self._runner = self._dll.make((ctypes.c_int32 * 6)(*sizes), use_small_d64)

    def can_implement(self, which, q, kv, d, sm, dtype, mask):
        return bool(self._dll.can_implement(which, q, kv, d, sm, dtype, mask))

    def _result(self, code):
        return {1: (True, ""), 0: (False, self._dll.reason().decode()), -1: ("thrown", self._dll.thrown().decode())}[code]

    def preflight(self, operation, window=INT_MAX, stream=0):
        return self._result(self._dll.preflight(self._runner, OPERATIONS.index(operation), stream, window))

    def run(self, operation, pointers, integers=(), scale=0.125, window=INT_MAX, stream=0):
        return self._result(self._dll.run(self._runner, OPERATIONS.index(operation), (ctypes.c_int64 * 7)(*pointers),
                                          (ctypes.c_int32 * 5)(*integers), stream, scale, window))


def truth_table(stub_path, runner_path, questions):
    """Answers of the canImplement functions: no driver is used."""
    stub = Stub(stub_path)
    runner = CppRunner(runner_path, (1, 1, 64, 1, 1, 1))
    answers = [runner.can_implement(*question) for question in questions]
    return answers, stub.calls("cuInit")


def without_context(stub_path, runner_path, sms, calls):
    """Preflights and runs from a thread that has no context, in a stream of the last device: results, and (device, symbol) of the launches."""
    stub, results = Stub(stub_path, *sms), []
    stream = stub.dll.stub_new_stream(len(sms) - 1)
    for sizes, operation, pointers, integers in calls:
        for step in ("preflight", "run"):
            stub.dll.stub_use_device(-1)
            runner = CppRunner(runner_path, sizes)
            results.append(runner.preflight(operation, stream=stream) if step == "preflight"
                           else runner.run(operation, pointers, integers, stream=stream))
    return results, [(launch.device, launch.symbol) for launch in stub.launches()]


def run_once(stub_path, runner_path, sm, sizes, operation, pointers, integers, scale, window, use_small_d64=True, preflight=False):
    """One call: (result, launches, loads before the call)."""
    stub = Stub(stub_path, sm)
    runner = CppRunner(runner_path, sizes, use_small_d64)
    loads = 0
    if preflight:
        assert runner.preflight(operation, window) == (True, "")
        loads = stub.calls("cuLibraryLoadData")
    result = runner.run(operation, pointers, integers, scale, window)
    assert not preflight or stub.calls("cuLibraryLoadData") == loads
    return result, stub.launches(), loads
