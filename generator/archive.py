# SPDX-License-Identifier: Apache-2.0
"""Puts a folder in place in one step, and packs it into an archive with the same bytes on every machine."""

from __future__ import annotations

import ctypes
import hashlib
import io
import os
import shutil
import struct
import tarfile
import tempfile
import zlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Mapping, Sequence

from generator import xz

SUMS = "SHA256SUMS"
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
_GZIP_HEADER = b"\x1f\x8b\x08\0\0\0\0\0\0\xff"
_BLOCK = 4 << 20
_LEVEL = 4


class InstallError(Exception):
    """A product cannot be put where it was asked for; the message names the place and the remedy."""


@dataclass(frozen=True)
class Link:
    """A symbolic link to a file of the same folder, by its name."""

    target: str


@dataclass(frozen=True)
class Same:
    """Of the file `path`, the bytes `start` .. `start + length` are those that begin at `of_start` in the file `of_path`, which comes earlier."""

    path: str
    start: int
    length: int
    of_path: str
    of_start: int


Files = Mapping[str, "bytes | Link"]
"""The files of a bundle: path relative to its folder -> content or link."""


def _content(files: Files, path: str) -> bytes:
    """A file's content, through a link."""
    content = files[path]
    return files[str(Path(path).parent / content.target)] if isinstance(content, Link) else content


def source_date_epoch() -> int:
    """The time that stands in archives: SOURCE_DATE_EPOCH (seconds), or 0. Raises InstallError when it is no number."""
    text = os.environ.get("SOURCE_DATE_EPOCH", "0")
    if not (text.isascii() and text.isdigit()) or int(text) >= 1 << 33:
        raise InstallError(f"SOURCE_DATE_EPOCH={text}: expected seconds since 1970 as a plain number")
    return int(text)


def with_checksums(files: Files) -> dict[str, bytes | Link]:
    """The files and their SHA256SUMS."""
    return {**files, SUMS: checksums(files)}


def checksums(files: Files) -> bytes:
    """The content of SHA256SUMS: `sha256sum -c` reads it."""
    return "".join(f"{hashlib.sha256(_content(files, path)).hexdigest()}  {path}\n" for path in sorted(files)).encode()


def stage(files: Files, parent: Path, name: str) -> Path:
    """Writes `files` (relative path -> content) into a new folder beside `parent/name`; returns it.

    Raises OSError and leaves nothing behind then.
    """
    parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f".{name}.", suffix=".part", dir=parent))
    try:
        for path, content in sorted(files.items()):
            place = folder / path
            place.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(content, Link):
                place.symlink_to(content.target)
                continue
            place.write_bytes(content)
            place.chmod(_mode(path))
        for place in [folder, *folder.rglob("*")]:
            if place.is_dir() and not place.is_symlink():
                place.chmod(0o755)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return folder


def _mode(path: str) -> int:
    return 0o755 if ".so" in Path(path).suffixes else 0o644


def _exchange(left: Path, right: Path) -> bool:
    """Swaps two folders in one step; False when this system or file system cannot."""
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except AttributeError:
        return False
    return rename(_AT_FDCWD, os.fsencode(left), _AT_FDCWD, os.fsencode(right), _RENAME_EXCHANGE) == 0


def check_place(final: Path) -> None:
    """Raises InstallError when something that is no bundle stands where a bundle is to be put."""
    if final.is_symlink() or (final.exists() and not (final / SUMS).is_file() and (not final.is_dir() or any(final.iterdir()))):
        raise InstallError(f"{final} exists and is no bundle (it has no {SUMS}): move it away, or choose another dist=")


def install_folder(staged: Path, final: Path) -> None:
    """Puts a staged folder in its place, in one step where the file system can; an older one is removed afterwards.

    Raises InstallError when something that is no bundle stands there, OSError when it cannot be written.
    """
    check_place(final)
    if final.exists():
        if not _exchange(staged, final):
            old = Path(tempfile.mkdtemp(prefix=f".{final.name}.", suffix=".old", dir=final.parent))
            os.rename(final, old / "bundle")
            os.rename(staged, final)
            staged = old
        shutil.rmtree(staged, ignore_errors=True)
    else:
        os.rename(staged, final)


