# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the runtime's tests: a fake bundle of the whole manifest and a fake driver."""

import fmhaforge
import pytest
from fake_bundle import make_bundle
from fake_cuda import FakeCuda
from fmhaforge.bundle import Bundle
from fmhaforge.driver import Driver


@pytest.fixture(scope="session")
def bundle_path(tmp_path_factory, manifest):
    """A bundle of every row; read-only by convention."""
    return make_bundle(tmp_path_factory.mktemp("bundle") / "fmhaforge-0.1.0", manifest)


@pytest.fixture(scope="session")
def bundle(bundle_path):
    """The bundle opened without a driver."""
    return fmhaforge.open(bundle_path)


@pytest.fixture
def cuda():
    """Two devices of SM 90 and one of SM 86."""
    return FakeCuda(90, 90, 86)


def over(bundle, cuda):
    """The same bundle over a fake driver, without reading it again."""
    return Bundle(bundle.path, bundle.metadata, bundle.checksums, Driver(cuda))


@pytest.fixture
def loaded(bundle, cuda):
    """The bundle over the fake driver."""
    return over(bundle, cuda)
