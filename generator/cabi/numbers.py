# SPDX-License-Identifier: Apache-2.0
"""The C ABI's enums. Their numbers stand in `fmhaforge.clib`, which the Python runtime shares: compiled programs hold them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import generator  # noqa: F401 - makes fmhaforge importable
from fmhaforge import clib

ABI_VERSION = clib.ABI_VERSION
SONAME = "libfmhaforge.so.0"
"""Changes when ABI_VERSION does."""

HOST_NAMES = ("x86_64", "aarch64")
"""The machines that the libraries are built for."""


@dataclass(frozen=True)
class Member:
    """A C enumerator: `name` as in the header, `word` as in the metadata."""

    name: str
    value: int
    word: str = ""
    doc: str = ""


@dataclass(frozen=True)
class Enum:
    """A C enum of the header."""

    type: str
    doc: str
    members: tuple[Member, ...]

    def by_word(self, word: str) -> Member:
        """The enumerator of a word of the metadata. Raises KeyError with the remedy when it has no number yet."""
        for member in self.members:
            if member.word == word:
                return member
        raise KeyError(f"{word!r} has no number in {self.type}: add one to runtime/fmhaforge/clib.py")


def _words(type_: str, doc: str, prefix: str, numbers: Mapping[str, int]) -> Enum:
    return Enum(type_, doc, tuple(Member(f"FMHAFORGE_{prefix}_{word.upper()}", value, word) for word, value in numbers.items()))


_STATUS_DOCS = {
    "INVALID_ARGUMENT": "an argument breaks a precondition",
    "UNSUPPORTED": "no row serves the problem",
    "NO_DRIVER": "no CUDA driver, too old a driver or no device",
    "WRONG_DEVICE": "the row does not run on the current device",
    "STREAM_CAPTURING": "a first load during stream capture: preload first",
    "LOAD": "the driver refused the code, or found no kernel in it",
    "LAUNCH": "the driver refused the launch",
    "FORKED": "the process was forked after CUDA was in use",
    "ABI_MISMATCH": "header and library do not fit",
    "OUT_OF_MEMORY": "no host memory",
    "DRIVER": "another driver call failed",
}

STATUS = Enum("fmhaforge_status", "What a call came to.", tuple(
    Member("FMHAFORGE_OK" if word == "OK" else f"FMHAFORGE_ERROR_{word}", value, word, _STATUS_DOCS.get(word, ""))
    for value, word in enumerate(clib.STATUSES)))

FIELDS = _words("fmhaforge_field", "The field of a problem that a refusal names.", "FIELD",
                {word: value for value, word in enumerate(clib.FIELDS)})
OPERATIONS = _words("fmhaforge_operation", "The ABI classes; each has its argument struct.", "OPERATION", clib.OPERATIONS)
MASKS = _words("fmhaforge_mask", "Which keys a query sees.", "MASK", clib.MASKS)
DTYPES = _words("fmhaforge_dtype", "The element type of Q, K, V and O.", "DTYPE", clib.DTYPES)
FLAGS = _words("uint32_t", "Hints of a problem, as bits.", "FLAG", clib.FLAGS)

ENUMS = (STATUS, OPERATIONS, MASKS, DTYPES, FIELDS)
"""The enums of the header, in order."""

TENSOR_MAP_DTYPES = {"float16": 6, "int32": 3}
"""CUtensorMapDataType of the driver."""

TENSOR_MAP_SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}
"""Bytes -> CUtensorMapSwizzle."""

TENSOR_MAP_L2_PROMOTIONS = {0: 0, 64: 1, 128: 2, 256: 3}
"""Bytes -> CUtensorMapL2promotion."""
