# SPDX-License-Identifier: Apache-2.0
"""What a farm's worker runs: the same tasks as the local farm, after checking that this machine would build what the client expects.

A worker is a Python process started in a checkout of the same commit, with the same locked packages (docs/build.md). It keeps its trace
servers between tasks.
"""

from __future__ import annotations

import atexit
import os
import shutil
import socket
import tempfile
import threading
from dataclasses import replace

from generator import buildplan, toolchain
from generator.farm import LocalFarm
from generator.manifest import KernelSpec
from generator.plan import LaunchPlan
from generator.sources import SourceError
from generator.tasks import AssembleTask, Outcome, TaskFailure, TraceTask
from generator.toolchain import ToolchainError

_lock = threading.Lock()
_farm: LocalFarm | None = None


class OtherToolsError(TaskFailure):
    """The worker's tools or sources differ from the client's, so it must not build for it."""


def _local_farm() -> LocalFarm:
    global _farm
    with _lock:
        if _farm is None:
            scratch = tempfile.mkdtemp(prefix="fmhaforge-worker-")
            _farm = LocalFarm(scratch)
            atexit.register(shutil.rmtree, scratch, True)
            atexit.register(_farm.close)
        return _farm


def place() -> str:
    """This worker in words, for logs: host and process."""
    return f"{socket.gethostname()}:{os.getpid()}"


def fingerprint_here(task: TraceTask | AssembleTask) -> str:
    """The fingerprint that `task` would have if it were planned on this machine."""
    plan = LaunchPlan.from_json(task.plan)
    if isinstance(task, TraceTask):
        return toolchain.digest_of(buildplan.trace_fingerprint(KernelSpec.from_json(task.spec), plan, task.roots))
    return toolchain.digest_of(buildplan.assemble_fingerprint(task.arch, task.assembler, plan, task.smem_limit, task.allow_spills))


def run(task: TraceTask | AssembleTask) -> Outcome:
    """Runs a task here. Raises OtherToolsError when this machine would build something else, TaskFailure when the task fails."""
    try:
        equal = fingerprint_here(task) == task.fingerprint
    except (ToolchainError, SourceError, OSError, ValueError) as error:
        raise OtherToolsError(f"worker {place()}: {error}") from None
    if not equal:
        raise OtherToolsError(f"worker {place()} has other sources, packages or Python than this build: check out the same commit there, run `make setup` "
                              "and start it again")
    return replace(_local_farm().run(task), worker=place())
