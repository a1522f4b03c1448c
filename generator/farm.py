# SPDX-License-Identifier: Apache-2.0
"""Where tasks run. Every farm has `run(task) -> Outcome` (raising TaskFailure), safe to call from several threads, and `close()`.

The local farm traces in this machine's worker processes and assembles with its ptxas.
"""

from __future__ import annotations

import os
from typing import Callable, Protocol

from generator import rowcheck
from generator.assemble import AssembleError, assemble_text
from generator.canonical import canonical_json
from generator.plan import LaunchPlan
from generator.tasks import AssembleTask, Outcome, TaskFailure, TraceTask, output_digest
from generator.toolchain import ToolchainError
from generator.trace import Tracer

#: Tasks that a build hands to a cluster at once, unless -j says otherwise; its scheduler decides how many of them run.
CLUSTER_JOBS = 64


class Farm(Protocol):
    """What the build asks of the place where its tasks run."""

    def run(self, task: TraceTask | AssembleTask) -> Outcome:
        """Runs one task. Raises TaskFailure."""

    def close(self) -> None:
        """Ends what the farm started."""


def run_assemble(task: AssembleTask, scratch: str | None = None) -> Outcome:
    """The outputs `cubin` and `report` of a kernel for one SM. Raises TaskFailure when ptxas fails or the cubin is refused."""
    try:
        data, report, tool = assemble_text(task.ptx, task.arch, task.assembler, task.time_limit_s, scratch)
    except AssembleError as error:
        raise TaskFailure(str(error), error.log) from None
    except (ToolchainError, OSError) as error:
        raise TaskFailure(f"{task.name}: {error}") from None
    found = rowcheck.problems(report, LaunchPlan.from_json(task.plan), task.smem_limit, task.allow_spills)
    if found:
        raise TaskFailure("; ".join(found), tool.log)
    outputs = {"cubin": data, "report": canonical_json(report.to_json())}
    return Outcome(outputs, output_digest(outputs), tool.log, tool.seconds, tool.cpu_seconds, tool.peak_bytes)


class LocalFarm:
    """Runs tasks on this machine; as many at once as there are callers."""

    def __init__(self, scratch: str) -> None:
        self.scratch = scratch
        self.tracer = Tracer(scratch)

    def run(self, task: TraceTask | AssembleTask) -> Outcome:
        """Runs one task. Raises TaskFailure."""
        os.makedirs(self.scratch, exist_ok=True)
        if isinstance(task, TraceTask):
            return self.tracer.run(task)
        return run_assemble(task, self.scratch)

    def close(self) -> None:
        """Ends the trace servers."""
        self.tracer.close()


def maker(place: str) -> Callable[[str], Farm]:
    """What starts the farm that the option `farm=` names; it is called with a folder for temporary files."""
    if place == "local":
        return LocalFarm

    def connect(scratch: str) -> Farm:
        from generator.farm_dask import DaskFarm

        return DaskFarm(place)

    return connect
