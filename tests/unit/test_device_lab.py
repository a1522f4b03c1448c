# SPDX-License-Identifier: Apache-2.0
"""The runner of device cases, on a bundle that computes on the host: argument order, routes, recording, refusals."""

from dataclasses import replace

import naive_kernel
import pytest
from fake_runner import FakeBundle
from test_device_cases import metadata_of

from tests.device import subjects
from tests.device.backends import NumpyBackend
from tests.device.lab import DeviceLost, Lab
from tests.device.named import case, named_cases
from tests.device.subjects import ROUTES


@pytest.fixture(scope="module")
def rows_of(manifest):
    """The subjects of the rows for one SM."""
    metadata = metadata_of(manifest)
    return lambda sm: tuple(one for one in subjects.subjects(metadata, sm) if one.sm == sm)


@pytest.fixture(scope="module")
def everyone(rows_of):
    return rows_of(90)


@pytest.fixture
def lab(everyone):
    backend = NumpyBackend()
    return lab_of(FakeBundle(everyone, backend), backend, ROUTES)


def lab_of(bundle, backend, routes):
    """A lab on one fake bundle, which stays reachable as `lab.bundle`."""
    made = Lab([bundle], backend, routes)
    made.bundle = bundle
    return made


def tiny(subject, **changes):
    lengths = (9, 4) if subject.own_q_lengths else (9, 9)
    keys = lengths if subject.operation == "vit" else (14, 3)
    return case(subject, changes.pop("label", "tiny"), lengths, keys, **changes)


@pytest.mark.parametrize("sm, by_cubin_only", ((86, 0), (90, 34)))
def test_every_variant_passes_by_its_routes(rows_of, sm, by_cubin_only):
    """Each variant's arguments arrive in the right places: the right answer comes out of the runner's functions."""
    found, backend = rows_of(sm), NumpyBackend()
    lab = lab_of(FakeBundle(found, backend), backend, ROUTES)
    for subject in found:
        assert lab.faults(tiny(subject)) == []
    assert {route for _, route in lab.bundle.calls} == set(ROUTES)
    assert [(tally.subject.variant, tally.route, tally.cases) for tally in lab.recorder.tallies] == [
        (subject.variant, route, 1) for subject in found for route in subject.routes
    ]
    assert sum(subject.routes == ("cubin",) for subject in found) == by_cubin_only < len(found)


def test_every_operation_has_named_cases_that_fit_it(lab, everyone):
    for subject in everyone:
        made = list(named_cases(subject))
        assert len({one.id for one in made}) == len(made) >= 4
        for one in made:
            assert one.seqlen_q >= max(one.q_lens) and one.seqlen_kv >= max(one.kv_lens)
            lab.runner(one, "cubin")  # asserts that the runner selects this very variant


def test_named_cases_run(lab, everyone):
    by_name = {subject.variant: subject for subject in everyone}
    for name in ("fmha_v2_d64_sw", "fmha_v2_vit_d72", "fmha_v2_d256_padding", "fmha_v2_d64_paged_ragged"):
        for one in named_cases(by_name[name]):
            if sum(one.q_lens) * one.num_q_heads < 600:
                assert lab.faults(one) == []


def test_a_fault_is_recorded_with_its_case(everyone):
    def kernel(problem):
        naive_kernel.run(problem)
        problem.o.view[0] = 0

    backend = NumpyBackend()
    lab = lab_of(FakeBundle(everyone, backend, kernel), backend, ("cubin",))
    faults = lab.faults(tiny(everyone[0]))
    assert faults and all(fault.startswith(f"{everyone[0].variant}/tiny [cubin]: ") for fault in faults)
    assert lab.recorder.tallies[0].failed == [f"{everyone[0].variant}/tiny"]


@pytest.mark.parametrize("sm, routes", ((86, ROUTES), (90, ("cubin",))))
def test_an_exception_is_a_fault_and_the_rest_goes_on(rows_of, sm, routes):
    def kernel(problem):
        raise RuntimeError("launch refused")

    found, backend = rows_of(sm), NumpyBackend()
    lab = lab_of(FakeBundle(found, backend, kernel), backend, ROUTES)
    assert lab.faults(tiny(found[0])) == [
        f"{found[0].variant}/tiny [{route}]: RuntimeError: launch refused" for route in routes
    ]


def test_a_lost_device_ends_the_run(everyone):
    class LostBackend(NumpyBackend):
        def synchronise(self):
            raise RuntimeError("an illegal memory access was encountered")

    def kernel(problem):
        raise RuntimeError("launch failed")

    lab = lab_of(FakeBundle(everyone, LostBackend(), kernel), LostBackend(), ROUTES)
    with pytest.raises(DeviceLost, match="tiny .cubin. broke the device: RuntimeError: launch failed"):
        lab.faults(tiny(everyone[0]))
    assert lab.recorder.tallies[0].failed


def test_another_variant_or_ptx_than_the_subjects_is_noticed(lab, everyone):
    stale = replace(everyone[0], ptx_sha256="f" * 64)
    with pytest.raises(AssertionError, match="the runner selects"):
        lab.runner(tiny(stale), "cubin")


def test_exact_families_go_through_the_cubin_only(lab, rows_of):
    exact = replace(rows_of(86)[0], routes=("cubin",))
    lab.bundle.subjects = (exact,)
    assert lab.faults(tiny(exact)) == []
    assert {route for _, route in lab.bundle.calls} == {"cubin"}


def test_preload_asks_for_every_kernel(lab, everyone):
    lab.preload(everyone)
    lab.bundle.subjects = everyone[1:]
    with pytest.raises(AssertionError, match="no subject"):
        lab.preload(everyone)


def test_a_subject_stays_with_one_of_several_bundles(everyone):
    backend = NumpyBackend()
    bundles = [FakeBundle(everyone, backend) for _ in range(3)]
    lab = Lab(bundles, backend, ("cubin",))
    lab.preload(everyone)
    for subject in everyone[:6]:
        assert lab.faults(tiny(subject)) == [] == lab.faults(tiny(subject, label="again"))
    assert [len(bundle.calls) for bundle in bundles] == [4, 4, 4]
