# SPDX-License-Identifier: Apache-2.0
"""The stub driver from Python, in a process that has nothing else called libcuda.so.1."""

import ctypes
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from fmhaforge.clib import CLibrary

SMEM_LIMIT = {80: 166912, 86: 101376, 87: 166912, 89: 101376, 90: 232448, 100: 232448, 101: 232448, 110: 232448, 120: 101376,
              121: 101376, 75: 65536}
NOT_FOUND = 500
CAPTURE_IMPLICIT = 906


@dataclass(frozen=True)
class Launch:
    """A launch as the stub saw it; `symbol` is the kernel's name, @ and the SM of the code."""

    symbol: str
    grid: tuple
    block: tuple
    cluster: tuple
    smem_bytes: int
    device: int
    stream: int
    params: bytes


class _Launch(ctypes.Structure):
    _fields_ = [("symbol", ctypes.c_char * 128), ("grid", ctypes.c_uint32 * 3), ("block", ctypes.c_uint32 * 3),
                ("cluster", ctypes.c_uint32 * 3), ("smem_bytes", ctypes.c_uint32), ("device", ctypes.c_int32),
                ("stream", ctypes.c_uint64), ("param_bytes", ctypes.c_uint32), ("params", ctypes.c_ubyte * 4096)]


class Stub:
    """The stub with devices of these SMs; the calling thread uses device 0."""

    def __init__(self, path, *sms):
        self.dll = ctypes.CDLL(str(path))
        self.dll.stub_launch.restype = ctypes.POINTER(_Launch)
        self.dll.stub_new_stream.restype = ctypes.c_void_p
        self.dll.stub_set_capturing.argtypes = (ctypes.c_void_p, ctypes.c_int)
        self.dll.stub_reset()
        for sm in sms:
            self.dll.stub_add_device(sm, SMEM_LIMIT[sm])
        self.dll.stub_use_device(0)

    def calls(self, name):
        return self.dll.stub_calls(name.encode())

    def fail(self, name, code, times=1):
        self.dll.stub_fail(name.encode(), code, times)

    def launches(self):
        return [self._launch(index) for index in range(self.dll.stub_launch_count())]

    def _launch(self, index):
        found = self.dll.stub_launch(index).contents
        return Launch(found.symbol.decode(), tuple(found.grid), tuple(found.block), tuple(found.cluster), found.smem_bytes, found.device,
                      found.stream, bytes(found.params[:found.param_bytes]))


def fresh_library(path):
    """The library as a process sees it that has never used it: a copy has its own state."""
    folder = tempfile.mkdtemp()
    copy = Path(folder) / "copy.so"
    shutil.copyfile(path, copy)
    library = CLibrary(copy)
    shutil.rmtree(folder)
    return library
