# SPDX-License-Identifier: Apache-2.0
"""A store of built files by key, shared between builds, machines and writers. A damaged entry is a miss.

One file an entry, `<first two letters>/<key>`, holding a header line, the SHA-256 of the content, the key, and the content. It is written
beside its name and renamed, so a reader sees a whole entry or none; what it reads is checked against the digest all the same. Reading marks
an entry as used; `trim` removes the least recently used. Nothing is locked, so the folder may be on a shared mount; a folder that cannot
be written is read only.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Iterator

MAGIC = b"fmhaforge cache 1\n"
_DIGEST = 64


@dataclass(frozen=True)
class Entry:
    """One stored file: its key, bytes on disk, and when it was last used (seconds since 1970)."""

    key: str
    path: Path
    size: int
    used: float


def entry_bytes(key: str, content: bytes) -> bytes:
    """What the file of an entry holds."""
    return b"".join((MAGIC, hashlib.sha256(content).hexdigest().encode(), b" ", key.encode(), b"\n", content))


def content_of(key: str, raw: bytes) -> bytes | None:
    """The content of an entry's file, or None when it is damaged, cut off, or another key's."""
    start = len(MAGIC)
    end = raw.find(b"\n", start)
    if not raw.startswith(MAGIC) or end < 0:
        return None
    digest, _, stored_key = raw[start:end].partition(b" ")
    content = raw[end + 1 :]
    if stored_key != key.encode() or len(digest) != _DIGEST or hashlib.sha256(content).hexdigest().encode() != digest:
        return None
    return content


class Store:
    """A folder of entries. Keys are lower-case hex digests."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    def path(self, key: str) -> Path:
        """Where the entry of `key` is, if it exists."""
        return self.folder / key[:2] / key

    def get(self, key: str) -> bytes | None:
        """The content stored under `key`, or None. A damaged entry is removed, so that the next build can store it again."""
        path = self.path(key)
        try:
            raw = path.read_bytes()
        except OSError:
            return None
        content = content_of(key, raw)
        try:
            if content is None:
                path.unlink(missing_ok=True)
            else:
                os.utime(path)
        except OSError:
            pass  # A cache that cannot be written is read only.
        return content

    def put(self, key: str, content: bytes) -> bool:
        """Stores `content` under `key`; False when the folder cannot be written (full, or read only): the build goes on without."""
        path = self.path(key)
        temporary = None
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(prefix=".", suffix=".part", dir=path.parent)
            with os.fdopen(handle, "wb") as file:
                file.write(entry_bytes(key, content))
            os.chmod(temporary, 0o644)
            os.replace(temporary, path)
            return True
        except OSError:
            if temporary is not None:
                Path(temporary).unlink(missing_ok=True)
            return False

    def entries(self) -> Iterator[Entry]:
        """All entries. Those that another build removes meanwhile are left out."""
        for folder in sorted(self.folder.glob("[0-9a-f][0-9a-f]")):
            try:
                found = sorted(os.scandir(folder), key=_name_of)
            except OSError:
                continue
            for item in found:
                try:
                    status = item.stat()
                except OSError:
                    continue
                if not item.name.startswith("."):
                    yield Entry(item.name, Path(item.path), status.st_size, status.st_mtime)

    def trim(self, limit: int) -> int:
        """Removes the least recently used entries until the rest takes at most `limit` bytes; returns the bytes removed."""
        entries = sorted(self.entries(), key=_used_of)
        size = sum(entry.size for entry in entries)
        removed = 0
        for entry in entries:
            if size - removed <= limit:
                break
            try:
                entry.path.unlink()
            except FileNotFoundError:
                pass  # Another build trimmed it.
            except OSError:
                break
            removed += entry.size
        return removed


def _name_of(item: os.DirEntry) -> str:
    return item.name


def _used_of(entry: Entry) -> float:
    return entry.used
