# SPDX-License-Identifier: Apache-2.0
"""The tools that the build uses, found among the installed packages: where they are, which version, and a digest of their files.

A distribution's digest comes from its RECORD: the hashes of the files that the wheel brought, without what the installer adds (scripts
whose first line holds a path, compiled bytecode), so that it is the same on every machine and in every folder.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
from dataclasses import asdict, dataclass
from functools import lru_cache
from importlib import metadata
from pathlib import Path

#: Distributions that decide what a trace yields.
TRACE_DISTRIBUTIONS = ("nvidia-cutlass-dsl", "nvidia-cutlass-dsl-libs-base", "nvidia-cutlass-dsl-libs-core", "nvidia-cutlass-dsl-libs-cu12",
                       "cuda-bindings", "cuda-core", "numpy")

#: Flavours that overwrite the pinned flavour's files when they are installed beside it.
CONFLICTING_DISTRIBUTIONS = ("nvidia-cutlass-dsl-libs-cu13",)

#: Assembler name in variants.yaml -> (distribution, path of its ptxas below site-packages).
ASSEMBLERS = {
    "cuda12": ("nvidia-cuda-nvcc-cu12", "nvidia/cuda_nvcc/bin/ptxas"),
    "cuda13": ("nvidia-cuda-nvcc", "nvidia/cu13/bin/ptxas"),
}

COMPILER_DISTRIBUTION = ("ziglang", "ziglang/zig")

REMEDY = "run `make setup` and use the tree's own .venv/bin/scons"


class ToolchainError(Exception):
    """A tool is missing, or installed in a way that would give other results; the message names it and the remedy."""


@dataclass(frozen=True)
class Distribution:
    """One installed package: its name, version and the digest (SHA-256, hex) of the files that its wheel brought."""

    name: str
    version: str
    digest: str

    def to_json(self) -> dict[str, str]:
        return asdict(self)


def record_digest(record: str) -> str:
    """The digest of a RECORD's text, over the files inside site-packages that came with the wheel."""
    kept = []
    for line in record.splitlines():
        path, digest, size = line.rsplit(",", 2)
        if digest and not path.startswith(("..", "/")) and ".dist-info/" not in path and not path.endswith(".pyc"):
            kept.append(line)
    return hashlib.sha256("\n".join(sorted(kept)).encode()).hexdigest()


@lru_cache(maxsize=None)
def _installed(name: str) -> metadata.Distribution:
    try:
        return metadata.distribution(name)
    except metadata.PackageNotFoundError:
        raise ToolchainError(f"the package {name} is not installed for {sys.executable}: {REMEDY}") from None


@lru_cache(maxsize=None)
def distribution(name: str) -> Distribution:
    """The installed distribution `name`. Raises ToolchainError when it is missing or has no RECORD."""
    found = _installed(name)
    record = found.read_text("RECORD")
    if not record:
        raise ToolchainError(f"the package {name} has no RECORD, so nobody can say which files it holds: {REMEDY}")
    return Distribution(name, found.version, record_digest(record))


def _executable(name: str, below_site_packages: str) -> Path:
    path = Path(str(_installed(name).locate_file(below_site_packages)))
    if not os.access(path, os.X_OK):
        raise ToolchainError(f"{path} of the package {name} is missing or cannot be executed: {REMEDY}")
    return path


def assembler_path(assembler: str) -> Path:
    """The ptxas of an assembler named in variants.yaml."""
    if assembler not in ASSEMBLERS:
        raise ToolchainError(f"unknown assembler {assembler!r}; known: {', '.join(ASSEMBLERS)}")
    return _executable(*ASSEMBLERS[assembler])


def assembler_distribution(assembler: str) -> Distribution:
    """The package that brings the ptxas of an assembler."""
    assembler_path(assembler)
    return distribution(ASSEMBLERS[assembler][0])


def compiler_path() -> Path:
    """The zig executable that compiles the C sources for every host."""
    return _executable(*COMPILER_DISTRIBUTION)


def compiler_distribution() -> Distribution:
    """The package that brings the C compiler."""
    return distribution(COMPILER_DISTRIBUTION[0])


def trace_distributions() -> tuple[Distribution, ...]:
    """The packages that decide what a trace yields. Raises ToolchainError when a conflicting flavour is installed too."""
    for name in CONFLICTING_DISTRIBUTIONS:
        try:
            metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue
        raise ToolchainError(f"{name} is installed beside the cu12 flavour and overwrites its files: remove .venv, then {REMEDY}")
    return tuple(distribution(name) for name in TRACE_DISTRIBUTIONS)


def witnesses() -> tuple[Path, ...]:
    """What changes when a tool is installed, removed or replaced: the folders that packages are installed into, and the executables."""
    names = (*TRACE_DISTRIBUTIONS, *(name for name, _ in ASSEMBLERS.values()), COMPILER_DISTRIBUTION[0])
    folders = {Path(str(_installed(name).locate_file(""))) for name in names}
    return (*sorted(folders), *map(assembler_path, ASSEMBLERS), compiler_path())


def python_minor() -> str:
    """The running Python's minor version, such as `3.11`."""
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def digest_of(value: object) -> str:
    """SHA-256 (hex) of a value's canonical JSON."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def ptxas_version(text: str) -> str:
    """The version in the output of `ptxas --version`, such as `12.9.86`."""
    found = re.search(r"\bV(\d+\.\d+\.\d+)\b", text)
    if not found:
        raise ToolchainError(f"no version in the output of ptxas --version: {text!r}")
    return found.group(1)
