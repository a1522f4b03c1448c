# SPDX-License-Identifier: Apache-2.0
"""Stream handles out of the stream objects of other libraries."""

from __future__ import annotations

import operator

from .errors import ArgumentError


def stream_handle(stream: object) -> int:
    """The CUDA stream handle of `stream`: an integer, or a stream of cuda.bindings, cuda.core, torch or cupy; 0 is the default stream.

    Raises ArgumentError for anything else, None included: which stream the work goes to must be said.
    """
    if stream is None:
        raise ArgumentError("stream", "is needed; give a stream, or 0 for the default stream")
    if hasattr(stream, "__cuda_stream__"):
        protocol = stream.__cuda_stream__
        found = protocol() if callable(protocol) else protocol
        return _checked(stream, found[1] if isinstance(found, (tuple, list)) and len(found) == 2 else None)
    for attribute in ("cuda_stream", "ptr"):  # torch, cupy
        if isinstance(getattr(stream, attribute, None), int):
            return _checked(stream, getattr(stream, attribute))
    if type(stream).__name__ in ("CUstream", "cudaStream_t"):
        return _checked(stream, int(stream))  # type: ignore[call-overload]
    return _checked(stream, stream)


def _checked(stream: object, handle: object) -> int:
    try:
        number = operator.index(handle)  # type: ignore[arg-type]
    except TypeError:
        number = -1
    if isinstance(stream, bool) or not 0 <= number < 1 << 64:
        raise ArgumentError("stream", f"{stream!r} is no stream; give a handle (0 is the default stream) or a stream of torch, cupy "
                                      "or cuda.core")
    return number
