# SPDX-License-Identifier: Apache-2.0
"""From a problem to a call of the runtime: the one place in the device tests that knows the runner's functions."""

from __future__ import annotations

from typing import Any

from fmhaforge.dtypes import INT_MAX
from fmhaforge.query import ROUTE_PTX
from tests.device.cases import PAGE, Case
from tests.device.problem import Problem

def runner_for(bundle: Any, case: Case, route: str) -> Any:
    """A runner for the shape of `case`, restricted to the row of its subject."""
    subject = case.subject
    return bundle.runner(
        case.num_q_heads, case.num_kv_heads, subject.head_dim, case.batch, case.seqlen_q, case.seqlen_kv,
        use_small_d64=subject.use_small_d64, route=route, row_sm=subject.sm if route == ROUTE_PTX else None,
        checked=subject.checked,
    )


def preflight(runner: Any, case: Case, stream: int) -> Any:
    """Loads what the launch will use; returns the runtime's Support."""
    operation = case.subject.operation
    function = getattr(runner, f"preflight_{operation}")
    return function(stream, _window(case)) if operation in ("llm", "paged", "paged_ragged") else function(stream)


def launch(runner: Any, problem: Problem, stream: int) -> None:
    """Enqueues the launch that `problem` describes."""
    _LAUNCHES[problem.case.subject.operation](runner, problem, stream)


def _window(case):
    return INT_MAX if case.window is None else case.window


def _dense(problem):
    return problem.q.view, problem.k.view, problem.v.view, problem.o.view


def _llm(runner, problem, stream):
    runner.run(*_dense(problem), problem.cu_kv, stream, problem.case.scale, _window(problem.case))


def _padding(runner, problem, stream):
    runner.run_padding(*_dense(problem), problem.cu_q, problem.cu_kv, stream, problem.case.scale)


def _vision_block(runner, problem, stream):
    intervals = (problem.block_begin, problem.block_end)
    runner.run_vision_block(*_dense(problem), problem.cu_kv, *intervals, stream, problem.case.scale, _window(problem.case))


def _vit(runner, problem, stream):
    case = problem.case
    runner.run_vit(*_dense(problem), problem.cu_q, len(problem.q.view), case.seqlen_q, case.batch, stream, case.scale)


def _paged_tensors(problem):
    return problem.q.view, problem.pool.view, problem.page_list, problem.o.view, problem.cu_q, problem.cu_kv


def _paged_sizes(problem, stream):
    case = problem.case
    return len(problem.pool.view), case.max_pages, PAGE, stream, case.scale, _window(case)


def _paged(runner, problem, stream):
    runner.run_paged(*_paged_tensors(problem), *_paged_sizes(problem, stream))


def _paged_ragged(runner, problem, stream):
    lengths = (len(problem.q.view), problem.case.seqlen_q)
    runner.run_paged_ragged(*_paged_tensors(problem), *lengths, *_paged_sizes(problem, stream))


_LAUNCHES = {
    "llm": _llm, "padding": _padding, "vision_block": _vision_block, "vit": _vit, "paged": _paged, "paged_ragged": _paged_ragged,
}
