# SPDX-License-Identifier: Apache-2.0
"""The C++ device program where there is no GPU: its float64 answers, its verdicts, and its calls over a stub driver whose kernels do nothing."""

import ctypes
import os
import shutil
import subprocess
from collections import Counter

import pytest

from c_build import HOST, ROOT
from fmhaforge.query import Query, select
from generator.edge_llm.artifact import Builder
from generator.edge_llm.make import chosen
from tests.device import reference
from tests.device.cpp import variants

np = pytest.importorskip("numpy")

PROGRAM = ROOT / "tests" / "device" / "cpp"
HERE = ROOT / "tests" / "cabi"
NO_WINDOW = (1 << 31) - 1


@pytest.fixture(scope="module")
def table(built):
    return "\n".join(variants.lines(built.document)) + "\n"


@pytest.fixture(scope="module")
def host_half(built, table, cxx, tmp_path_factory):
    """The program's host half as a library."""
    folder = tmp_path_factory.mktemp("host half")
    (folder / "variants.inc").write_text(table)
    cxx(("-std=c++17", "-O2", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", "-I.", f"-I{PROGRAM}", str(PROGRAM / "case.cc"),
         str(PROGRAM / "problem.cc"), str(HERE / "device_program_shim.cc"), "-o", "half.so"), folder)
    dll = ctypes.CDLL(str(folder / "half.so"))
    dll.case_name.restype = ctypes.c_char_p
    dll.case_scale.restype = dll.half_value.restype = ctypes.c_double
    return dll


@pytest.fixture(scope="module")
def cases(host_half, built):
    """[(index, metadata of the variant, numbers)]"""
    by_name = {variant["name"]: variant for variant in built.document["variants"]}
    found = []
    for index in range(host_half.case_count()):
        numbers = (ctypes.c_int32 * 11)()
        host_half.case_numbers(index, numbers)
        found.append((index, by_name[host_half.case_name(index).decode()], tuple(numbers)))
    return found


def test_every_variant_has_a_case_that_selects_it(built, cases):
    assert [variant["name"] for _, variant, _ in cases] == list(dict.fromkeys(row.variant for row in built.metadata.rows if not row.checked))
    for _, variant, (head_dim, q_heads, kv_heads, seqlen_q, *_) in cases:
        operation = built.metadata.operations[variant["operation"]]
        known = {"num_q_heads": q_heads, "num_kv_heads": kv_heads, operation.seqlen_q_argument: seqlen_q}
        found = select(built.metadata, Query((operation.name,), head_dim, 90, mask=variant["mask"], known=known, flags={"use_small_d64": True}))
        assert found.variants == (variant["name"],)


def test_half(host_half):
    every = np.arange(1 << 16, dtype=np.uint16)
    want = every.view(np.float16).astype(np.float64)
    got = np.array([host_half.half_value(int(bits)) for bits in every])
    assert np.array_equal(got, want, equal_nan=True)
    assert [host_half.half_bits(n) for n in range(-2047, 2048)] == [int(np.float16(n / 256).view(np.uint16)) for n in range(-2047, 2048)]


def expected(dll, index, numbers, sequence):
    head_dim, q_heads = numbers[:2]
    values = np.empty((dll.expected(index, sequence, None), q_heads, head_dim))
    dll.expected(index, sequence, values.ctypes.data_as(ctypes.c_void_p))
    return values


def test_answers_are_those_of_the_reference(host_half, cases):
    """Two programs written apart from each other: float64 in C++ and in numpy."""
    blind = 0
    for index, variant, numbers in cases:
        head_dim, q_heads, kv_heads, seqlen_q, _, window, *lengths = numbers
        for sequence in range(2):
            q_len, kv_len = lengths[sequence], lengths[2 + sequence]
            parts = []
            for part, (tokens, heads) in enumerate(((q_len, q_heads), (kv_len, kv_heads), (kv_len, kv_heads))):
                values = np.empty((tokens, heads, head_dim))
                host_half.fill(index, part, sequence, tokens, values.ctypes.data_as(ctypes.c_void_p))
                parts.append(values)
            assert 1.6 < parts[0].std() < 1.9 and abs(parts[1]).max() == 3.0
            ends = np.zeros((q_len, 2), np.int32)
            for row in range(q_len):
                host_half.case_block(index, sequence, row, ends[row].ctypes.data_as(ctypes.c_void_p))
            allowed = reference.visible(variant["mask"], np.arange(q_len)[:, None], np.arange(kv_len)[None], q_len, kv_len,
                                        None if window == NO_WINDOW else window, ends[:, :1], ends[:, 1:])
            want = reference.attend(np, *parts, allowed, host_half.case_scale(index))
            got = expected(host_half, index, numbers, sequence)
            assert got.shape[0] == (q_len if variant["kv_layout"] == "packed" or variant["operation"] == "paged_ragged" else seqlen_q)
            assert np.abs(got[:q_len] - want).max() < 1e-12 and not got[q_len:].any()
            blind += int((~allowed.any(-1)).sum())
    assert blind > 100, "some rows must see no key"


