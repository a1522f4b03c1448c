# SPDX-License-Identifier: Apache-2.0
"""The Python runtime over the C library: the same launches as through cuda.bindings, prepared launches, refusals."""

import shutil
import struct

import pytest

import fmhaforge
import library_runs
from c_build import HOST
from fake_bundle import write
from fmhaforge import ArgumentError, BundleError, clib
from fmhaforge.clib import library_file


@pytest.fixture(scope="session")
def bundle_path(built, tmp_path_factory):
    """The fake bundle with its C library inside."""
    folder = tmp_path_factory.mktemp("with library") / "bundle"
    files = {str(path.relative_to(built.bundle)): path.read_bytes() for path in built.bundle.rglob("*")
             if path.is_file() and path.name != "SHA256SUMS"}
    write(folder, {**files, library_file(): built.libraries.shared.read_bytes()})
    return folder


@pytest.mark.parametrize("sm", [86, 90])
def test_both_paths_launch_the_same(stub_process, bundle_path, sm):
    python, library = stub_process(library_runs.both_paths, bundle_path, sm)
    assert python[:4] == library[:4]
    assert python[4] == library[4].rstrip(b"") and len(python[4]) > 100


@pytest.mark.parametrize("sm", [86, 90])
def test_prepared_launches(stub_process, bundle_path, sm):
    before, launches, place, refused, seconds, empty = stub_process(library_runs.prepared, bundle_path, sm)
    assert before == (0, 1)
    first, moved, back = (struct.unpack_from("<Q", launch, place)[0] for launch in launches)
    assert first == back and moved == first + 256 and launches[0] == launches[2]
    assert "is not aligned to 16 bytes" in refused
    assert seconds < 50e-6 and empty is None


def test_capture(stub_process, bundle_path):
    first, launches, loads = stub_process(library_runs.captured, bundle_path)
    assert "preflight_llm(stream)" in first and "capturing" in first
    assert (launches, loads) == (1, 1)


def test_a_bundle_without_the_library(built):
    with pytest.raises(BundleError, match="has no lib/.*; build the bundle with hosts="):
        fmhaforge.open(built.bundle).library


def test_a_damaged_library_is_not_opened(bundle_path, tmp_path):
    copy = tmp_path / "bundle"
    shutil.copytree(bundle_path, copy)
    place = copy / library_file()
    place.write_bytes(place.read_bytes()[:-1] + b"x")
    with pytest.raises(fmhaforge.IntegrityError, match="libfmhaforge.so.0"):
        fmhaforge.open(copy).library


def test_library_answers_queries_without_a_driver(bundle_path):
    library = fmhaforge.open(bundle_path).library
    assert library.find_row("fmha_v2_d64", 87).contents.sm == 87


def test_routes_and_functions_that_do_not_exist(stub_process, bundle_path):
    from fake_cuda import FakeCuda
    from fmhaforge.driver import Driver

    bundle = fmhaforge.open(bundle_path, driver=Driver(FakeCuda(90)))
    with pytest.raises(ArgumentError, match="does not go through the C library"):
        bundle.runner(8, 2, 128, library=True, route="driver-ptx")
    with pytest.raises(ArgumentError, match="is no function that launches"):
        bundle.runner(8, 2, 128, library=True).prepare("preflight_llm", 0)


def test_a_library_of_another_version(zig, tmp_path):
    """A function that is missing, and a status that this runtime does not know."""
    names = [f"fmhaforge_{name}" for name in ("query", "why_not", "find_row", "row_at", "row_count", "preload", "scale_log2", "last_reason", "status_name",
                                              "get_table", *(f"launch_{name}" for name in clib.OPERATIONS))]
    (tmp_path / "all.c").write_text("".join(f"const char* {name}(void);\nconst char* {name}(void) {{ return {value}; }}\n" for name, value in (
        (name, "(const char*)77" if name == "fmhaforge_preload" else '"says why"') for name in names)))
    for name, missing in (("all.so", ()), ("less.so", ("-Dfmhaforge_find_row=gone",))):
        zig.compile(HOST, ("-shared", "-fPIC", *missing, "-o", str(tmp_path / name), "all.c"), tmp_path)
    with pytest.raises(clib.CLibraryError, match="fmhaforge_find_row: the library has no such function; fetch the bundle again"):
        clib.CLibrary(tmp_path / "less.so")
    with pytest.raises(clib.CLibraryError, match="fmhaforge_preload: says why") as error:
        clib.CLibrary(tmp_path / "all.so").preload(None)
    assert error.value.status == "STATUS_77"
