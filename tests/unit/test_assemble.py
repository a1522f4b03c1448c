# SPDX-License-Identifier: Apache-2.0
"""Assembling: resources, refusals, limits, and that nothing of the machine reaches the cubin."""

import hashlib

import pytest

from generator import rowcheck, toolchain
from generator.assemble import AssembleError, AssembleReport, assemble, assemble_text, first_useful_line, parse_log, warnings
from generator.plan import LaunchPlan, Param, TensorMap
from tests.unit.tiny_ptx import PARAMS, tiny_ptx

PLAN = LaunchPlan(("1", "1", "1"), (128, 1, 1), 1024, (Param("q", "ptr", "q"), Param("batch", "i32", "batch"), Param("s", "i64", "q_stride_seq"),
                                                       Param("scale_log2", "f32", "scale_log2")), ())
LOG = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'k' for 'sm_90'
ptxas info    : Function properties for k
    16 bytes stack frame, 24 bytes spill stores, 32 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers, 16 bytes cumulative stack size, 256 bytes smem
ptxas info    : Compile time = 3.984 ms
"""


def test_resources_are_read_from_the_log():
    assert parse_log(LOG) == {"registers": 255, "stack": 16, "spill_stores": 24, "spill_loads": 32, "static_smem": 256, "warnings": ()}


def test_spills_of_functions_that_were_not_inlined_count():
    log = LOG + "ptxas info    : Function properties for helper\n    8 bytes stack frame, 4 bytes spill stores, 4 bytes spill loads\n"
    found = parse_log(log)
    assert (found["stack"], found["spill_stores"], found["spill_loads"]) == (24, 28, 36)


def test_a_log_of_two_kernels_or_none_is_refused():
    for log in ("", LOG + LOG):
        with pytest.raises(AssembleError, match="entry functions"):
            parse_log(log)


def test_warnings_are_kept():
    text = "ptxas info    : (C7509) Potential Performance Loss: wgmma.mma_async instructions are serialized"
    assert warnings(LOG + text + "\n") == ["(C7509) Potential Performance Loss: wgmma.mma_async instructions are serialized"]
    assert warnings(LOG) == []


@pytest.mark.parametrize("log, line", [
    ("ptxas a.ptx, line 5; error   : Unknown symbol 'x'\nptxas fatal   : Ptx assembly aborted due to errors\n",
     "ptxas a.ptx, line 5; error   : Unknown symbol 'x'"),
    ("something\n  last words \n\n", "last words"), ("", "no output")])
def test_first_useful_line(log, line):
    assert first_useful_line(log) == line


def test_report_describes_the_cubin(tmp_path):
    (tmp_path / "k.ptx").write_bytes(tiny_ptx(body=".shared .align 16 .b8 buffer[512]; mov.u32 %r1, buffer; st.shared.u32 [%r1], %r1;"))
    report = assemble(tmp_path / "k.ptx", "sm_90", "cuda12", tmp_path / "k.cubin")
    data = (tmp_path / "k.cubin").read_bytes()
    assert (report.cubin_sha256, report.cubin_bytes) == (hashlib.sha256(data).hexdigest(), len(data))
    assert (report.symbol, report.static_smem, report.spill_bytes, report.stack) == ("tiny", 512, 0, 0)
    assert AssembleReport.from_json(report.to_json()) == report


@pytest.mark.parametrize("arch, assembler", [("sm_90", "cuda12"), ("sm_110", "cuda13")])
def test_folder_and_environment_do_not_reach_the_cubin(tmp_path, monkeypatch, arch, assembler):
    scratch = tmp_path / "söme folder"
    scratch.mkdir()
    first = assemble_text(tiny_ptx(), arch, assembler, scratch=str(scratch))[0]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    monkeypatch.setenv("PTXAS_FLAGS", "-O0")
    second = assemble_text(tiny_ptx(), arch, assembler)[0]
    assert first == second and b"folder" not in first and b"tmp" not in first
    assert list(scratch.iterdir()) == []


def test_bad_ptx_is_refused_with_ptxas_s_words():
    with pytest.raises(AssembleError, match=r"ptxas failed with status \d+: .*error") as caught:
        assemble_text(tiny_ptx(body="nonsense;"), "sm_80", "cuda12")
    assert "line" in caught.value.log


def test_two_kernels_are_refused():
    more = ".visible .entry other() { ret; }"
    with pytest.raises(AssembleError, match=r"the cubin holds 2 kernels \(other, tiny\), expected exactly one"):
        assemble_text(tiny_ptx(more=more), "sm_80", "cuda12")


def test_an_sm_that_the_assembler_does_not_know():
    with pytest.raises(AssembleError, match="ptxas failed"):
        assemble_text(tiny_ptx(), "sm_110", "cuda12")


def test_time_limit():
    with pytest.raises(AssembleError, match="ptxas took longer than 0.001 s"):
        assemble_text(tiny_ptx(), "sm_80", "cuda12", time_limit_s=0.001)


def test_unknown_assembler():
    with pytest.raises(toolchain.ToolchainError, match="unknown assembler 'cuda11'; known: cuda12, cuda13"):
        assemble_text(tiny_ptx(), "sm_80", "cuda11")


def report_of(**ptx):
    """The report of a tiny kernel."""
    return assemble_text(tiny_ptx(**ptx), "sm_90", "cuda12")[1]


def test_the_planned_kernel_is_accepted():
    assert rowcheck.problems(report_of(), PLAN, 232448, False) == []


@pytest.mark.parametrize("ptx, reason", [
    ({"params": PARAMS.replace(", .param .f32 scale", "")}, "the kernel takes 3 parameters, the launch plan fills 4"),
    ({"params": PARAMS.replace(".u32 n", ".u64 n")}, "parameter 1 (batch) has 8 bytes in the cubin, 4 in the launch plan"),
    ({"params": PARAMS.replace(".u64 stride", ".u32 stride")}, "parameter 2 (s) has 4 bytes in the cubin, 8 in the launch plan"),
    ({"params": PARAMS.replace(".u64 stride", ".align 16 .b8 stride[8]").replace("q, .param .u32 n", "q, .param .align 16 .b8 n[4]")},
     "parameter 1 (batch) lies at offset 16 in the cubin, at 8 in the launch plan"),
    ({"block": ".reqntid 64, 1, 1"}, "the kernel demands blocks of (64, 1, 1), the launch plan says (128, 1, 1)"),
    ({"block": ""}, "the kernel does not state its block size (reqntid); the launch plan says (128, 1, 1)"),
])
def test_another_kernel_is_refused(ptx, reason):
    assert rowcheck.problems(report_of(**ptx), PLAN, 232448, False) == [reason]


def test_shared_memory_is_dynamic_plus_static():
    report = report_of(body=".shared .align 16 .b8 buffer[512]; mov.u32 %r1, buffer; st.shared.u32 [%r1], %r1;")
    assert rowcheck.problems(report, PLAN, 1536, False) == []
    assert rowcheck.problems(report, PLAN, 1535, False) == ["a block needs 1536 bytes of shared memory (1024 dynamic, 512 static), sm_90 has 1535"]


def test_spills_are_refused_unless_allowed():
    report = AssembleReport.from_json({**report_of().to_json(), "spill_stores": 8, "spill_loads": 12})
    assert report.spill_bytes == 20
    assert rowcheck.problems(report, PLAN, 232448, True) == []
    found, = rowcheck.problems(report, PLAN, 232448, False)
    assert found.startswith("spills 8 bytes of stores and 12 of loads at ") and "allow_spills=1" in found


def test_offsets_after_a_tensor_map_are_the_assembler_s():
    params = PARAMS + ", .param .align 64 .b8 map[128], .param .u32 last"
    tensor_map = TensorMap("q", "float16", ("64",), (), (64,))
    plan = LaunchPlan(PLAN.grid, PLAN.block, 0, (*PLAN.params, Param("map", "tensormap", None, tensor_map), Param("last", "i32", "batch")), ())
    for arch in ("sm_80", "sm_90", "sm_100"):
        assert rowcheck.problems(assemble_text(tiny_ptx(params), arch, "cuda12")[1], plan, 232448, False) == []
