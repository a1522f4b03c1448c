# SPDX-License-Identifier: Apache-2.0
"""The C library of a bundle through ctypes: query, preload and prepared launches. Struct layouts come from the metadata.

This is the fast path of the runtime (a prepared launch is one foreign call) and the way the tests look into the library.
"""

from __future__ import annotations

import ctypes
import platform
import struct
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path

from . import cstruct, scalars
from .cstruct import CheckedStructure
from .errors import ArgumentError, CLibraryError
from .metadata import Operation

ABI_VERSION = 1
CURRENT_DEVICE = 0
SEQLEN_UNKNOWN = -1

OPERATIONS = {"llm": 1, "paged": 2, "paged_ragged": 3, "padding": 4, "vision_block": 5, "vit": 6}
MASKS = {"causal": 1, "sliding_causal": 2, "padding": 3, "vision_block": 4, "bidirectional": 5}
DTYPES = {"float16": 1}
FLAGS = {"use_small_d64": 1}
FIELDS = ("none", "operation", "mask", "dtype", "head_dim", "checked", "sm", "num_q_heads", "num_kv_heads", "seqlen_q", "smem_bytes")
STATUSES = ("OK", "INVALID_ARGUMENT", "UNSUPPORTED", "NO_DRIVER", "WRONG_DEVICE", "STREAM_CAPTURING", "LOAD", "LAUNCH", "FORKED",
            "ABI_MISMATCH", "OUT_OF_MEMORY", "DRIVER")
"""The numbers of the C ABI; the header is generated from them. Compiled programs hold them: never change or reuse one."""

_CTYPES = {"ptr": ctypes.c_void_p, "i32": ctypes.c_int32, "i64": ctypes.c_int64, "f32": ctypes.c_float}
_FORMATS = {"ptr": "P", "i32": "i", "i64": "q", "f32": "f"}
"""Type of an argument -> the field that ctypes makes of it, and how `struct` packs that."""


def _status(number: int) -> str:
    """The word of a status, also for one of a newer library."""
    return STATUSES[number] if 0 <= number < len(STATUSES) else f"STATUS_{number}"


class Problem(CheckedStructure):
    """fmhaforge_problem."""

    _fields_ = [("size", ctypes.c_size_t)] + [(name, ctypes.c_int32) for name in (
        "operation", "mask", "head_dim", "dtype", "num_q_heads", "num_kv_heads", "sm", "seqlen_q", "checked")] + [
        ("flags", ctypes.c_uint32)]


class Row(CheckedStructure):
    """fmhaforge_row; instances belong to the library."""

    _fields_ = [("size", ctypes.c_size_t)] + [(name, ctypes.c_int32) for name in (
        "index", "operation", "mask", "dtype", "head_dim", "sm", "exact", "checked", "seqlen_q_at_most")] + [
        ("only_if", ctypes.c_uint32)] + [(name, ctypes.c_int32) for name in ("threads", "registers", "smem_bytes", "static_smem_bytes")] + [
        (name, ctypes.c_char_p) for name in ("variant", "family", "kv_layout", "abi_class", "cubin_sha256")] + [
        ("cubin", ctypes.c_void_p), ("cubin_bytes", ctypes.c_size_t)]


class Refusal(CheckedStructure):
    """fmhaforge_refusal."""

    _fields_ = [("size", ctypes.c_size_t), ("field", ctypes.c_int32), ("nearest", ctypes.POINTER(Row)), ("reason", ctypes.c_char * 512)]


RowPointer = ctypes.POINTER(Row)


@lru_cache(maxsize=None)
def args_struct(layout: tuple[tuple[str, str], ...]) -> type[CheckedStructure]:
    """The argument struct of an operation whose arguments are these (name, type) pairs: size first, then each in order."""
    fields = [("size", ctypes.c_size_t), *((name, _CTYPES[type_]) for name, type_ in layout)]
    return type("Args", (CheckedStructure,), {"_fields_": fields})


