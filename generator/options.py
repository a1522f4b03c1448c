# SPDX-License-Identifier: Apache-2.0
"""The build's options: names, defaults, help and strict parsing. `scons --help` prints this table.

Imports neither SCons nor cutlass.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from typing import Any, Callable, Mapping

HOSTS = ("x86_64", "aarch64")
PROGRESS = ("auto", "live", "plain", "none")


class OptionError(Exception):
    """An option is unknown or its value cannot be read; the message names the option, the value and what is allowed."""


@dataclass(frozen=True)
class Option:
    """One option: its name, its default as one would type it, what it does, and how its text is read."""

    name: str
    default: str
    help: str
    read: Callable[[str], Any]


def _text(value: str) -> str:
    return value


def _list(value: str) -> tuple[str, ...] | None:
    """A comma-separated list; None when empty."""
    if not value:
        return None
    items = tuple(item.strip() for item in value.split(","))
    if "" in items:
        raise ValueError("an item of the list is empty")
    return items


def _flag(value: str) -> bool:
    if value not in ("0", "1"):
        raise ValueError("expected 0 or 1")
    return value == "1"


def _seconds(value: str) -> float:
    if not re.fullmatch(r"\d+(\.\d+)?", value) or float(value) <= 0:
        raise ValueError("expected a number of seconds above 0")
    return float(value)


def read_size(value: str) -> int:
    """A number of bytes with an optional suffix K, M, G or T (powers of 1024)."""
    found = re.fullmatch(r"(\d+)([KMGT]?)", value)
    if not found:
        raise ValueError("expected bytes, such as 500M or 2G")
    return int(found.group(1)) << (10 * (" KMGT".index(found.group(2) or " ")))


def _shard(value: str) -> tuple[int, int] | None:
    if not value:
        return None
    found = re.fullmatch(r"([1-9]\d*)/([1-9]\d*)", value)
    if not found or int(found.group(1)) > int(found.group(2)):
        raise ValueError("expected INDEX/COUNT with INDEX from 1 to COUNT, such as 1/4")
    return int(found.group(1)), int(found.group(2))


def _hosts(value: str) -> tuple[str, ...]:
    hosts = _list(value)
    unknown = [host for host in hosts or () if host not in HOSTS]
    if hosts is None or unknown or len(set(hosts)) != len(hosts):
        raise ValueError(f"expected a list of different hosts out of {', '.join(HOSTS)}")
    return tuple(host for host in HOSTS if host in hosts)


def _progress(value: str) -> str:
    if value not in PROGRESS:
        raise ValueError(f"expected one of {', '.join(PROGRESS)}")
    return value


def _farm(value: str) -> str:
    if value != "local" and not re.fullmatch(r"(tcp|tls|ucx)://\S+", value):
        raise ValueError("expected local, or a Dask scheduler such as tcp://scheduler:8786")
    return value


def _path(value: str) -> str:
    if not value:
        raise ValueError("expected a path")
    return value


OPTIONS = (
    Option("sm", "", "SMs to build for, such as 90,87 (default: every target of the manifest)", _list),
    Option("variants", "", "variants to build: names or patterns, such as fmha_v2_d64* (default: all)", _list),
    Option("checked", "0", "1: build the variants marked `checked: true` too", _flag),
    Option("manifest", "variants.yaml", "the manifest", _path),
    Option("dist", "dist", "folder that the bundle and its archive are put in", _path),
    Option("build_dir", "build", "folder for everything else that the build writes", _path),
    Option("hosts", "x86_64", f"hosts to compile the libraries for, out of {','.join(HOSTS)}", _hosts),
    Option("edge_llm", "", "artifacts that `scons edge-llm` makes from the bundle: patterns such as cutedsl_aarch64_* (default: all)", _list),
    Option("allow_unvalidated", "0", "1: ship kernels that the numerics ledger does not know; marks the bundle as not validated", _flag),
    Option("allow_spills", "0", "1: accept kernels that spill registers", _flag),
    Option("ledger", "tests/device/ledger.json", "the numerics ledger", _path),
    Option("time_limit", "300", "seconds that tracing or assembling one kernel may take", _seconds),
    Option("cache", "", "folder that keeps traced and assembled kernels for other builds (default: none)", _text),
    Option("cache_limit", "2G", "size that the cache is trimmed to, least recently used first", read_size),
    Option("farm", "local", "where kernels are built: local, or a Dask scheduler such as tcp://scheduler:8786", _farm),
    Option("shard", "", "INDEX/COUNT: build only that share of the kernels, into cache= (default: all of them)", _shard),
    Option("merge", "", "caches made by shard= to take every kernel from, such as part1,part2; what is in none of them is an error", _list),
    Option("explain", "0", "1: say why each kernel is built again (also --explain)", _flag),
    Option("progress", "auto", f"{', '.join(PROGRESS)}: live display on a terminal, plain lines elsewhere", _progress),
)


@dataclass(frozen=True)
class Options:
    """The options of one build, read and checked. Attributes as in OPTIONS."""

    sm: tuple[str, ...] | None
    variants: tuple[str, ...] | None
    checked: bool
    manifest: str
    dist: str
    build_dir: str
    hosts: tuple[str, ...]
    edge_llm: tuple[str, ...] | None
    allow_unvalidated: bool
    allow_spills: bool
    ledger: str
    time_limit: float
    cache: str
    cache_limit: int
    farm: str
    shard: tuple[int, int] | None
    merge: tuple[str, ...] | None
    explain: bool
    progress: str


def parse(arguments: Mapping[str, str]) -> Options:
    """The options from NAME=VALUE arguments. Raises OptionError."""
    known = {option.name: option for option in OPTIONS}
    for name in arguments:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1, 0.5)
            hint = f"did you mean {near[0]}?" if near else "`scons --help` lists the options"
            raise OptionError(f"unknown option {name}={arguments[name]}: {hint}")
    values = {}
    for option in OPTIONS:
        text = str(arguments.get(option.name, option.default))
        try:
            values[option.name] = option.read(text)
        except ValueError as error:
            raise OptionError(f"option {option.name}={text}: {error}") from None
    options = Options(**values)
    if options.shard and not options.cache:
        raise OptionError("option shard=: a shard leaves its kernels in a cache; add cache=DIR")
    if options.shard and options.merge:
        raise OptionError("option merge=: a build takes part in a shard or merges shards, not both; leave out shard= or merge=")
    return options


def help_text() -> str:
    """The table of options that `scons --help` shows."""
    lines = ["", "usage: scons [NAME=VALUE ...] [-j N] [-k] [-n] [-q] [-c]   or   make bundle ARGS=\"NAME=VALUE ...\"", "",
             "Builds the rows of variants.yaml into a bundle and its archive. Options with their defaults:", ""]
    for option in OPTIONS:
        lines.append(f"  {option.name + '=' + option.default:34} {option.help}")
    lines += ["", f"  {'-j N':34} jobs at once (default: the number of cores)",
              f"  {'-k':34} keep going: one failing kernel does not stop the others",
              f"  {'-n':34} list what would be built, touch nothing",
              f"  {'-q':34} write nothing and say by the status alone whether anything would be built (1)",
              f"  {'-c':34} remove what the build made",
              f"  {'--explain':34} say why each kernel is built again", ""]
    return "\n".join(lines)
