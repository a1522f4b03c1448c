# SPDX-License-Identifier: Apache-2.0
"""Knows when there is nothing to do, without asking each product: nothing that the last build read or made was touched since.

A finished build leaves a stamp: the size, times and inode of every file that it read or made, its options, the commit, and the Python that
ran it. The next build compares these first. What differs in anything goes the whole way, where contents decide; so does what the stamp
cannot vouch for, such as a file that was written in the very seconds in which it was read. Each dist folder has a stamp of its own, so that
builds into two of them know each their own. This module imports little, because what a build with nothing to do imports is most of its time.
"""

from __future__ import annotations

import fcntl
import hashlib
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

FOLDER = "unchanged"
"""Folder of the stamps below the build folder, one for each dist folder, and of PRODUCTS."""
PRODUCTS = "products.json"
"""What the last whole build left in the build folder and its dist folder: path -> state."""
KEPT_STAMPS = 8

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
        stamp = json.loads(stamp_path(build_dir, seen.options.dist).read_bytes())
        place = _place(stamp)
        with open(build_dir / "lock", "rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return place if stamp == _stamp(seen, place, stamp["tools"]) else None
    except (OSError, ValueError, LookupError, TypeError):
        return None


def stamp_path(build_dir: Path, dist: str) -> Path:
    """Where the stamp of a dist folder is kept."""
    return build_dir / FOLDER / f"{hashlib.sha256(os.path.abspath(dist).encode()).hexdigest()[:16]}.json"


def _place(stamp: Mapping[str, Any]) -> Place:
    return Place(Path(stamp["place"]["folder"]), Path(stamp["place"]["archive"]))


@dataclass(frozen=True)
class Products:
    """What whole builds made, by the path of each file: `kept` has the state that the build left, `touched` another one."""

    kept: frozenset[str]
    touched: frozenset[str]


def products(build_dir: Path) -> Products:
    """The products of the last whole build, and of the last one into each other dist folder; none when there was none, or another one began since."""
    states = {**_elsewhere(build_dir), **_last_products(build_dir)}
    kept = frozenset(path for path, state in states.items() if _state(path) == state)
    return Products(kept, frozenset(states) - kept)


def _last_products(build_dir: Path) -> dict[str, State]:
    try:
        return dict(json.loads((build_dir / FOLDER / PRODUCTS).read_bytes()))
    except (OSError, ValueError, TypeError):
        return {}


def _elsewhere(build_dir: Path) -> dict[str, State]:
    """The bundles and archives that stamps speak of, but those of a tree that was moved. Of the build folder itself, the last build knows."""
    states: dict[str, State] = {}
    for path in _stamps(build_dir):
        with suppress(OSError, ValueError, LookupError, TypeError, AttributeError):
            stamp = json.loads(path.read_bytes())
            place = _place(stamp)
            if path == stamp_path(build_dir, stamp["facts"]["options"]["dist"]):
                states.update({name: state for name, state in stamp["products"].items() if _is_in(name, place)})
    return states


def _stamps(build_dir: Path) -> list[Path]:
    """The stamps that there are, the newest first."""
    found = [path for path in (build_dir / FOLDER).glob("*.json") if path.name != PRODUCTS]
    return sorted(found, key=_written, reverse=True)


def _written(path: Path) -> int:
    state = _state(path)
    return state[1] if state else 0


def _is_in(path: str, place: Place) -> bool:
    return path == str(place.archive) or path.startswith(str(place.folder) + os.sep)


def say_if_unchanged(seen: Seen) -> bool:
    """Prints what a build ends with, if there is nothing to do; whether that is so."""
    began = time.monotonic()
    place = nothing_to_do(seen)
    if place is not None:
        progress = Progress(seen.options.progress)
        progress.say(describe_bundle(place.folder, place.archive, time.monotonic() - began))
        progress.end()
    return place is not None


def forget(build_dir: Path, dist: str) -> None:
    """Takes back what is known of the products in the build folder and in `dist`, because they are about to change, but for the products that
    somebody touched: a build of other targets, or one that is killed, does not make them again, so a later one must still know. Raises OSError."""
    touched = products(build_dir).touched
    stamp_path(build_dir, dist).unlink(missing_ok=True)
    touched -= _elsewhere(build_dir).keys()  # their own stamps go on saying so
    if touched:
        write_whole(build_dir / FOLDER / PRODUCTS, canonical_json({path: _TOUCHED for path in touched}))
    else:
        (build_dir / FOLDER / PRODUCTS).unlink(missing_ok=True)


def remember(seen: Seen, place: Place, tools: Iterable[str | Path]) -> None:
    """Leaves the stamp after a build that made everything, or none if an input or a tool changed too late to be vouched for. `tools` are what
    changes when a tool is installed. The stamps of the dist folders that were built into last are kept. Raises OSError."""
    build_dir = Path(seen.options.build_dir)
    path = stamp_path(build_dir, seen.options.dist)
    stamp = _stamp(seen, place, map(str, tools))
    write_whole(build_dir / FOLDER / PRODUCTS, canonical_json(stamp["products"]))
    if all(state is None or state[2] + _tick(state) < seen.at_ns for read in (seen.inputs, stamp["tools"]) for state in read.values()):
        write_whole(path, canonical_json(stamp))
        for old in _stamps(build_dir)[KEPT_STAMPS:]:
            old.unlink(missing_ok=True)
    else:
        path.unlink(missing_ok=True)


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
