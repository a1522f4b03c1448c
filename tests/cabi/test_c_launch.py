# SPDX-License-Identifier: Apache-2.0
"""Loading and launching through the C library, over a stub driver."""

import dataclasses
import os
import subprocess

import pytest

import scenarios
from arguments import expected_launch
from c_build import HERE, HOST
from fmhaforge import expr
from generator import cabi
from generator.cabi.compile import WARNINGS

ALL_SMS = (80, 86, 87, 89, 90, 100, 101, 110, 120, 121)
INT32_MAX = (1 << 31) - 1


@pytest.fixture
def shared(built):
    return built.libraries.shared


@pytest.mark.parametrize("sm", ALL_SMS)
def test_launch_parameters_equal_the_python_plan(stub_process, built, shared, sm):
    found = stub_process(scenarios.launch_rows, shared, built.metadata, sm, sm)
    assert len(found) == sum(row.sm == sm for row in built.metadata.rows) > 0
    for index, values, launch in found:
        row = built.metadata.rows[index]
        assert dataclasses.asdict(launch) == expected_launch(row, values, 0, 100), row.label


@pytest.mark.parametrize("variant, changes, words", [
    ("fmha_v2_d64", {"num_q_heads": 7, "num_kv_heads": 2}, "num_q_heads must be a multiple of num_kv_heads (num_q_heads is 7"),
    ("fmha_v2_d64", {"batch": -1}, "batch: -1 is below 0; give at least 0"),
    ("fmha_v2_d64", {"num_kv_heads": 0}, "num_kv_heads: 0 is below 1; give at least 1"),
    ("fmha_v2_d64", {"seqlen_kv": INT32_MAX}, "seqlen_kv: 2147483647 is above 1073741824; give at most 1073741824"),
    ("fmha_v2_d64", {"q_stride_seq": 20}, "q_stride_seq: 20 is not a multiple of 8"),
    ("fmha_v2_d64", {"o_stride_batch": -8}, "o_stride_batch: -8 is below 0"),
    ("fmha_v2_d64", {"scale_log2": 0.0}, "scale_log2: 0 must be finite and > 0"),
    ("fmha_v2_d64", {"scale_log2": float("nan")}, "scale_log2: nan must be finite and > 0"),
    ("fmha_v2_d64", {"scale_log2": float("inf")}, "scale_log2: inf must be finite and > 0"),
    ("fmha_v2_d64", {"scale_log2": 94550.0}, "scale_log2: 94550 is above 94549; give at most 94549"),
    ("fmha_v2_vit_d64", {"scale_log2": 3.0e38}, "scale_log2: 3e+38 is above 94549"),
    ("fmha_v2_d64", {"q": 0}, "q: is null; pass device memory"),
    ("fmha_v2_d64", {"o": 0x1008}, "o: 0x1008 is not aligned to 16 bytes"),
    ("fmha_v2_d64", {"cu_kv_seqlens": 0x1002}, "cu_kv_seqlens: 0x1002 is not aligned to 4 bytes"),
    ("fmha_v2_d64_sw", {"window_size_left": -2}, "window_size_left: -2 is below -1"),
    ("fmha_v2_d64_paged", {"num_flat_pages": 7}, "num_flat_pages: 7 is not a multiple of 2"),
    ("fmha_v2_d64_paged", {"max_pages": 0}, "max_pages: 0 is below 1"),
])
def test_bad_arguments_never_reach_the_driver(stub_process, built, shared, variant, changes, words):
    status, reason, launches, _ = stub_process(scenarios.launch_once, shared, built.metadata, variant, 90, changes)
    assert (status, launches) == ("INVALID_ARGUMENT", 0)
    assert words in reason


def value_for(text, wanted):
    """(name, value) that make an expression of one name equal to `wanted`."""
    name, = expr.names(text)
    return next((name, wanted * step) for step in (1, 16, 32, 64, 128, 256) if expr.compile(text)({name: wanted * step}) == wanted)


