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

FLOAT32_MAX = 2.0**128 * (1 - 2.0**-24)


def integer(name: str, value: object, least: int, most: int) -> int:
    """`value` as an int in least .. most. Raises ArgumentError."""
    number = whole(name, value)
    if not least <= number <= most:
        raise ArgumentError(name, f"{number} is not in {least} .. {most}")
    return number


def whole(name: str, value: object) -> int:
    """`value`, anything with `__index__` but a bool, as an int of any size. Raises ArgumentError."""
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        number = None
    if number is None or isinstance(value, bool):
        raise ArgumentError(name, f"must be an integer, not {value!r}")
    return number


def extent(name: str, value: object, minimum: int = 0) -> int:
    """`value` as an int of at least `minimum` that fits in 32 bits. Raises ArgumentError."""
    return integer(name, value, minimum, INT_MAX)


def flag(name: str, value: object) -> bool:
    """`value`, True or False or what equals one of them, such as a bool of numpy. Raises ArgumentError."""
    if isinstance(value, (str, bytes)) or value not in (True, False):
        raise ArgumentError(name, f"must be True or False, not {value!r}")
    return bool(value)


def real(name: str, value: object) -> float:
    """`value` as a float: any real number, but no bool and no text. Raises ArgumentError."""
    try:
        if not isinstance(value, (bool, str, bytes, bytearray)):
            return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        pass
    raise ArgumentError(name, f"must be a number that float holds, not {value!r}")


def float32(name: str, value: object) -> float:
    """`value` rounded to float32. Raises ArgumentError unless it is finite there, and 0 only if it is 0 itself."""
    exact = real(name, value)
    rounded = _rounded(exact)
    if not math.isfinite(rounded):
        raise ArgumentError(name, f"{exact} is not in {-FLOAT32_MAX:.8g} .. {FLOAT32_MAX:.8g}, what float32 holds")
    if rounded == 0 != exact:
        raise ArgumentError(name, f"{exact} is 0 in float32; use a larger number")
    return rounded


def _rounded(exact: float) -> float:
    """The nearest float32, infinite if the number is too large."""
    try:
        return struct.unpack("<f", struct.pack("<f", exact))[0]
    except OverflowError:
        return math.copysign(math.inf, exact)


def scale_log2(attention_scale: object, maximum: int | None) -> float:
    """The argument `scale_log2`: attention_scale x log2(e), rounded to float32.

    Raises ArgumentError unless attention_scale is finite and > 0 and the result is > 0 and at most `maximum` (None: what float32 holds).
    """
    name = "attention_scale"
    if attention_scale is None:
        raise ArgumentError(name, "is needed; give the factor on Q K^T, often 1 / sqrt(head_dim)")
    scale = real(name, attention_scale)
    if not math.isfinite(scale) or scale <= 0:
        raise ArgumentError(name, f"{scale} must be finite and > 0")
    rounded = _rounded(scale * math.log2(math.e))
    if maximum is not None and rounded > maximum:
        raise ArgumentError(name, f"{scale} is above {int(maximum * math.log(2))}, where the rounding of large scores could overflow the "
                                  "softmax; use a smaller scale")
    if math.isinf(rounded):
        raise ArgumentError(name, f"{scale} x log2(e) is above {FLOAT32_MAX:.8g}, the most that float32 holds; use a smaller scale")
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
