# SPDX-License-Identifier: Apache-2.0
"""The numbers of a call: checked, and turned into what the kernels take."""

from __future__ import annotations

import math
import operator
import struct

from .dtypes import INT_MAX
from .errors import ArgumentError

NO_WINDOW = 1 << 30
"""The `window_size_left` that hides nothing."""

_FLOAT32_MAX = 2.0**128 * (1 - 2.0**-24)


def extent(name: str, value: object, minimum: int = 0) -> int:
    """`value` as an int of at least `minimum` that fits in 32 bits. Raises ArgumentError."""
    if isinstance(value, bool):
        raise ArgumentError(name, f"must be an integer, not {value!r}")
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise ArgumentError(name, f"must be an integer, not {value!r}") from None
    if not minimum <= number <= INT_MAX:
        raise ArgumentError(name, f"{number} is not in {minimum} .. {INT_MAX}")
    return number


def scale_log2(attention_scale: object, maximum: int | None) -> float:
    """The argument `scale_log2`: attention_scale x log2(e), rounded to float32.

    Raises ArgumentError unless attention_scale is finite and > 0 and the result at most `maximum` (None: no limit).
    """
    name = "attention_scale"
    if attention_scale is None:
        raise ArgumentError(name, "is needed; give the factor on Q K^T, often 1 / sqrt(head_dim)")
    try:
        scale = float(attention_scale)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        raise ArgumentError(name, f"must be a number that float holds, not {attention_scale!r}") from None
    if not math.isfinite(scale) or scale <= 0:
        raise ArgumentError(name, f"{scale} must be finite and > 0")
    exact = scale * math.log2(math.e)
    rounded, = struct.unpack("<f", struct.pack("<f", exact)) if exact < _FLOAT32_MAX else (math.inf,)
    if maximum is not None and rounded > maximum:
        raise ArgumentError(name, f"{scale} is above {int(maximum * math.log(2))}, where the rounding of large scores could overflow the "
                                  "softmax; use a smaller scale")
    if rounded == 0:
        raise ArgumentError(name, f"{scale} is 0 in float32; use a larger scale")
    return rounded


def window_size_left(sliding_window_size: object, negative: bool = True) -> int:
    """The argument `window_size_left` for a window as the runner takes it: INT_MAX is none, negative sees no key.

    Raises ArgumentError when it is no int32, or is negative where `negative` is false.
    """
    name = "sliding_window_size"
    window = extent(name, sliding_window_size, -(2**31))
    if window < 0 and not negative:
        raise ArgumentError(name, f"{window} is negative; give the keys left of the diagonal, or INT_MAX for no window")
    return max(-1, min(window, NO_WINDOW))