@pytest.mark.parametrize("axis", ["y", "z"])
def test_grids_that_no_device_takes(stub_process, built, shared, axis):
    row = next(row for row in built.metadata.rows if (row.variant, row.sm) == ("fmha_v2_d64", 86))
    name, value = value_for(row.plan.grid["xyz".index(axis)], 65536)
    changes = {"batch": 1, "seqlen_q": 1, "num_q_heads": 1, "num_kv_heads": 1, name: value}
    status, reason, launches, _ = stub_process(scenarios.launch_once, shared, built.metadata, "fmha_v2_d64", 86, changes)
    assert (status, launches) == ("INVALID_ARGUMENT", 0)
    assert reason == f"{name}: {value} is too large: the launch's grid in {axis} would be 65536, at most 65535 is possible; split the work"


@pytest.mark.parametrize("changes", [{"batch": 0}, {"seqlen_q": 0}, {"batch": 0, "q": 0, "k": 0, "v": 0, "o": 0, "cu_kv_seqlens": 0}])
def test_empty_launches_do_nothing(stub_process, built, shared, changes):
    assert stub_process(scenarios.launch_once, shared, built.metadata, "fmha_v2_d64", 90, changes) == ("OK", "", 0, 0)


def test_stream_reaches_the_driver(stub_process, built, shared):
    status, reason, launches, loads = stub_process(scenarios.launch_once, shared, built.metadata, "fmha_v2_d64", 90, {}, 2)
    assert (status, reason, launches, loads) == ("OK", "", 1, 1)


def test_first_use_by_32_threads_loads_once_per_device(stub_process, built, shared):
    statuses, calls, launches = stub_process(scenarios.first_use_by_threads, shared, built.metadata, "fmha_v2_d128", (90, 86), 32)
    assert statuses == [("OK", "")] * 32
    assert calls == {"cuInit": 1, "cuLibraryLoadData": 2, "cuKernelSetAttribute": 2}
    assert launches == [(0, "fmha_v2_d128_0@90")] * 16 + [(1, "fmha_v2_d128_0@86")] * 16


def test_first_load_during_capture_is_refused_and_can_be_repeated(stub_process, built, shared):
    steps, relaxed_loads, mode_after = stub_process(scenarios.capture, shared, built.metadata, "fmha_v2_d128", 90)
    assert [step[0] for step in steps] == ["STREAM_CAPTURING"] * 3 + ["OK", "OK"]
    assert [step[2:] for step in steps] == [(0, 0)] * 3 + [(1, 0), (1, 1)]
    assert "call fmhaforge_preload before the capture begins" in steps[0][1]
    assert (relaxed_loads, mode_after) == (1, 0)


def test_a_row_is_made_ready_in_each_context_of_a_device(stub_process, built, shared):
    """Its code is loaded once for the device, but the driver brings it to a context at first need, which must not be within a capture."""
    steps, loads, launches, mode = stub_process(scenarios.second_context, shared, built.metadata, "fmha_v2_d128", 90)
    assert [status for status, _ in steps] == ["OK", "LOAD", "OK", "OK", "OK"]
    assert steps[1][1].startswith("cuKernelGetFunction of fmha_v2_d128 for SM 90 failed: CUDA_ERROR_STUB (700)")
    assert (loads, launches, mode) == (1, 2, 0)


@pytest.mark.parametrize("call, status, loads, unloads", [
    ("cuLibraryLoadData", "LOAD", 2, 0),
    ("cuLibraryGetKernel", "LOAD", 2, 1),
    ("cuKernelGetFunction", "LOAD", 2, 1),
    ("cuKernelSetAttribute", "LOAD", 2, 1),
    ("cuThreadExchangeStreamCaptureMode", "DRIVER", 1, 0),
    ("cuStreamIsCapturing", "DRIVER", 1, 0),
    ("cuCtxGetDevice", "DRIVER", 1, 0),
    ("cuLaunchKernel", "LAUNCH", 1, 0),
])
def test_a_failure_is_reported_and_not_remembered(stub_process, built, shared, call, status, loads, unloads):
    result = stub_process(scenarios.failing_call, shared, built.metadata, "fmha_v2_d256", 90, call, 700)
    first, second, *counts = result
    assert first[0] == status and first[1].startswith(call) and first[1].endswith(" failed: CUDA_ERROR_STUB (700): made by the stub")
    assert " of fmha_v2_d256 for SM 90 " in first[1] or status == "DRIVER"
    assert second == ("OK", "")
    assert counts == [loads, unloads, 1]


