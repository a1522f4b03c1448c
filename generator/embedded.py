# SPDX-License-Identifier: Apache-2.0
"""Finds the cubins inside the libraries of a bundle, so that its archive holds each of them once."""

from __future__ import annotations

from typing import Sequence

from generator.archive import Files, Same

#: What the libraries align cubins to; elsewhere they are searched for.
_ALIGNMENT = 64


def embedded(files: Files, cubins: Sequence[str]) -> list[Same]:
    """What stands in the files below `lib/` and in an earlier file of the archive, too. `cubins` are paths, in the libraries' order."""
    same: list[Same] = []
    earlier: list[Same] = []
    for path in sorted(path for path, content in files.items() if path.startswith("lib/") and isinstance(content, bytes)):
        inside = _cubins_inside(files, path, cubins)
        if not inside:
            continue
        whole = _whole(files, inside, earlier) if earlier else None
        same += [whole] if whole else inside
        earlier = inside
    return same


def _cubins_inside(files: Files, path: str, cubins: Sequence[str]) -> list[Same]:
    content = files[path]
    place = guess = 0
    inside = []
    for wanted, cubin in {files[cubin]: cubin for cubin in cubins}.items():
        start = guess if content[guess : guess + len(wanted)] == wanted else content.find(wanted, place)
        if start >= 0:
            inside.append(Same(path, start, len(wanted), cubin, 0))
            place = start + len(wanted)
            guess = place + -len(wanted) % _ALIGNMENT
    return inside


def _whole(files: Files, inside: Sequence[Same], earlier: Sequence[Same]) -> Same | None:
    """Everything from the first to the last cubin in one piece, when an earlier library has just that."""
    (first, last), (earlier_first, earlier_last) = ((found[0], found[-1]) for found in (inside, earlier))
    end, earlier_end = last.start + last.length, earlier_last.start + earlier_last.length
    if files[first.path][first.start : end] != files[earlier_first.path][earlier_first.start : earlier_end]:
        return None
    return Same(first.path, first.start, end - first.start, earlier_first.path, earlier_first.start)
