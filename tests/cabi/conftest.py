# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the C tests: the library of a fake bundle of every row, compiled once, and processes that see a stub driver."""

import shutil
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

for folder in (ROOT / "tests" / "unit", ROOT / "tests" / "cabi", ROOT / "runtime", ROOT):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

pytest.importorskip("ziglang")

from c_build import HERE, HOST, build  # noqa: E402
from generator import cabi  # noqa: E402
from generator.manifest import load  # noqa: E402


@pytest.fixture(scope="session")
def zig():
    """zig with a cache that lives in the build folder, because its first link builds parts of glibc."""
    cache = ROOT / "build" / "zig-cache"
    cache.mkdir(parents=True, exist_ok=True)
    return cabi.Zig(cache)


@pytest.fixture(scope="session")
def manifest():
    """The manifest of the project."""
    return load(ROOT / "variants.yaml")


@pytest.fixture(scope="session")
def built(tmp_path_factory, manifest, zig):
    """The library of every row."""
    return build(tmp_path_factory.mktemp("cabi"), manifest, zig)


@pytest.fixture(scope="session")
def cxx(zig):
    """cxx(arguments, folder): a C++ compiler that links, the system's where there is one (zig's first builds its standard library)."""
    system = shutil.which("g++") or shutil.which("clang++")

    def compile_cxx(arguments, folder):
        if system is None:
            zig.run(("c++", "-target", HOST.triple, "-fno-sanitize=all", *arguments), folder)
            return
        done = subprocess.run([system, *arguments], cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    return compile_cxx


@pytest.fixture(scope="session")
def stub_path(tmp_path_factory, zig):
    """The stub libcuda.so.1, compiled."""
    folder = tmp_path_factory.mktemp("stub")
    sources = (str(HERE / f"stub_{part}.c") for part in ("steering", "devices", "kernels"))
    zig.compile(HOST, ("-shared", "-fPIC", "-fvisibility=hidden", "-O1", "-fno-sanitize=all", "-Wall", "-Wextra", "-Werror",
                       "-Wl,-soname,libcuda.so.1", "-lpthread", "-o", str(folder / "libcuda.so.1"), *sources), folder)
    return folder / "libcuda.so.1"


@pytest.fixture(scope="session")
def stub_process(stub_path):
    """Runs a function of `scenarios` in one process that finds the stub driver, and hands back its result."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        def run(function, *arguments):
            return pool.submit(function, stub_path, *arguments).result(timeout=120)
        yield run