@lru_cache(maxsize=None)
def _packing(layout: tuple[tuple[str, str], ...]) -> struct.Struct:
    """How the bytes of such a struct are packed; what does not fit is an error there, too."""
    return struct.Struct("@N" + "".join(_FORMATS[type_] for _, type_ in layout) + "0q")


def make_args(operation: Operation, values: Mapping[str, int | float]) -> CheckedStructure:
    """The argument struct of `operation` filled with `values` (every argument must be there; addresses are integers).

    Raises ArgumentError for a value that its field does not hold.
    """
    layout = tuple((argument.name, argument.type) for argument in operation.arguments.values())
    made = args_struct(layout)
    given = {name: values[name] for name in operation.arguments}
    try:
        packed = _packing(layout).pack(ctypes.sizeof(made), *[0 if type_ == "f32" else given[name] for name, type_ in layout])
    except struct.error:
        return made(size=ctypes.sizeof(made), **given)  # field by field, which is slow and says what does not fit
    args = made.from_buffer_copy(packed)
    for name, type_ in layout:
        if type_ == "f32":
            setattr(args, name, given[name])
    return args


def library_file() -> str:
    """The path of the C library for this machine within a bundle."""
    host = {"arm64": "aarch64"}.get(platform.machine(), platform.machine())
    return f"lib/{host}/libfmhaforge.so.0"


