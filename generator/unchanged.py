# SPDX-License-Identifier: Apache-2.0
"""Knows when there is nothing to do, without asking each product: nothing that the last build read or made was touched since.

A finished build leaves a stamp: the size, times and inode of every file that it read or made, its options, the commit, and the Python that
ran it. The next build compares these first. What differs in anything goes the whole way, where contents decide; so does what the stamp
cannot vouch for, such as a file that was written in the very seconds in which it was read. This module imports little, because what a build
with nothing to do imports is most of its time.
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Iterable, Mapping

from generator.canonical import canonical_json, write_whole
from generator.commit import commit
from generator.options import OptionError, Options, parse
from generator.progress import Progress
from generator.tables import describe_bundle

ROOT = Path(__file__).resolve().parents[1]

STAMP = "unchanged.json"
#: SCons's options that change what a build does with products that are up to date.
SCONS_OPTIONS = ("clean", "no_exec", "question", "interactive", "cache_force")

_INPUT_FOLDERS = ("generator", "runtime/fmhaforge")
_INPUT_FILES = ("SConstruct", "LICENSE", "requirements.lock")
_PRODUCT_FOLDERS = ("ptx", "cubins", "cabi", "lib")
_PRODUCT_FILES = ("cabi.json",)
_NO_MATTER = ("explain", "progress", "time_limit")
_TICK_NS, _COARSE_TICK_NS = 100_000_000, 2_000_000_000
"""A file whose last change is not this much older than its reading may have been changed again at the same time stamp. File systems that know
whole seconds only are coarse."""

State = list[int]
_TOUCHED: State = []
"""The state of no file."""


@dataclass(frozen=True)
class Seen:
    """What was found before anything was imported or read: the options, and the state of every input file (None: there is none)."""

    options: Options
    at_ns: int
    inputs: dict[str, State | None]
    facts: dict[str, Any]


def look(arguments: Mapping[str, str]) -> Seen | None:
    """Looks at all inputs; None when the options are wrong. Call it before anything that reads them."""
    try:
        options = parse(arguments)
    except OptionError:
        return None
    at_ns = time.time_ns()
    files = [str(ROOT / name) for name in _INPUT_FILES] + [options.manifest, options.ledger]
    inputs = {os.path.abspath(path): _state(path) for path in files}
    for folder in _INPUT_FOLDERS:
        inputs.update(_walk(ROOT / folder))
    kept = {name: value for name, value in asdict(options).items() if name not in _NO_MATTER}
    facts = {"options": kept, "commit": commit(ROOT), "python": [sys.version, sys.executable, *sys.path], "epoch": os.environ.get("SOURCE_DATE_EPOCH")}
    return Seen(options, at_ns, inputs, json.loads(json.dumps(facts)))


@dataclass(frozen=True)
class Place:
    """Where the bundle and its archive stand."""

    folder: Path
    archive: Path


def nothing_to_do(seen: Seen) -> Place | None:
    """Where the bundle is, when the last build into these folders was this one, and nothing was touched since.

    None also while another build uses the build folder.
    """
    build_dir = Path(seen.options.build_dir)
    try:
        stamp = json.loads((build_dir / STAMP).read_bytes())
        place = Place(Path(stamp["place"]["folder"]), Path(stamp["place"]["archive"]))
        with open(build_dir / "lock", "rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return place if stamp == _stamp(seen, place, stamp["tools"]) else None
    except (OSError, ValueError, LookupError, TypeError):
        return None


@dataclass(frozen=True)
class Products:
    """What the last whole build made, by the path of each file: `kept` has the state that the build left, `touched` another one."""

    kept: frozenset[str]
    touched: frozenset[str]


def products(build_dir: Path) -> Products:
    """The products of the last whole build; none when there was none, or another one began since."""
    try:
        states = json.loads((build_dir / STAMP).read_bytes())["products"]
        kept = frozenset(path for path, state in states.items() if _state(path) == state)
        return Products(kept, frozenset(states) - kept)
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return Products(frozenset(), frozenset())


def say_if_unchanged(seen: Seen) -> bool:
    """Prints what a build ends with, if there is nothing to do; whether that is so."""
    began = time.monotonic()
    place = nothing_to_do(seen)
    if place is not None:
        progress = Progress(seen.options.progress)
        progress.say(describe_bundle(place.folder, place.archive, time.monotonic() - began))
        progress.end()
    return place is not None


def forget(build_dir: Path) -> None:
    """Takes back what the stamp says, because it is about to change, but for the products that somebody touched: a build of other targets, or
    one that is killed, does not make them again, so a later one must still know. Raises OSError."""
    touched = products(build_dir).touched
    if touched:
        write_whole(build_dir / STAMP, canonical_json({"products": {path: _TOUCHED for path in touched}}))
    else:
        _remove(build_dir)


def _remove(build_dir: Path) -> None:
    with suppress(FileNotFoundError):
        os.unlink(build_dir / STAMP)


def remember(seen: Seen, place: Place, tools: Iterable[str | Path]) -> None:
    """Leaves the stamp after a build that made everything, or none if an input or a tool changed too late to be vouched for. `tools` are what
    changes when a tool is installed. Raises OSError."""
    build_dir = Path(seen.options.build_dir)
    stamp = _stamp(seen, place, map(str, tools))
    if all(state is None or state[2] + _tick(state) < seen.at_ns for read in (seen.inputs, stamp["tools"]) for state in read.values()):
        write_whole(build_dir / STAMP, canonical_json(stamp))
    else:
        _remove(build_dir)


def _tick(state: State) -> int:
    return _TICK_NS if state[2] % 1_000_000_000 else _COARSE_TICK_NS


def _stamp(seen: Seen, place: Place, tools: Iterable[str]) -> dict[str, Any]:
    build_dir = Path(seen.options.build_dir).absolute()
    products = {str(path): _state(path) for path in (place.archive, *(build_dir / name for name in _PRODUCT_FILES))}
    for folder in (place.folder, *(build_dir / name for name in _PRODUCT_FOLDERS)):
        products.update(_walk(folder))
    return {"facts": seen.facts, "inputs": seen.inputs, "place": {"archive": str(place.archive), "folder": str(place.folder)},
            "products": products, "tools": {path: _state(path) for path in tools}}


def _state(path: str | Path) -> State | None:
    """Size, time of the last change of the content and of anything, and inode of a file; None when there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return [found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino]


def _walk(folder: Path) -> dict[str, State | None]:
    """The state of every file below a folder but compiled bytecode."""
    states: dict[str, State | None] = {}
    waiting = [str(folder)]
    while waiting:
        with suppress(OSError), os.scandir(waiting.pop()) as entries:
            for entry in entries:
                if not entry.is_dir():
                    states[entry.path] = _state(entry.path)
                elif entry.name != "__pycache__":
                    waiting.append(entry.path)
    return states
