# SPDX-License-Identifier: Apache-2.0
"""The examples configure, build and run by CMake and pkg-config from a bundle, also after the bundle was moved."""

import os
import shlex
import shutil
import subprocess

import pytest

from c_build import ROOT

EXAMPLES = ROOT / "examples"
WARNINGS = "-Wall -Wextra -Wpedantic -Werror"


@pytest.fixture(scope="session")
def prefix(built, tmp_path_factory):
    """An installed bundle: what render and compile_libraries made, as the build puts it together."""
    folder = tmp_path_factory.mktemp("installed") / "fmhaforge"
    for path in built.sources.files:
        if not path.startswith("lib/aarch64/"):
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(built.sources.root / path, folder / path)
    for path in (built.libraries.static, built.libraries.shared):
        shutil.copy(path, folder / "lib" / "x86_64" / path.name)
    (folder / "lib" / "x86_64" / "libfmhaforge.so").symlink_to("libfmhaforge.so.0")
    return folder


@pytest.fixture(params=["installed", "moved"])
def place(request, prefix, tmp_path):
    """The bundle where it was put, or where it was moved to."""
    if request.param == "installed":
        return prefix
    moved = tmp_path / "a folder" / "bundle"
    shutil.copytree(prefix, moved, symlinks=True)
    return moved


def run(*command, status=0, **environment):
    done = subprocess.run([str(word) for word in command], env={**os.environ, **environment}, capture_output=True, text=True, check=False)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout + done.stderr


def need(*programs):
    for program in programs:
        if shutil.which(program) is None:
            pytest.skip(f"no {program} here")


def cmake(example, place, out):
    run("cmake", "-S", EXAMPLES / example, "-B", out, f"-DCMAKE_PREFIX_PATH={place}/lib/cmake", "-DCMAKE_BUILD_TYPE=Release",
               f"-DCMAKE_C_FLAGS={WARNINGS}", f"-DCMAKE_CXX_FLAGS={WARNINGS}")
    run("cmake", "--build", out)


def test_c_example_by_cmake(place, tmp_path):
    need("cmake", "cc")
    cmake("c", place, tmp_path / "out")
    ask = tmp_path / "out" / "ask"
    assert run(ask, "llm", "causal", 128, 87, 32, 8).startswith("yes: fmha_v2_d128, code for SM 87, ")
    assert run(ask, "llm", "causal", 96, 87, 32, 8, status=1).startswith("no: head_dim 96 is not served (there are 64, 128, 256, 512)")
    assert run(ask, "llm", status=2).startswith("usage: ask ")


def test_cpp_example_by_cmake(place, tmp_path):
    need("cmake", "c++")
    cmake("cpp", place, tmp_path / "out")
    lines = run(tmp_path / "out" / "attend").splitlines()
    assert lines[0] == "head_dim 128, causal, on SM 90: yes"
    assert lines[1].startswith(("not run: no CUDA driver: ", "not run: cuInit failed", "run: right"))


def test_plugin_example_by_cmake(place, tmp_path, stub_path):
    need("cmake", "c++")
    cmake("plugin", place, tmp_path / "out")
    program = tmp_path / "out" / "try_plugin"
    stub = {"LD_LIBRARY_PATH": str(stub_path.parent)}
    assert run(program, **stub) == "plugin: not supported on this machine\n"
    assert run(program, STUB_SM="87", **stub) == "plugin: supported\nplugin: configured 0, loaded 0, serialises 2 fields\n"
    assert run(program, STUB_SM="75", **stub) == "plugin: not supported on this machine\n"


def test_cmake_component_and_version(place, tmp_path):
    need("cmake", "cc")
    source = tmp_path / "source"
    source.mkdir()

    def configure(arguments, status):
        (source / "CMakeLists.txt").write_text(f"cmake_minimum_required(VERSION 3.19)\nproject(x LANGUAGES C)\nfind_package(fmhaforge {arguments})\n")
        shutil.rmtree(tmp_path / "out", ignore_errors=True)
        return run("cmake", "-S", source, "-B", tmp_path / "out", f"-DCMAKE_PREFIX_PATH={place}/lib/cmake", status=status)
    configure("0.1 REQUIRED COMPONENTS llm paged paged_ragged padding vision_block vit", 0)
    assert "this bundle has no kernel of operation mla" in " ".join(configure("REQUIRED COMPONENTS mla", 1).split())
    assert "version" in configure("0.2 REQUIRED", 1) and "version" in configure("1.0 REQUIRED", 1)