class CLibrary:
    """An opened libfmhaforge.so. Raises OSError when the file can't be opened and CLibraryError when a call fails."""

    def __init__(self, path: str | Path):
        self._dll = ctypes.CDLL(str(path))
        self._declare("fmhaforge_query", ctypes.c_int, ctypes.POINTER(Problem), ctypes.POINTER(RowPointer))
        self._declare("fmhaforge_why_not", ctypes.c_int, ctypes.POINTER(Problem), ctypes.POINTER(Refusal))
        self._declare("fmhaforge_find_row", ctypes.c_int, ctypes.c_char_p, ctypes.c_int32, ctypes.POINTER(RowPointer))
        self._declare("fmhaforge_row_at", RowPointer, ctypes.c_int32)
        self._declare("fmhaforge_row_count", ctypes.c_int32)
        self._declare("fmhaforge_preload", ctypes.c_int, RowPointer, ctypes.c_void_p)
        self._declare("fmhaforge_scale_log2", ctypes.c_float, ctypes.c_float)
        self._declare("fmhaforge_last_reason", ctypes.c_char_p)
        self._declare("fmhaforge_status_name", ctypes.c_char_p, ctypes.c_int)
        self._declare("fmhaforge_get_table", ctypes.c_void_p, ctypes.c_uint32)
        for name in OPERATIONS:
            self._declare(f"fmhaforge_launch_{name}", ctypes.c_int, RowPointer, ctypes.c_void_p, ctypes.c_void_p)
        if not self._dll.fmhaforge_get_table(ABI_VERSION):
            raise CLibraryError("fmhaforge_get_table", "ABI_MISMATCH", self.last_reason())

    def _declare(self, name: str, result: type, *arguments: type) -> None:
        function = getattr(self._dll, name, None)
        if function is None:
            raise CLibraryError(name, "ABI_MISMATCH", "the library has no such function; fetch the bundle again, or use the fmhaforge of its version")
        function.restype = result
        function.argtypes = arguments

    def last_reason(self) -> str:
        """The reason of this thread's last failure. The library cuts what is too long, maybe within a letter."""
        return self._dll.fmhaforge_last_reason().decode(errors="replace")

    def rows(self) -> list[Row]:
        """Every row of the library."""
        return [self._dll.fmhaforge_row_at(index).contents for index in range(self._dll.fmhaforge_row_count())]

    def row(self, index: int) -> ctypes._Pointer:
        """The row at an index, a null pointer past the last one; the order is that of the metadata."""
        return self._dll.fmhaforge_row_at(cstruct.integer(ctypes.c_int32, "index", index))

    def launcher(self, operation: str) -> Callable[[object, object, object], int]:
        """The launch function of an operation: (row, argument struct, stream) -> status, each an address made by `pointer_argument`.

        With arguments that are ready ctypes has nothing to convert, which would cost more than all of the library's checks.
        """
        function = self._dll[f"fmhaforge_launch_{operation}"]
        function.restype = ctypes.c_int
        return function

    def check(self, call: str, status: int) -> None:
        """Raises CLibraryError unless `status` is 0; `call` is the function that gave it."""
        if status:
            raise CLibraryError(call, _status(status), self.last_reason())

    def query(self, problem: Problem) -> ctypes._Pointer:
        """The row that serves `problem`. CLibraryError (UNSUPPORTED) with the reason when none does."""
        row = RowPointer()
        self.check("fmhaforge_query", self._dll.fmhaforge_query(ctypes.byref(problem), ctypes.byref(row)))
        return row

    def why_not(self, problem: Problem) -> Refusal:
        """The refusal of `problem`; its field is 0 when the problem is served."""
        refusal = Refusal(size=ctypes.sizeof(Refusal))
        status = self._dll.fmhaforge_why_not(ctypes.byref(problem), ctypes.byref(refusal))
        if _status(status) not in ("OK", "UNSUPPORTED"):
            self.check("fmhaforge_why_not", status)
        return refusal

    def find_row(self, variant: str, sm: int = CURRENT_DEVICE) -> ctypes._Pointer:
        """The row of a variant for a device's SM."""
        if not isinstance(variant, str) or "\0" in variant:
            raise ArgumentError("variant", f"must be the name of a variant, not {variant!r}")
        row, sm = RowPointer(), cstruct.integer(ctypes.c_int32, "sm", sm)
        self.check("fmhaforge_find_row", self._dll.fmhaforge_find_row(variant.encode(errors="replace"), sm, ctypes.byref(row)))
        return row

    def try_preload(self, row: ctypes._Pointer, stream: int = 0) -> int:
        """Load a row on the current device: the status, 0 for success."""
        return self._dll.fmhaforge_preload(row, cstruct.address("stream", stream))

    def preload(self, row: ctypes._Pointer, stream: int = 0) -> None:
        """Load a row on the current device."""
        self.check("fmhaforge_preload", self.try_preload(row, stream))

    def launch(self, operation: str, row: ctypes._Pointer, args: CheckedStructure, stream: int = 0) -> None:
        """Launch a row with an argument struct of `make_args`."""
        call = f"fmhaforge_launch_{operation}"
        self.check(call, self.launcher(operation)(row, ctypes.byref(args), pointer_argument(cstruct.address("stream", stream))))

    def scale_log2(self, attention_scale: float) -> float:
        """attention_scale x log2(e), rounded to float32."""
        return self._dll.fmhaforge_scale_log2(scalars.float32("attention_scale", attention_scale))


def pointer_argument(address: int) -> object:
    """An address as an argument of `CLibrary.launcher`'s functions, for any number of calls. ctypes cuts it to 64 bits unchecked."""
    return ctypes.c_void_p.from_param(address)


def problem(operation: str, mask: str, head_dim: int, sm: int, num_q_heads: int = 1, num_kv_heads: int = 1, dtype: str = "float16",
            seqlen_q: int = SEQLEN_UNKNOWN, flags: Mapping[str, bool] | None = None, checked: bool = False) -> Problem:
    """A Problem in the words of the metadata. Raises KeyError for a word that the C ABI has no number for."""
    bits = sum(FLAGS[name] for name, value in (flags or {}).items() if value)
    return Problem(ctypes.sizeof(Problem), OPERATIONS[operation], MASKS[mask], head_dim, DTYPES[dtype], num_q_heads, num_kv_heads, sm,
                   seqlen_q, int(checked), bits)