def test_a_library_without_the_kernel_is_an_error(stub_process, built, shared):
    first, second, loads, unloads, launches = stub_process(scenarios.no_kernel, shared, built.metadata, "fmha_v2_d256", 90)
    assert first[0] == "LOAD" and "holds no kernel fmha_v2_d256_0 for it" in first[1]
    assert (second[0], loads, unloads, launches) == ("OK", 2, 1, 1)


@pytest.mark.parametrize("row_sm, device_sm, served", [
    (90, 86, False), (80, 90, False), (80, 87, False), (89, 86, False), (80, 86, True), (86, 89, True), (101, 110, True), (120, 121, True),
    (121, 120, False), (100, 101, False), (90, 75, False)])
def test_a_row_loads_only_where_the_table_says(stub_process, shared, row_sm, device_sm, served):
    status, reason, loads = stub_process(scenarios.wrong_device, shared, "fmha_v2_d64", row_sm, device_sm)
    if served:
        assert (status, loads) == ("OK", 1)
    else:
        assert (status, loads) == ("WRONG_DEVICE", 0)
        assert f"fmha_v2_d64 for SM {row_sm} does not run on device 0, which is SM {device_sm}" in reason


def test_a_thread_without_context_gets_the_primary_one_of_device_0(stub_process, built, shared):
    result = stub_process(scenarios.without_context, shared, built.metadata, "fmha_v2_d64", (86, 90), None)
    assert result == (86, -1, 0, "fmha_v2_d64_0@86", 0)


def test_a_thread_without_context_gets_that_of_its_stream(stub_process, built, shared):
    result = stub_process(scenarios.without_context, shared, built.metadata, "fmha_v2_d64", (86, 90), 1)
    assert result == (86, -1, 1, "fmha_v2_d64_0@90", 1)


VARIANT_PROGRAM = """
#include "fmhaforge/fmha_v2_d64.h"
fmhaforge_status load(fmhaforge_stream stream);
fmhaforge_status load(fmhaforge_stream stream) { return fmhaforge_fmha_v2_d64_preload(stream); }
fmhaforge_status launch(const fmhaforge_llm_args* args, fmhaforge_stream stream);
fmhaforge_status launch(const fmhaforge_llm_args* args, fmhaforge_stream stream) { return fmhaforge_fmha_v2_d64_launch(args, stream); }
"""


@pytest.mark.parametrize("sms", [(86, 90), (75, 90), (90, 120, 87)])
def test_a_variants_header_takes_the_row_of_the_streams_device(stub_process, built, zig, tmp_path, sms):
    """A thread without context is on no device; device 0 may be another one than that of its stream, or one that is not served at all."""
    (tmp_path / "program.c").write_text(VARIANT_PROGRAM)
    zig.compile(HOST, ("-shared", "-fPIC", "-std=c11", f"-I{built.sources.include}", "program.c", str(built.libraries.static), "-ldl", "-lpthread",
                       "-o", "program.so"), tmp_path)
    statuses, launches = stub_process(scenarios.variant_without_context, tmp_path / "program.so", built.metadata, "fmha_v2_d64", sms)
    assert (statuses, launches) == ((0, 0), [(len(sms) - 1, f"fmha_v2_d64_0@{sms[-1]}")])


def test_mixed_devices_each_get_their_code(stub_process, built, shared):
    launches, loads = stub_process(scenarios.two_devices, shared, built.metadata, "fmha_v2_vit_d72", (120, 87))
    assert launches == [(0, "fmha_v2_vit_d72_0@120"), (1, "fmha_v2_vit_d72_0@87")] * 2
    assert loads == 2


