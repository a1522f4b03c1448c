# SPDX-License-Identifier: Apache-2.0
"""What the doctor sees."""

import pytest
from fake_bundle import make_bundle
from fake_cuda import FakeCuda
from fmhaforge import open as open_bundle
from fmhaforge.doctor import OK, PROBLEM, WARNING, diagnose
from fmhaforge.driver import Driver

DSL = "nvidia-cutlass-dsl"
GOOD = {"cuda-bindings": "13.4.4", "cuda-python": "13.4.4", DSL: "4.8.1", f"{DSL}-libs-base": "4.8.1", f"{DSL}-libs-core": "4.8.1",
        f"{DSL}-libs-cu12": "4.8.1"}


def notes(cuda=None, bundle=None, installed=GOOD):
    return diagnose(Driver(cuda or FakeCuda(90, 75)), bundle, installed.get)


def bad(found):
    return {(note.status, note.subject): note.detail for note in found if note.status != OK}


def test_a_good_machine():
    found = notes()
    assert bad(found) == {}
    details = {note.subject: note.detail for note in found}
    assert details["driver"] == "CUDA 13.0" and details["device 0"].startswith("Fake GPU 90, SM 90, 232448 bytes")
    assert details[f"{DSL}-libs-cu12"] == "4.8.1" and "ziglang" not in details


@pytest.mark.parametrize("change, status, word", [
    ({f"{DSL}-libs-cu13": "4.8.1"}, PROBLEM, "overwrite each other"), ({f"{DSL}-libs-core": "4.7.0"}, PROBLEM, "different versions"),
    ({f"{DSL}-libs-cu12": None}, WARNING, "neither")])
def test_toolchain_conflicts(change, status, word):
    found = bad(notes(installed={**GOOD, **change}))
    assert list(found) == [(status, DSL)] and word in found[status, DSL]


def test_no_bindings():
    assert "install cuda-python" in bad(notes(installed={}))[PROBLEM, "cuda-bindings"]


def test_no_driver_is_a_warning():
    class NoDriver:
        def cuInit(self, flags):
            raise RuntimeError("no libcuda.")
    found = bad(notes(NoDriver()))
    assert list(found) == [(WARNING, "driver")] and "no libcuda" in found[WARNING, "driver"]


def test_old_driver_and_no_devices():
    cuda = FakeCuda()
    cuda.version = 11080
    found = bad(notes(cuda))
    assert "CUDA 11.8; 12.0 or newer" in found[PROBLEM, "driver"] and "CUDA_VISIBLE_DEVICES" in found[WARNING, "devices"]


def test_devices_that_the_bundle_serves(tmp_path, manifest):
    bundle = open_bundle(make_bundle(tmp_path, manifest, sms=[90], variants=["fmha_v2_d128*"]))
    found = notes(FakeCuda(90, 86), bundle)
    details = {note.subject: note.detail for note in found}
    assert "serves it by 6 variants" in details["device 0"]
    assert "no row" in bad(found)[WARNING, "device 1"]
