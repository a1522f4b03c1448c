# SPDX-License-Identifier: Apache-2.0
"""Checked kernels report a planted fault exactly, go on without it, and leave every other sequence right."""

import pytest

from tests.device.choose import only
from tests.device.faults import faults, faulty_case, findings, reported_by
from tests.device.named import case


@only(checked=(True,))
def test_planted_faults(lab, subject):
    wrong = []
    for fault in faults(subject):
        made = faulty_case(subject, fault)
        for route in lab.routes_of(subject):
            problem = lab.prepare(made)
            report = fault.plant(problem)
            problem.reset()
            found = reported_by(lab.prepared(problem, route))
            wrong += [f"{made.id} [{route}]: {text}" for text in findings(problem, fault.rows, report, found)]
    if wrong:
        pytest.fail("\n".join(wrong), pytrace=False)


@only(checked=(True,))
def test_a_report_does_not_stay_behind(lab, subject):
    """After a fault the next good launch says nothing."""
    good = lab.prepare(case(subject, "good after bad", (9, 70), (200, 70)))
    fault = next(faults(subject))
    bad = lab.prepare(faulty_case(subject, fault))
    report = fault.plant(bad)
    for route in lab.routes_of(subject):
        assert reported_by(lab.prepared(bad, route)) == report
        assert lab.verdicts(good, record=False)[route].faults == ()


@only(checked=(True,))
def test_a_capture_is_refused(lab, subject):
    import fmhaforge

    torch = lab.backend.xp
    problem = lab.prepare(case(subject, "capture", (9, 70), (200, 70)))
    for route in lab.routes_of(subject):
        lab.runner(problem.case, route)
        problem.reset()
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            graph = torch.cuda.CUDAGraph()
            graph.capture_begin()
            try:
                with pytest.raises(fmhaforge.CaptureError, match="checked"):
                    lab.launch(problem, route)
            finally:
                graph.capture_end()
        torch.cuda.synchronize()