@pytest.mark.parametrize("gap", [0, 24])
def test_verdicts(host_half, cases, gap):
    seen = Counter()
    for index, _, numbers in cases[::3]:
        values = np.concatenate([expected(host_half, index, numbers, sequence).reshape(-1) for sequence in range(2)])
        logical = values.astype(np.float16).view(np.uint16)
        for change in range(5):
            text = ctypes.create_string_buffer(600)
            count = host_half.verdict(index, ctypes.c_int64(gap), logical.ctypes.data_as(ctypes.c_void_p), change, text, len(text))
            seen[change, count, text.value.decode().splitlines()[0] if count else ""] += 1
    number = len(cases[::3])
    outside = "something was written outside the rows that belong to O"
    assert seen[0, 0, ""] == seen[1, 1, outside] == seen[2, 1, outside] == number
    assert seen[3, 1, "a row that has to be written holds NaN or Inf, or was left unwritten"] == number
    assert sum(count for (change, faults, _), count in seen.items() if change == 4 and faults >= 1) == number


@pytest.fixture(scope="module")
def program(built, zig, stub_path, tmp_path_factory):
    """Runs the built program: (status, lines). run.sh itself builds it, with a stand-in in the place of the CUDA toolkit."""
    if shutil.which("g++") is None:
        pytest.skip("no g++ here")
    folder = tmp_path_factory.mktemp("device program")
    cuda = folder / "cuda"
    (cuda / "include").mkdir(parents=True)
    (cuda / "lib64").mkdir()
    shutil.copyfile(HERE / "cuda_runtime_stand_in.h", cuda / "include" / "cuda_runtime.h")
    zig.compile(HOST, ("-shared", "-fPIC", "-fno-sanitize=all", "-Wall", "-Wextra", "-Werror", "-o", str(cuda / "lib64" / "libcudart.so"),
                       str(HERE / "cudart_stand_in.c"), str(stub_path)), folder)
    bundle = folder / "bundle"
    shutil.copytree(built.sources.root, bundle)
    shutil.copyfile(built.bundle / "metadata.json", bundle / "metadata.json")
    (bundle / "lib" / "x86_64").mkdir(parents=True, exist_ok=True)
    shutil.copyfile(built.libraries.static, bundle / "lib" / "x86_64" / "libfmhaforge.a")
    combination, = chosen(built.document, ("cutedsl_x86_64_sm_90_cuda13*",))
    artifact = Builder(built.document, built.bundle, folder / "objects", zig).write(combination, folder)

    settings = {**os.environ, "CUDA_HOME": str(cuda), "LD_LIBRARY_PATH": str(stub_path.parent)}
    build, out = folder / "build", folder / "out"

    def run(devices):
        """By run.sh the first time, alone afterwards."""
        command = [build / "device_program"] if build.exists() else ["bash", PROGRAM / "run.sh", bundle, artifact, out]
        done = subprocess.run(command, env={**settings, "BUILD": str(build), "STAND_IN_DEVICES": str(devices)}, capture_output=True, text=True, check=False)
        assert (build / "device_program").exists(), done.stderr
        assert command[0] != "bash" or done.stdout == (out / "cpp.log").read_text(), done.stderr
        return done.returncode, done.stdout.splitlines()
    return run


@pytest.mark.parametrize("devices, words", [(2, "2 devices"), (3, "2 devices"), (1, "2 devices, the second is another context of the first")])
def test_calls_refusals_and_graphs_over_the_stub(program, cases, devices, words):
    """Kernels that do nothing: whatever is said of numbers must fail, and everything else pass, on two devices or what stands for them."""
    status, lines = program(devices)
    found = Counter((line[:4].strip(), *line[5:].partition(": ")[0].split(" ", 3)[3:]) for line in lines if line.startswith(("ok", "FAIL")))
    count = len(cases)
    assert status == 1 and lines[1 if lines[0].startswith("built") else 0] == f"{count} variants, {words}"
    wanted = Counter()
    for path in ("class", "wrapper"):
        for what in ("first use in a capture is refused", "is made ready after the refusal", "graph replays equal the eager run bit by bit"):
            wanted["ok", f"{path} {what}"] = 2 * count
        wanted["FAIL", f"{path} equals float64"] = 2 * count
    wanted["FAIL", "wrapper with wide strides equals float64"] = 2 * count
    wanted["ok", "wrapper gives the bits of the class"] = wanted["ok", "wrapper with wide strides gives the bits of the class"] = 2 * count
    wanted["ok", "wrapper gives the bits of device 0"] = count
    wanted["FAIL", "device 1"] = 0
    again = {key: value for key, value in found.items() if key[1].startswith("device 1 ")}
    assert set(again) == {("FAIL", f"device 1 {variant['name']} class still equals float64") for _, variant, _ in cases}
    assert {key: value for key, value in found.items() if key not in again} == {key: value for key, value in wanted.items() if value}
    assert lines[-1] == f"{17 * count} passed, {7 * count} failed"
    failures = [line for line in lines if line.startswith("FAIL")]
    assert all("refused" not in line and "overwritten" not in line and "relative error inf" in line and "left unwritten" in line for line in failures)


def test_no_device(program):
    status, lines = program(0)
    assert status == 2 and lines[-1] == "no CUDA device: no device in the stand-in"
