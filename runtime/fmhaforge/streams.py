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
    try:
        handle = _told(stream)
    except Exception as error:  # whatever another library's object raises, such as one whose context is gone
        raise ArgumentError("stream", f"a {type(stream).__name__} does not give its handle: {error!r}") from error
    return _checked(stream, handle)


def _told(stream: object) -> object:
    """What a stream object says that its handle is."""
    if hasattr(stream, "__cuda_stream__"):
        protocol = stream.__cuda_stream__
        found = protocol() if callable(protocol) else protocol
        return found[1] if isinstance(found, (tuple, list)) and len(found) == 2 else None
    for attribute in ("cuda_stream", "ptr"):  # torch, cupy
        if isinstance(getattr(stream, attribute, None), int):
            return getattr(stream, attribute)
    if type(stream).__name__ in ("CUstream", "cudaStream_t"):
        return int(stream)  # type: ignore[call-overload]
    return stream


def _checked(stream: object, handle: object) -> int:
    try:
        number = operator.index(handle)  # type: ignore[arg-type]
    except TypeError:
        number = -1
    if isinstance(stream, bool) or not 0 <= number < 1 << 64:
        raise ArgumentError("stream", f"{stream!r} is no stream; give a handle (0 is the default stream) or a stream of torch, cupy "
                                      "or cuda.core")
    return number
