# SPDX-License-Identifier: Apache-2.0
"""A stand-in for an open bundle on a device: the functions of `fmhaforge.Runner`, computed by plain loops on the host.

Calls are bound to the real runner's signatures, so an argument in the wrong place fails here as it would there.
"""

import inspect
from dataclasses import replace
from types import SimpleNamespace

import naive_kernel
from checked_stand_in import Limits, length_faults, page_faults

from fmhaforge import INT_MAX, FaultReported, Runner
from fmhaforge.checked_report import KINDS
from tests.device.cases import PAGE, Case, cumulative
from tests.device.problem import Problem, Strided

FUNCTIONS = {
    "run": "llm", "run_paged": "paged", "run_paged_ragged": "paged_ragged", "run_padding": "padding",
    "run_vision_block": "vision_block", "run_vit": "vit",
}


class FakeBundle:
    """Serves `subjects`; `kernel(problem)` does the work, `report(faults)` chooses what a checked one says."""

    def __init__(self, subjects, backend, kernel=naive_kernel.run):
        self.subjects = subjects
        self.backend = backend
        self.kernel = kernel
        self.calls = []
        self.report = lambda found: found[0]

    def runner(self, *sizes, **options):
        arguments = inspect.signature(Runner.__init__).bind(None, self, *sizes, **options).arguments
        return FakeRunner(self, arguments)


class FakeRunner:
    """Runs on host arrays what `Runner` runs on a device."""

    def __init__(self, bundle, sizes):
        self.bundle = bundle
        self.sizes = sizes

    def __getattr__(self, name):
        if name in FUNCTIONS:
            return lambda *args: self._run(name, inspect.signature(getattr(Runner, name)).bind(None, *args).arguments)
        if name.startswith("preflight_"):
            operation = name.removeprefix("preflight_")
            return lambda *args: self._preflight(operation, inspect.signature(getattr(Runner, name)).bind(None, *args).arguments)
        raise AttributeError(name)

    def _subject(self, operation, window):
        masks = {"llm": "causal", "paged": "causal", "paged_ragged": "causal"}
        mask = "sliding_causal" if operation in masks and window != INT_MAX else masks.get(operation)
        for subject in self.bundle.subjects:
            long_enough = self.sizes["seqlen_q"] >= subject.seqlen_q_min
            short_enough = subject.seqlen_q_max is None or self.sizes["seqlen_q"] <= subject.seqlen_q_max
            flag = (subject.use_small_d64, subject.checked) == (self.sizes["use_small_d64"], self.sizes["checked"])
            if (subject.operation, subject.head_dim) == (operation, self.sizes["head_dim"]) and mask in (None, subject.mask):
                if long_enough and short_enough and flag:
                    return subject
        raise AssertionError(f"no subject for {operation} {mask} {self.sizes}")

    def _preflight(self, operation, given):
        subject = self._subject(operation, given.get("sliding_window_size", INT_MAX))
        row = SimpleNamespace(variant=subject.variant, ptx_sha256=subject.ptx_sha256)
        return SimpleNamespace(rows=(row,), variants=(subject.variant,))

    def _run(self, name, given):
        self.bundle.calls.append((name, self.sizes["route"]))
        operation = FUNCTIONS[name]
        subject = self._subject(operation, given.get("sliding_window_size", INT_MAX))
        cu_q = given.get("cu_q_seqlens", given.get("cu_seqlens"))
        cu_kv = given.get("cu_kv_seqlens", cu_q)
        batch, seqlen_q = self.sizes["batch_size"], self.sizes["seqlen_q"]
        kv_lens = _lengths(cu_kv)
        q_lens = (seqlen_q,) * batch if cu_q is None else _lengths(cu_q)
        if operation in ("vit", "paged_ragged"):
            assert given.get("total_seqlen", given.get("total_q_seqlen")) == len(given["q"])
            assert given.get("max_seqlen", given.get("max_q_seqlen")) == seqlen_q
        if subject.paged:
            assert given["num_flat_pages"] == len(given["paged_kv_pool"]) and given["tokens_per_page"] == 128
            assert given["max_pages_per_seq"] * 128 == self.sizes["kv_seqlen"]
        case = Case(
            subject=subject, label="call", num_q_heads=self.sizes["num_q_heads"], num_kv_heads=self.sizes["num_kv_heads"],
            q_lens=q_lens, kv_lens=kv_lens, seqlen_q=seqlen_q, seqlen_kv=self.sizes["kv_seqlen"],
            window=given.get("sliding_window_size"), scale=given["attention_scale"],
        )
        arrays = [given.get(key) for key in ("q", "o", "k", "v", "paged_kv_pool")]
        q, o, k, v, pool = (None if array is None else Strided(array, array, (), 0) for array in arrays)
        self._compute(Problem(
            case=case, backend=self.bundle.backend, q=q, o=o, k=k, v=v, pool=pool, cu_kv=cu_kv,
            cu_q=self.bundle.backend.integers(cumulative(q_lens)) if cu_q is None else cu_q, page_list=given.get("kv_cache_page_list"),
            block_begin=given.get("block_begin"), block_end=given.get("block_end"),
        ))

    def _compute(self, problem):
        """Runs the kernel; a checked one goes on without faulty rows and keys, and reports."""
        if not problem.case.subject.checked:
            self.bundle.kernel(problem)
            return
        found = []
        for index in range(problem.case.batch):
            faults, alone = _verified(problem, index)
            found += [(code, index, entry, value) for code, entry, value in faults]
            self.bundle.kernel(alone)
        if found:
            code, *rest = self.bundle.report(found)
            raise FaultReported("fake", KINDS[code], None, *rest, "a fault")


def _verified(problem, index):
    """(faults of one sequence, the problem of that sequence alone with no rows or keys where a fault is)."""
    case, packed, integers = problem.case, problem.case.subject.packed, problem.backend.integers
    limits = Limits(len(problem.pool.view), case.max_pages * PAGE, case.seqlen_q, len(problem.q.view) if packed else None)
    start, q_len, kv_len = int(problem.cu_q[index]), case.q_lens[index], case.kv_lens[index]
    faults = list(length_faults(limits, start, q_len, kv_len))
    if not faults:
        faults += page_faults(limits, problem.page_list[index], lambda key: key < kv_len)
    codes = {code for code, _, _ in faults}
    q_len, kv_len = 0 if 4 in codes else q_len, 0 if codes - {4} else kv_len
    q, o = (part if packed else replace(part, view=part.view[index : index + 1]) for part in (problem.q, problem.o))
    return faults, replace(problem, case=replace(case, q_lens=(q_len,), kv_lens=(kv_len,)), q=q, o=o, cu_q=integers([start, start + q_len]),
                           cu_kv=integers([0, kv_len]), page_list=problem.page_list[index : index + 1])


def _lengths(sums):
    values = [int(value) for value in sums]
    return tuple(stop - start for start, stop in zip(values, values[1:]))
