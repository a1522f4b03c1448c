# SPDX-License-Identifier: Apache-2.0
"""Names of element types, masks and operations, and how foreign spellings become ours."""

from __future__ import annotations

import enum

INT_MAX = 2**31 - 1
"""The sliding window size that means "no window"; anything smaller selects a sliding variant."""

INT32_MIN = -(2**31)

ITEM_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8, "int8": 1, "uint8": 1, "int16": 2, "uint16": 2, "int32": 4,
              "uint32": 4, "int64": 8, "uint64": 8, "bool": 1}
"""Size in bytes of the element types that a tensor may come with."""

_ALIASES = {"half": "float16", "fp16": "float16", "f16": "float16", "khalf": "float16", "float": "float32", "fp32": "float32",
            "f32": "float32", "double": "float64", "bf16": "bfloat16", "int": "int32"}


class MaskType(str, enum.Enum):
    """Which keys a query sees. The value is the name of the mask in the metadata."""

    CAUSAL = "causal"
    SLIDING_CAUSAL = "sliding_causal"
    PADDING = "padding"
    VISION_BLOCK = "vision_block"
    BIDIRECTIONAL = "bidirectional"

    def __str__(self) -> str:
        return self.value


def mask_name(mask: MaskType | str) -> str:
    """The metadata's name of `mask`: "causal" for MaskType.CAUSAL, "causal" and "CAUSAL". Raises TypeError for other types."""
    if isinstance(mask, MaskType):
        return mask.value
    if isinstance(mask, str):
        return mask.lower()
    raise TypeError(f"a MaskType or a string, not {type(mask).__name__}")


def dtype_name(dtype: object) -> str:
    """The plain name of an element type given as a string, a numpy, torch or cupy dtype or scalar type: "float16" and so on.

    Unknown names come back as they are, in lower case: whether one is served is the metadata's business.
    Raises TypeError when `dtype` has no name.
    """
    if isinstance(dtype, str):
        text = dtype
    elif isinstance(getattr(dtype, "name", None), str):
        text = dtype.name
    elif isinstance(dtype, type):
        text = dtype.__name__
    elif type(dtype).__name__ == "dtype":
        text = str(dtype)
    else:
        raise TypeError(f"a dtype or its name, not {type(dtype).__name__}")
    text = text.strip().lower().removeprefix("torch.")
    return _ALIASES.get(text, text)
