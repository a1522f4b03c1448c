# SPDX-License-Identifier: Apache-2.0
"""The units of work of a build, independent of where they run: what goes in, what comes out, how they fail.

A task is plain data, so it can cross a process or a network; `generator.farm` decides where it runs. An outcome carries a digest of its
outputs, made where the work was done and checked where they arrive.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import Any


class TaskFailure(Exception):
    """A task failed: `reason` is one useful line, `log` the whole output of the tool."""

    def __init__(self, reason: str, log: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.log = log

    def __reduce__(self) -> tuple:
        return type(self), (self.reason, self.log)


@dataclass(frozen=True)
class TraceTask:
    """One kernel to trace: the spec's and plan's JSON, the modules its source closure starts from, a time limit in seconds."""

    name: str
    spec: dict[str, Any]
    plan: dict[str, Any]
    roots: tuple[str, ...]
    fingerprint: str
    time_limit_s: float

    @property
    def ptx_target(self) -> str:
        """What `CUTE_DSL_ARCH` must be in the process that traces it."""
        return self.spec["ptx_target"]


@dataclass(frozen=True)
class AssembleTask:
    """One kernel to assemble for one SM. `plan`, `smem_limit` and `allow_spills` are what the cubin is checked against."""

    name: str
    ptx: bytes = field(repr=False)
    arch: str
    assembler: str
    plan: dict[str, Any]
    smem_limit: int
    allow_spills: bool
    fingerprint: str
    time_limit_s: float


@dataclass(frozen=True)
class Outcome:
    """What a task made: named outputs, the tool's output, and what it cost where it ran."""

    outputs: dict[str, bytes] = field(repr=False)
    digest: str
    log: str = ""
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    peak_bytes: int = 0
    worker: str = ""

    def check(self, name: str) -> None:
        """Raises TaskFailure when the outputs are not what the worker made."""
        if output_digest(self.outputs) != self.digest:
            raise TaskFailure(f"{name}: the outputs were damaged between the worker {self.worker or 'here'} and this machine; build again")


def output_digest(outputs: dict[str, bytes]) -> str:
    """SHA-256 (hex) over the names and contents of a task's outputs."""
    digests = {name: hashlib.sha256(data).hexdigest() for name, data in outputs.items()}
    return hashlib.sha256(json.dumps(digests, sort_keys=True).encode()).hexdigest()
