# SPDX-License-Identifier: Apache-2.0
"""The program that runs under compute-sanitizer, on a driver whose device memory is host memory."""

import ctypes
from types import SimpleNamespace

import naive_kernel
import numpy as np
import pytest
from fake_runner import FakeBundle
from test_device_cases import metadata_of

from tests.device import sanitize, subjects
from tests.device.backends import NumpyBackend


class HostDriver:
    """Allocations by address; `live` holds those not freed."""

    def __init__(self):
        self.live = {}

    def allocate(self, size):
        buffer = ctypes.create_string_buffer(size)
        self.live[ctypes.addressof(buffer)] = buffer
        return ctypes.addressof(buffer)

    def free(self, address):
        del self.live[address]

    def upload(self, address, data):
        assert len(data) <= len(self.live[address])
        ctypes.memmove(address, data, len(data))

    def download(self, address, size):
        return ctypes.string_at(address, size)

    def synchronise(self):
        pass


class HostBundle(FakeBundle):
    """Gives the fake runner numpy views of what lies at the addresses."""

    def __init__(self, everyone, kernel):
        super().__init__(everyone, NumpyBackend(), kernel)
        self.driver = HostDriver()

    def runner(self, *sizes, **options):
        inner = super().runner(*sizes, **options)

        def run(name):
            return lambda *args: getattr(inner, name)(*(_view(one) for one in args))

        return SimpleNamespace(**{name: run(name) for name in ("run", "run_paged", "run_paged_ragged", "run_padding",
                                                               "run_vision_block", "run_vit")})


def _view(value):
    interface = getattr(value, "__cuda_array_interface__", None)
    return value if interface is None else np.asarray(SimpleNamespace(__array_interface__=interface))


@pytest.fixture(scope="module")
def everyone(manifest):
    """The smallest variant of each operation."""
    found = {}
    for subject in subjects.subjects(metadata_of(manifest), 90):
        found.setdefault((subject.operation, subject.mask), subject)
    return tuple(found.values())


def test_right_results_from_exact_allocations(everyone):
    bundle = HostBundle(everyone, naive_kernel.run)
    for subject in everyone:
        assert sanitize.run(bundle, sanitize.sanitary_case(subject), "cubin") == ()
    assert bundle.driver.live == {}


def test_a_wrong_result_is_reported(everyone):
    def kernel(problem):
        naive_kernel.run(problem)
        problem.o.view[0] += 1

    for subject in everyone[:2]:
        assert sanitize.run(HostBundle(everyone, kernel), sanitize.sanitary_case(subject), "cubin")