def script(tmp_path, system, processor, pointer_bytes, *lines):
    """What a CMake script says on such a machine."""
    machine = (f"set(CMAKE_SYSTEM_NAME {system})", f'set(CMAKE_SYSTEM_PROCESSOR "{processor}")', f"set(CMAKE_SIZEOF_VOID_P {pointer_bytes})")
    (tmp_path / "script.cmake").write_text("\n".join(("cmake_minimum_required(VERSION 3.19)", *machine, *lines, "")))
    return run("cmake", "-P", tmp_path / "script.cmake")


def accepted_version(place, tmp_path, own, wanted):
    """Whether a bundle that says it is of version `own` is taken by find_package(fmhaforge `wanted`)."""
    bundle = tmp_path / "bundle"
    shutil.copytree(place, bundle, symlinks=True, dirs_exist_ok=True)
    path = bundle / "lib" / "cmake" / "fmhaforge" / "fmhaforge-config-version.cmake"
    path.write_text(path.read_text().replace('set(PACKAGE_VERSION "0.1.0")', f'set(PACKAGE_VERSION "{own}")'))
    text = script(tmp_path, "Linux", "riscv", 8, f'find_package(fmhaforge {wanted} QUIET CONFIG PATHS "{bundle}/lib/cmake" NO_DEFAULT_PATH)',
                  'message("considered ${fmhaforge_CONSIDERED_VERSIONS} reason ${fmhaforge_NOT_FOUND_MESSAGE}")')
    assert f"considered {own}" in text
    return "has no libraries" in text


@pytest.mark.parametrize("own, wanted, accepted", [
    ("0.1.5", "0.1", True), ("0.1.5", "0.1.5", True), ("0.1.5", "0.1.6", False), ("0.1.5", "0.2", False), ("0.1.5", "0.0.9", False),
    ("0.1.5", "0.1...0.2", True), ("0.1.5", "0.1...0.1.5", True), ("0.1.5", "0.1...<0.1.5", False), ("0.1.5", "0.1...0.1.4", False),
    ("0.1.5", "0.1...<0.1.6", True), ("2.3.0", "2.1...<3", True), ("2.3.0", "2.1...2.2", False), ("2.3.0", "2.1", True), ("2.3.0", "1.1", False)])
def test_cmake_versions(prefix, tmp_path, own, wanted, accepted):
    need("cmake")
    assert accepted_version(prefix, tmp_path, own, wanted) is accepted


@pytest.mark.parametrize("system, processor, pointer_bytes, words", [
    ("Linux", "aarch64", 8, "has no libraries for aarch64: build it with hosts=, out of x86_64,aarch64 (64-bit Linux)"),
    ("Linux", "riscv64", 8, "has no libraries for processor 'riscv64'"), ("Linux", "armv7l", 4, "32-bit code on processor 'armv7l'"),
    ("Linux", "x86_64", 4, "32-bit code on x86_64"), ("Linux", "", 8, "has no libraries for processor ''"),
    ("Darwin", "x86_64", 8, "has no libraries for x86_64 of Darwin"), ("Linux", "AMD64", 8, "")])
def test_cmake_takes_no_library_of_another_machine(prefix, tmp_path, system, processor, pointer_bytes, words):
    need("cmake")
    text = script(tmp_path, system, processor, pointer_bytes, "set(fmhaforge_FIND_COMPONENTS none)", "set(fmhaforge_FIND_REQUIRED_none TRUE)",
                  f'include("{prefix}/lib/cmake/fmhaforge/fmhaforge-config.cmake")', 'message("${fmhaforge_NOT_FOUND_MESSAGE}")')
    assert (words or "this bundle has no kernel of operation none") in text


@pytest.mark.parametrize("kind", ["static", "shared"])
def test_c_example_by_pkg_config(place, tmp_path, kind):
    need("pkg-config", "cc")
    if " " in str(place) and run("pkg-config", "--version").startswith("0."):
        pytest.skip("this pkg-config cuts folders at blanks; pkgconf, its successor, does not")
    environment = {"PKG_CONFIG_PATH": f"{place}/lib/x86_64/pkgconfig"}
    flags = shlex.split(run("pkg-config", "--cflags", "--libs", *(["--static"] if kind == "static" else []), "fmhaforge", **environment))
    if kind == "static":
        flags = [f"{place}/lib/x86_64/libfmhaforge.a" if flag == "-lfmhaforge" else flag for flag in flags]
    run("cc", "-std=c11", EXAMPLES / "c" / "ask.c", *flags, "-o", tmp_path / "ask")
    library_path = {"LD_LIBRARY_PATH": f"{place}/lib/x86_64"}
    assert run(tmp_path / "ask", "vit", "bidirectional", 72, 121, 16, 16, **library_path).startswith("yes: fmha_v2_vit_d72")
    assert run("pkg-config", "--modversion", "fmhaforge", **environment) == "0.1.0\n"
