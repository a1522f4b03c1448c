# SPDX-License-Identifier: Apache-2.0
"""What a cubin must fulfil before it is accepted: it is the kernel that the launch plan describes, and its SM can hold it."""

from __future__ import annotations

from generator.assemble import AssembleReport
from generator.plan import LaunchPlan


def _params(report: AssembleReport, plan: LaunchPlan) -> list[str]:
    have = [size for _, _, size in report.params]
    want = [param.size for param in plan.params]
    if len(have) != len(want):
        return [f"the kernel takes {len(have)} parameters, the launch plan fills {len(want)}"]
    for (ordinal, _, size), param in zip(report.params, plan.params):
        if size != param.size:
            return [f"parameter {ordinal} ({param.name}) has {size} bytes in the cubin, {param.size} in the launch plan"]
    # An over-aligned parameter (a tensor map) lies where the SM's constant bank puts it; before it, offsets are the plan's.
    for (ordinal, offset, _), (planned, _), param in zip(report.params, plan.param_layout(), plan.params):
        if param.alignment > 16:
            break
        if offset != planned:
            return [f"parameter {ordinal} ({param.name}) lies at offset {offset} in the cubin, at {planned} in the launch plan"]
    return []


def _block(report: AssembleReport, plan: LaunchPlan) -> list[str]:
    if report.reqntid is None:
        return [f"the kernel does not state its block size (reqntid); the launch plan says {plan.block}"]
    if tuple(report.reqntid) != tuple(plan.block):
        return [f"the kernel demands blocks of {tuple(report.reqntid)}, the launch plan says {tuple(plan.block)}"]
    return []


def problems(report: AssembleReport, plan: LaunchPlan, smem_limit: int, allow_spills: bool) -> list[str]:
    """Why the cubin is refused: empty when it is accepted. `smem_limit` in bytes a block."""
    found = _params(report, plan) + _block(report, plan)
    shared = plan.smem_bytes + report.static_smem
    if shared > smem_limit:
        found.append(f"a block needs {shared} bytes of shared memory ({plan.smem_bytes} dynamic, {report.static_smem} static), "
                     f"{report.arch} has {smem_limit}")
    if report.spill_bytes and not allow_spills:
        found.append(f"spills {report.spill_stores} bytes of stores and {report.spill_loads} of loads at {report.registers} registers: "
                     "make the tile smaller (allow_spills=1 accepts it)")
    return found