def pack(files: Files, root: str, out: Path, same: Sequence[Same] = (), keep: xz.Keep | None = None) -> Path:
    """Packs `files` below the folder `root` into an archive beside `out`, which names its format (.tar.xz or .tar.gz); the caller renames it to `out`.

    Sorted, owner 0, modes fixed, times SOURCE_DATE_EPOCH. `same` is what .tar.xz holds once; `keep` keeps its compressed parts between builds.
    Raises OSError or InstallError and leaves nothing behind then.
    """
    data, contents, cuts = tar(files, root)
    if out.suffix == ".xz":
        packed = xz.pack(data, cuts, [xz.Repeat(contents[part.path] + part.start, part.length, contents[part.of_path] + part.of_start) for part in same], keep)
    else:
        packed = gzip_bytes(data)
    handle, temporary = tempfile.mkstemp(prefix=f".{out.name}.", suffix=".part", dir=out.parent)
    try:
        with os.fdopen(handle, "wb") as raw:
            raw.write(packed)
        os.chmod(temporary, 0o644)
    except BaseException:
        os.unlink(temporary)
        raise
    return Path(temporary)


def tar(files: Files, root: str) -> tuple[bytes, dict[str, int], list[int]]:
    """The tar file of `files`, where in it the content of each file begins, and where another part begins (`_part_of`)."""
    epoch = source_date_epoch()
    folders = {str(parent) for path in files for parent in Path(path).parents if str(parent) != "."}
    contents, cuts, part = {}, [], None
    tar_file = io.BytesIO()
    with tarfile.open(fileobj=tar_file, mode="w", format=tarfile.GNU_FORMAT) as writer:
        for path in sorted([*files, *folders, ""], key=_place_of):
            member = tarfile.TarInfo(f"{root}/{path}".rstrip("/"))
            member.mtime = epoch
            content = files.get(path)
            if _part_of(path) != part:
                part = _part_of(path)
                cuts.append(tar_file.tell())
            if content is None:
                member.type, member.mode = tarfile.DIRTYPE, 0o755
                writer.addfile(member)
            elif isinstance(content, Link):
                member.type, member.mode, member.linkname = tarfile.SYMTYPE, 0o777, content.target
                writer.addfile(member)
            else:
                member.size, member.mode = len(content), _mode(path)
                writer.addfile(member, io.BytesIO(content))
                contents[path] = tar_file.tell() - len(content) - -len(content) % tarfile.BLOCKSIZE
    return tar_file.getvalue(), contents, cuts


def _place_of(path: str) -> tuple[str, ...]:
    """The order of an archive's members: by path, but the cubins of one variant stand together, because they are alike."""
    top, _, rest = path.partition("/")
    folder, _, name = rest.partition("/")
    return ("cubins/~", name, folder) if top == "cubins" and name else (path,)


def _part_of(path: str) -> str:
    """The part of an archive that a member belongs to. A part is packed on its own, and again only when something in it changes."""
    top, _, _ = path.partition("/")
    return {"cubins": f"cubins/{Path(path).name}", "ptx": path}.get(top, top)


def gzip_bytes(data: bytes) -> bytes:
    """`data` in gzip format, without a time or a name. Blocks are compressed in parallel; the bytes do not depend on how many at once."""
    starts = range(0, len(data), _BLOCK) or range(1)
    view = memoryview(data)
    with ThreadPoolExecutor() as pool:
        blocks = list(pool.map(_deflate, (view[start : start + _BLOCK] for start in starts), (start + _BLOCK >= len(data) for start in starts)))
    return b"".join((_GZIP_HEADER, *blocks, struct.pack("<II", zlib.crc32(data), len(data) & 0xFFFFFFFF)))


def _deflate(block: memoryview, last: bool) -> bytes:
    compressor = zlib.compressobj(_LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
    return compressor.compress(block) + compressor.flush(zlib.Z_FINISH if last else zlib.Z_FULL_FLUSH)
