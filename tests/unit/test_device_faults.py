# SPDX-License-Identifier: Apache-2.0
"""The planted faults of the device tests, on a stand-in of the checked kernels: reported as planted, and a wrong kernel is noticed."""

from dataclasses import replace

import naive_kernel
import numpy as np
import pytest
from fake_runner import FakeBundle
from test_device_cases import metadata_of
from test_device_lab import lab_of
from test_device_sanitize import HostBundle

from tests.device import faults, sanitize, subjects
from tests.device.backends import NumpyBackend
from tests.device.cases import random_case
from tests.device.problem import compose


@pytest.fixture(scope="module")
def checked(manifest):
    """The smallest checked variant of each operation and mask."""
    found = {}
    for subject in subjects.subjects(metadata_of(manifest), 90):
        if subject.checked:
            found.setdefault((subject.operation, subject.mask), subject)
    return tuple(found.values())


@pytest.fixture(scope="module")
def one_each(checked):
    """One of them for each operation."""
    return tuple({subject.operation: subject for subject in checked}.values())


def small(case):
    """The case with one head: the stand-in is slow."""
    return replace(case, num_q_heads=1, num_kv_heads=1)


def wrong_with(subject, fault, kernel=naive_kernel.run, report=lambda found: found[0]):
    """What the device test says about a fault."""
    backend = NumpyBackend()
    lab = lab_of(FakeBundle((subject,), backend, kernel), backend, ("cubin",))
    lab.bundle.report = report
    problem = lab.prepare(small(faults.faulty_case(subject, fault)))
    planted = fault.plant(problem)
    problem.reset()
    found = faults.reported_by(lab.prepared(problem, "cubin"))
    return faults.findings(problem, fault.rows, planted, found)


def test_there_are_checked_subjects_of_every_paged_kind(checked):
    assert {(subject.operation, subject.mask) for subject in checked} == {
        (operation, mask) for operation in ("paged", "paged_ragged") for mask in ("causal", "sliding_causal")}
    assert all(subject.variant.endswith("_checked") and subject.routes == ("cubin", "driver-ptx") for subject in checked)


def test_every_fault_is_reported_as_planted(checked):
    for subject in checked:
        planted = list(faults.faults(subject))
        assert len({fault.name for fault in planted}) == len(planted) >= 16
        for fault in planted:
            assert wrong_with(subject, fault) == (), (subject.name, fault.name)


def test_every_value_that_is_planted_is_outside_the_limits(one_each):
    """The faults are faults: the array holds the value that the report names, and no other entry changed."""
    for subject in one_each:
        for fault in faults.faults(subject):
            good, bad = (compose(small(faults.faulty_case(subject, fault)), NumpyBackend()) for _ in range(2))
            report = fault.plant(bad)
            if report.kind in ("k-page", "v-page"):
                places = np.argwhere(good.page_list != bad.page_list).tolist()
                assert places == [[report.batch, ("k-page", "v-page").index(report.kind), report.entry]]
                assert bad.page_list[tuple(places[0])] == report.value and not 0 <= report.value < len(bad.pool.view)
                continue
            name = {"kv-length": "cu_kv", "q-length": "cu_q"}[report.kind]
            before, after = (np.diff(getattr(problem, name)) for problem in (good, bad))
            assert np.flatnonzero(before != after).tolist() == [report.batch] and after[report.batch] == report.value


def first(subject, name):
    return next(fault for fault in faults.faults(subject) if fault.name.startswith(name))


@pytest.mark.parametrize("name", ["k page", "v page", "kv_len over", "q_len negative"])
def test_a_wrong_or_missing_report_is_noticed(one_each, name):
    for subject in one_each:
        fault = first(subject, name)
        code, batch, entry, value = 1, 1, 0, -1
        for said in ((code, batch, entry + 3, value), (code, 0, entry, value), (3, batch, entry, 7)):
            assert "instead of" in wrong_with(subject, fault, report=lambda found: said)[0]
        silent = replace(fault, plant=lambda problem: faults.Report("k-page", 1, 0, -1))
        assert "None instead of" in wrong_with(subject, silent)[0]


def test_damage_to_other_sequences_is_noticed(one_each):
    def kernel(problem):
        naive_kernel.run(problem)
        if problem.case.kv_lens == (70,):
            problem.o.view[0] += 1

    for subject in one_each:
        for name in ("k page", "kv_len over"):
            assert any("off by" in text for text in wrong_with(subject, first(subject, name), kernel))


def test_poison_in_the_faulty_sequence_is_noticed(one_each):
    """A kernel that follows a wrong page reads NaN somewhere."""
    def kernel(problem):
        naive_kernel.run(problem)
        if problem.case.kv_lens == (0,):
            first_row = int(problem.cu_q[0])
            rows = problem.o.view[first_row : first_row + 33] if problem.case.subject.packed else problem.o.view
            rows[...] = np.nan

    for subject in one_each:
        for name in ("k page", "kv_len over"):
            assert any("NaN" in text for text in wrong_with(subject, first(subject, name), kernel))


def test_good_random_cases_report_nothing(checked):
    backend = NumpyBackend()
    for subject in checked:
        lab = lab_of(FakeBundle((subject,), backend), backend, ("cubin", "driver-ptx"))
        cases = sorted((random_case(subject, number) for number in range(60)), key=lambda one: sum(one.q_lens) * max(one.kv_lens) * one.num_q_heads)
        for made in cases[:2]:
            assert lab.faults(made) == []
        assert [tally.cases for tally in lab.recorder.tallies] == [2, 2]


def test_a_false_report_fails_a_random_case(checked):
    backend = NumpyBackend()
    lab = lab_of(FakeBundle(checked[:1], backend), backend, ("cubin",))
    fault = first(checked[0], "k page")
    problem = lab.prepare(small(faults.faulty_case(checked[0], fault)))
    fault.plant(problem)
    outcome = lab.verdicts(problem)["cubin"]
    assert outcome.faults[0].startswith("FaultReported:") and lab.recorder.tallies[0].failed


def test_the_sanitizer_program_runs_every_fault(checked, monkeypatch):
    made = faults.faulty_case
    monkeypatch.setattr(faults, "faulty_case", lambda subject, fault: small(made(subject, fault)))
    for subject in checked[:1]:
        bundle = HostBundle((subject,), naive_kernel.run)
        ran = list(sanitize.run_all(bundle, subject, "cubin"))
        assert [name for name, _ in ran] == [subject.name, *(f"{subject.name} {fault.name}" for fault in faults.faults(subject))]
        assert all(wrong == () for _, wrong in ran) and bundle.driver.live == {}
