# SPDX-License-Identifier: Apache-2.0
"""One spelling for every file the build writes: JSON with sorted keys, and writing that never leaves half a file under its name."""

from __future__ import annotations

import json
import os
import tempfile
from json.encoder import encode_basestring
from pathlib import Path
from typing import Any


def canonical_json(value: Any) -> bytes:
    """JSON with sorted keys, indent 1 and a newline at the end, in UTF-8. Keys must be strings, or TypeError is raised.

    The bytes are those of `json.dumps(value, sort_keys=True, indent=1, ensure_ascii=False)`, which takes seconds for a bundle's metadata:
    what stands in the value at several places, such as a launch plan, is spelled once.
    """
    return (_text(value, "\n", {}) + "\n").encode()


def _text(value: Any, start: str, known: dict[tuple[int, str], str]) -> str:
    """The text of a value whose lines begin with `start`; `known` holds the texts of containers, which live as long as the whole value."""
    if isinstance(value, str):
        return encode_basestring(value)
    if type(value) is int:
        return str(value)
    if not (value and isinstance(value, (dict, list, tuple))):
        return json.dumps(value)
    place = id(value), start
    text = known.get(place)
    if text is None:
        inner = f"{start} "
        if isinstance(value, dict):
            items = [f"{encode_basestring(key)}: {_text(value[key], inner, known)}" for key in sorted(value)]
        else:
            items = [_text(item, inner, known) for item in value]
        left, right = "{}" if isinstance(value, dict) else "[]"
        text = known[place] = f"{left}{inner}{f',{inner}'.join(items)}{start}{right}"
    return text


def write_whole(path: str | os.PathLike[str], data: bytes, mode: int = 0o644) -> None:
    """Writes `data` to `path` by way of a file beside it, renamed last. Raises OSError and leaves nothing behind then."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name[:40]}.", suffix=".part", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.chmod(temporary, mode)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
