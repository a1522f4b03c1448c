# SPDX-License-Identifier: Apache-2.0
"""The numbers of the C ABI. They are written down, not counted, because compiled programs hold them: never change or reuse one."""

from __future__ import annotations

from dataclasses import dataclass

ABI_VERSION = 1
SOVERSION = 0


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
        raise KeyError(f"{word!r} has no number in {self.type}: add one to generator/cabi/numbers.py")


def _words(type_: str, doc: str, prefix: str, numbers: dict[str, int]) -> Enum:
    return Enum(type_, doc, tuple(Member(f"FMHAFORGE_{prefix}_{word.upper()}", value, word) for word, value in numbers.items()))


STATUS = Enum("fmhaforge_status", "What a call came to.", (
    Member("FMHAFORGE_OK", 0),
    Member("FMHAFORGE_ERROR_INVALID_ARGUMENT", 1, doc="an argument breaks a precondition"),
    Member("FMHAFORGE_ERROR_UNSUPPORTED", 2, doc="no row serves the problem"),
    Member("FMHAFORGE_ERROR_NO_DRIVER", 3, doc="no CUDA driver, too old a driver or no device"),
    Member("FMHAFORGE_ERROR_WRONG_DEVICE", 4, doc="the row does not run on the current device"),
    Member("FMHAFORGE_ERROR_STREAM_CAPTURING", 5, doc="a first load during stream capture: preload first"),
    Member("FMHAFORGE_ERROR_LOAD", 6, doc="the driver refused the code, or found no kernel in it"),
    Member("FMHAFORGE_ERROR_LAUNCH", 7, doc="the driver refused the launch"),
    Member("FMHAFORGE_ERROR_FORKED", 8, doc="the process was forked after CUDA was in use"),
    Member("FMHAFORGE_ERROR_ABI_MISMATCH", 9, doc="header and library do not fit"),
    Member("FMHAFORGE_ERROR_OUT_OF_MEMORY", 10, doc="no host memory"),
    Member("FMHAFORGE_ERROR_DRIVER", 11, doc="another driver call failed"),
))

FIELDS = _words("fmhaforge_field", "The field of a problem that a refusal names.", "FIELD", {
    "none": 0, "operation": 1, "mask": 2, "dtype": 3, "head_dim": 4, "checked": 5, "sm": 6, "num_q_heads": 7, "num_kv_heads": 8,
    "seqlen_q": 9, "smem_bytes": 10})

OPERATIONS = _words("fmhaforge_operation", "The ABI classes; each has its argument struct.", "OPERATION", {
    "llm": 1, "paged": 2, "paged_ragged": 3, "padding": 4, "vision_block": 5, "vit": 6})

MASKS = _words("fmhaforge_mask", "Which keys a query sees.", "MASK", {
    "causal": 1, "sliding_causal": 2, "padding": 3, "vision_block": 4, "bidirectional": 5})

DTYPES = _words("fmhaforge_dtype", "The element type of Q, K, V and O.", "DTYPE", {"float16": 1})

FLAGS = _words("uint32_t", "Hints of a problem, as bits.", "FLAG", {"use_small_d64": 1})

ENUMS = (STATUS, OPERATIONS, MASKS, DTYPES, FIELDS)
"""The enums of the header, in order."""

TENSOR_MAP_DTYPES = {"float16": 6, "int32": 3}
"""CUtensorMapDataType of the driver."""

TENSOR_MAP_SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}
"""Bytes -> CUtensorMapSwizzle."""

TENSOR_MAP_L2_PROMOTIONS = {0: 0, 64: 1, 128: 2, 256: 3}
"""Bytes -> CUtensorMapL2promotion."""
