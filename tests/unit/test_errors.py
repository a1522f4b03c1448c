# SPDX-License-Identifier: Apache-2.0
"""The exceptions themselves: what they carry, also across processes."""

import copy
import pickle

import fmhaforge
import pytest
from fmhaforge import errors
from fmhaforge.query import Support

MADE = [
    errors.BundleError("place", "is wrong; mend it"), errors.BundleNotFoundError("place", "is not there"), errors.SchemaError("place", "x is missing"),
    errors.IntegrityError("place", "is another"), errors.UnsupportedError(Support((), "sm", "sm 75 is not served")), errors.ArgumentError("q", "is None"),
    errors.DtypeError("q", "is int8"), errors.ShapeError("q", "is flat"), errors.StrideError("q", "is odd"), errors.AlignmentError("q", "is odd"),
    errors.DeviceError("q", "is elsewhere"), errors.ReadOnlyError("o", "is read-only"), errors.DriverMissingError("no driver"),
    errors.DriverError("cuInit", 100, "CUDA_ERROR_NO_DEVICE", "detail"), errors.CLibraryError("fmhaforge_query", "UNSUPPORTED", "says why"),
    errors.ForkedError("forked"), errors.LoadError("row", "is too large"), errors.EmptyLibraryError("row", "is empty"),
    errors.CaptureError("row", "is not loaded"), errors.FaultReported("row", "k-page", "kv_cache_page_list", 1, 2, -1, "reason"),
]


def test_every_error_is_made_here():
    kinds = {kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.FmhaForgeError)}
    assert {type(error) for error in MADE} == kinds - {errors.FmhaForgeError}
    assert kinds <= {getattr(fmhaforge, name) for name in fmhaforge.__all__}


@pytest.mark.parametrize("error", MADE, ids=[type(error).__name__ for error in MADE])
@pytest.mark.parametrize("copied", [copy.copy, lambda error: pickle.loads(pickle.dumps(error))], ids=["copy", "pickle"])
def test_errors_are_handed_on_whole(error, copied):
    other = copied(error)
    assert type(other) is type(error) and other is not error
    assert str(other) == str(error) and vars(other) == vars(error) and other.args == error.args
