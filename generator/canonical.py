# SPDX-License-Identifier: Apache-2.0
"""One spelling for every file the build writes: JSON with sorted keys, and writing that never leaves half a file under its name."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any


def canonical_json(value: Any) -> bytes:
    """JSON with sorted keys, indent 1 and a newline at the end, in UTF-8."""
    return (json.dumps(value, sort_keys=True, indent=1, ensure_ascii=False) + "\n").encode()


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