def test_two_equal_devices_load_once_each(stub_process, built, shared):
    launches, loads = stub_process(scenarios.two_devices, shared, built.metadata, "fmha_v2_d64", (90, 90))
    assert launches == [(0, "fmha_v2_d64_0@90"), (1, "fmha_v2_d64_0@90")] * 2
    assert loads == 2


def test_use_after_fork_is_refused(stub_process, built, shared):
    launched, asked = eval(stub_process(scenarios.forked, shared, built.metadata, "fmha_v2_d64", 90))
    assert launched[0] == "FORKED" and "CUDA does not survive fork" in launched[1]
    assert asked == ("OK", "")


def test_a_child_of_a_fork_during_first_use_does_not_hang(stub_process, shared):
    child, thread = stub_process(scenarios.forked_during_first_use, shared, 90)
    assert "FORKED" in child and "CUDA does not survive fork" in child and thread == ("OK", "")


def test_a_child_of_a_fork_during_a_failure_does_not_hang(built, zig, stub_path, tmp_path):
    """Between the failure and the unlocking of its lock the parent still counts as a user; afterwards it is none, and children may try."""
    cabi.compile_library_object(built.sources, HOST, tmp_path / "fmhaforge.o", zig, ("pthread_mutex_unlock=slow_unlock",))
    zig.compile(HOST, ("-std=c11", "-D_GNU_SOURCE", *WARNINGS, f"-I{built.sources.include}", str(HERE / "fork_while_failing.c"), "fmhaforge.o",
                       "-ldl", "-lpthread", "-o", "program"), tmp_path)
    environment = {**os.environ, "LD_LIBRARY_PATH": str(stub_path.parent)}
    environment.pop("STUB_SM", None)
    done = subprocess.run([tmp_path / "program"], env=environment, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == ["FMHAFORGE_ERROR_FORKED", "FMHAFORGE_ERROR_NO_DRIVER", "FMHAFORGE_ERROR_NO_DRIVER"]


@pytest.mark.parametrize("given, words", [
    (0, ".size is 0, this library needs"), (8, ".size is 8, this library needs"),
    (4097, ".size is 4097, which no struct has"), (0xFFFFFFFFFFFFFFF8, ".size is 18446744073709551608, which no struct has: set it to sizeof(")])
def test_sizes_that_no_struct_has(stub_process, built, shared, given, words):
    """A size that was never set must not make the library read on behind the struct."""
    for status, reason in stub_process(scenarios.sizes, shared, built.metadata, "fmha_v2_d64", given):
        assert status == "ABI_MISMATCH" and words in reason


def test_the_end_of_a_struct_is_reserved(stub_process, built, shared):
    """A member that a later version adds there does not change the size, so what today's library does not know must be refused."""
    found = stub_process(scenarios.last_bytes, shared, built.metadata, 90)
    assert found == {name: ("INVALID_ARGUMENT", "reserved: 16843009 is above 0; give at most 0") for name in built.metadata.operations}


@pytest.mark.parametrize("variant, operation, right", [
    ("fmha_v2_d64", "vit", "llm"), ("fmha_v2_vit_d64", "llm", "vit"), ("fmha_v2_d64_paged", "paged_ragged", "paged")])
def test_a_row_launched_as_another_operation(stub_process, built, shared, variant, operation, right):
    status, reason = stub_process(scenarios.wrong_operation, shared, built.metadata, variant, operation)
    assert (status, reason) == ("INVALID_ARGUMENT", f"row {variant} is of operation {right}: launch it with fmhaforge_launch_{right}")


def test_a_row_of_another_library_is_refused(stub_process, built, shared):
    status, reason = stub_process(scenarios.foreign_row, shared, built.metadata, "fmha_v2_d64", 90)
    assert status == "INVALID_ARGUMENT" and "row is not of this library" in reason


def test_no_device(stub_process, shared):
    first, second = stub_process(scenarios.no_driver, shared, "fmha_v2_d64")
    assert first[0] == "NO_DRIVER" and "cuInit failed" in first[1]
    assert second == ("OK", "")
