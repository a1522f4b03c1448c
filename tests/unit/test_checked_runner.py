# SPDX-License-Identifier: Apache-2.0
"""Launches of checked kernels: the report is cleared, waited for, read and put in words; captures are refused."""

import math
import struct
import threading
from pathlib import Path

import fmhaforge
import pytest
from cuda.bindings.driver import CUresult
from fake_bundle import make_bundle
from fake_cuda import FakeCuda, FakeTensor
from fake_gpu import FakeGpu
from fmhaforge import ArgumentError, CaptureError, DriverError, FaultReported, checked_report, fault_codes, selftest
from fmhaforge.checked_report import Report
from fmhaforge.cli import main
from fmhaforge.driver import Driver
from fmhaforge.selftest_faults import FAULTS
from generator import sources
from generator.kernels import registry
from generator.plan import plan_for
from generator.trace import TaskFailure, check_sources
from generator.trace_server import CARRIERS
from runtime_fixtures import over
from test_docs_runtime import DOCS, blocks

ROOT = Path(__file__).resolve().parents[2]
HQ, HKV, D = 4, 2, 64
KINDS = [(operation, mask) for operation in ("paged", "paged_ragged") for mask in ("causal", "sliding_causal")]


@pytest.fixture(scope="module")
def bundle_path(tmp_path_factory, manifest):
    """A bundle of two SMs with every variant, the checked ones too."""
    return make_bundle(tmp_path_factory.mktemp("checked") / "fmhaforge-0.1.0", manifest, sms=[86, 90], checked=True)


@pytest.fixture(scope="module")
def bundle(bundle_path):
    return fmhaforge.open(bundle_path)


@pytest.fixture
def cuda():
    return FakeCuda(90, 90, 86)


@pytest.fixture
def gpu(bundle):
    return FakeGpu([row for row in bundle.metadata.rows if row.sm == 90], 90)


def paged_call(cuda, batch=2, seqlen_q=9, pages=3, device=0):
    """The arguments of a `run_paged` whose lengths nobody looks at."""
    def tensor(*shape, typestr="<f2"):
        return FakeTensor(cuda, shape, typestr, device=device)
    return (tensor(batch, seqlen_q, HQ, D), tensor(8, 128, HKV, D), tensor(batch, 2, pages, typestr="<i4"), tensor(batch, seqlen_q, HQ, D),
            tensor(batch + 1, typestr="<i4"), tensor(batch + 1, typestr="<i4"), 8, pages, 128)


def reporting(cuda, *words):
    """A device whose kernels report these words."""
    def copy(data, address, size, stream, real=cuda.cuMemcpyDtoHAsync):
        result = real(data, address, size, stream)
        struct.pack_into("<4i", data, 0, *words)
        return result
    cuda.cuMemcpyDtoHAsync = copy


# -- the launch -------------------------------------------------------------------------------------------------------------


def test_cleared_launched_read_and_waited_for_in_one_stream(bundle, cuda):
    loaded, stream = over(bundle, cuda), cuda.stream()
    loaded.runner(HQ, HKV, D, checked=True).run_paged(*paged_call(cuda), stream, 0.1)
    launched, = cuda.launches
    assert launched.symbol.startswith("fmha_v2_d64_paged_checked") and launched.stream == stream
    address, value, count, cleared_in = cuda.cleared[0]
    assert (value, count, cleared_in) == (0, 6, stream)
    assert cuda.calls[-5:] == ["cuMemAlloc", "cuMemsetD32Async", "cuLaunchKernel", "cuMemcpyDtoHAsync", "cuStreamSynchronize"]
    row = next(row for row in bundle.metadata.rows if (row.variant, row.sm) == ("fmha_v2_d64_paged_checked", 90))
    index = [param.value for param in row.plan.params].index("fault_report")
    assert launched.params[index] == struct.pack("<Q", address) and cuda.memory[address] == (24, 0)


def test_the_report_is_allocated_once_per_context_and_freed_by_unload(bundle, cuda):
    loaded = over(bundle, cuda)
    first = loaded.runner(HQ, HKV, D, checked=True)
    for _ in range(2):
        first.run_paged(*paged_call(cuda), 0, 0.1)
    loaded.runner(HQ, HKV, D, checked=True).run_paged(*paged_call(cuda), 0, 0.1)
    assert cuda.calls.count("cuMemAlloc") == 1 and len(cuda.cleared) == 3
    loaded.runner(HQ, HKV, D, device=2, checked=True).run_paged(*paged_call(cuda, device=2), 0, 0.1)
    addresses = {cleared[0] for cleared in cuda.cleared}
    assert len(addresses) == 2 and sorted(cuda.memory[address][1] for address in addresses) == [0, 2]
    loaded.unload()
    assert not addresses & set(cuda.memory) and (cuda.current, cuda.stack) == (0, [])
    first.run_paged(*paged_call(cuda), 0, 0.1)
    assert cuda.calls.count("cuMemAlloc") == 3


@pytest.mark.parametrize("address_is_given_again", [False, True])
def test_a_report_of_a_destroyed_context_is_not_used_again(bundle, cuda, address_is_given_again):
    """The next context may get the same handle, and others' memory may come to lie where the report was."""
    loaded, context = over(bundle, cuda), 200
    runner, stream = loaded.runner(HQ, HKV, D, checked=True), cuda.stream(context=context)
    runner.run_paged(*paged_call(cuda), stream, 0.1)
    stale, = {cleared[0] for cleared in cuda.cleared}
    cuda.reuse_context(context, {stale} if address_is_given_again else ())
    runner.run_paged(*paged_call(cuda), stream, 0.1)
    assert cuda.calls.count("cuMemAlloc") == 2 and cuda.cleared[1][0] != stale
    row = next(row for row in bundle.metadata.rows if (row.variant, row.sm) == ("fmha_v2_d64_paged_checked", 90))
    index = [param.value for param in row.plan.params].index("fault_report")
    assert cuda.launches[1].params[index] == struct.pack("<Q", cuda.cleared[1][0])
    cuda.reuse_context(context, {stale} if address_is_given_again else ())
    before = set(cuda.memory)
    loaded.unload()
    assert set(cuda.memory) == before and cuda.calls.count("cuMemFree") == 0 and (cuda.current, cuda.stack) == (0, [])


def test_kernels_without_checks_are_not_waited_for(bundle, cuda):
    over(bundle, cuda).runner(HQ, HKV, D).run_paged(*paged_call(cuda), 0, 0.1)
    assert len(cuda.launches) == 1 and cuda.cleared == [] and "cuStreamSynchronize" not in cuda.calls


def test_nothing_to_do_launches_nothing(bundle, cuda):
    over(bundle, cuda).runner(HQ, HKV, D, checked=True).run_paged(*paged_call(cuda, batch=0), 0, 0.1)
    assert cuda.launches == cuda.cleared == []


def test_refused_during_capture(bundle, cuda):
    loaded, stream = over(bundle, cuda), cuda.stream()
    runner = loaded.runner(HQ, HKV, D, checked=True)
    call = paged_call(cuda)
    for _ in range(2):  # before and after the first load
        cuda.capturing.add(stream)
        with pytest.raises(CaptureError, match="fmha_v2_d64_paged_checked for SM 90: is a checked kernel.*outside the capture"):
            runner.run_paged(*call, stream, 0.1)
        assert cuda.launches == cuda.cleared == []
        cuda.capturing.clear()
        runner.preflight_paged(stream)
    loaded.runner(HQ, HKV, D).preflight_paged(stream)
    cuda.capturing.add(stream)
    loaded.runner(HQ, HKV, D).run_paged(*call, stream, 0.1)
    assert len(cuda.launches) == 1


@pytest.mark.parametrize("call", ["cuMemAlloc", "cuMemsetD32Async", "cuLaunchKernel", "cuMemcpyDtoHAsync", "cuStreamSynchronize"])
def test_a_failed_call_is_an_error_and_the_next_launch_works(bundle, cuda, call):
    runner = over(bundle, cuda).runner(HQ, HKV, D, checked=True)
    cuda.fail[call] = CUresult.CUDA_ERROR_ILLEGAL_ADDRESS
    with pytest.raises(DriverError, match=f"{call} failed: CUDA_ERROR_ILLEGAL_ADDRESS"):
        runner.run_paged(*paged_call(cuda), 0, 0.1)
    runner.run_paged(*paged_call(cuda), 0, 0.1)
    assert cuda.calls[-1] == "cuStreamSynchronize"


def test_threads_take_turns_with_the_report(bundle, cuda):
    runner, running, errors = over(bundle, cuda).runner(HQ, HKV, D, checked=True), [], []
    clear, wait = cuda.cuMemsetD32Async, cuda.cuStreamSynchronize

    def began(*arguments):
        running.append("began")
        return clear(*arguments)

    def ended(*arguments):
        running.append("ended")
        return wait(*arguments)
    cuda.cuMemsetD32Async, cuda.cuStreamSynchronize = began, ended
    calls = [paged_call(cuda) for _ in range(8)]

    def work(call):
        try:
            runner.run_paged(*call, 0, 0.1)
        except Exception as error:
            errors.append(error)
    threads = [threading.Thread(target=work, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == [] and running == ["began", "ended"] * 8


def test_the_c_library_holds_no_checked_kernels(bundle, cuda):
    with pytest.raises(ArgumentError, match="checked: .*library=True"):
        over(bundle, cuda).runner(HQ, HKV, D, checked=True, library=True)


# -- the words --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words, kind, argument, text", [
    ((1, 1, 2, -1), "k-page", "kv_cache_page_list",
     r"batch entry 1: kv_cache_page_list\[1, 0, 2\], the page of keys 256 .. 383, is -1; the pool has pages 0 .. 7"),
    ((2, 0, 0, 8), "v-page", "kv_cache_page_list",
     r"batch entry 0: kv_cache_page_list\[0, 1, 0\], the page of values 0 .. 127, is 8; the pool has pages 0 .. 7"),
    ((3, 1, 0, 385), "kv-length", "cu_kv_seqlens",
     r"cu_kv_seqlens\[2\] - cu_kv_seqlens\[1\] is 385; a key length is 0 .. 384 \(max_pages_per_seq 3 x 128\)"),
    ((4, 0, 0, 10), "q-length", "cu_q_seqlens", r"cu_q_seqlens\[1\] - cu_q_seqlens\[0\] is 10; a query length is 0 .. 9 \(seqlen_q\)"),
    ((9, 1, 2, 3), "unknown", None, r"batch entry 1: fault 9 at entry 2, value 3; .*upgrade fmhaforge")])
def test_a_report_in_words(bundle, cuda, words, kind, argument, text):
    reporting(cuda, *words)
    with pytest.raises(FaultReported, match="fmha_v2_d64_paged_checked for SM 90: .*" + text) as caught:
        over(bundle, cuda).runner(HQ, HKV, D, checked=True).run_paged(*paged_call(cuda), 0, 0.1)
    error = caught.value
    assert (error.kind, error.argument, error.batch, error.entry, error.value) == (kind, argument, *words[1:])
    assert len(cuda.launches) == 1


def test_packed_queries_in_words(bundle):
    row = next(row for row in bundle.metadata.rows if row.variant == "fmha_v2_d64_paged_ragged_checked")
    error = checked_report.fault(Report(4, 2, 0, 70), row, {"max_seqlen_q": 64, "total_seqlen_q": 100})
    assert ("cu_q_seqlens[3] - cu_q_seqlens[2] is 70; a query length is 0 .. 64 (max_q_seqlen), between cu_q_seqlens 0 and 100 "
            "(total_q_seqlen)") in str(error)


def test_a_report_is_24_bytes_and_code_0_is_none():
    assert checked_report.REPORT_BYTES == 24
    assert checked_report.read(struct.pack("<6i", 0, 5, 6, 7, 0, 0)) is None
    assert checked_report.read(struct.pack("<6i", 2, 5, 6, -7, 0, 0)) == Report(2, 5, 6, -7)
    assert list(checked_report.KINDS) == [fault_codes.K_PAGE, fault_codes.V_PAGE, fault_codes.KV_LENGTH, fault_codes.Q_LENGTH] == [1, 2, 3, 4]


def test_every_checked_plan_takes_a_report_and_what_it_is_checked_against(manifest):
    rows = [row for row in manifest.rows(checked=True) if row.spec.checked]
    assert rows
    for row in rows:
        values = [param.value for param in plan_for(row).params]
        assert values.count(fault_codes.FAULT_REPORT) == 1 and {"num_flat_pages", "max_pages"} <= set(values), row.variant.name
        assert "generator.kernels.ampere.attention" in registry.source_modules(row.spec)


def test_kernels_are_made_from_no_other_file_of_the_runtime(manifest):
    """A change of the runtime must not trace the kernels anew."""
    roots = {root for row in manifest.rows(sms=[90], checked=True) for root in registry.source_modules(row.spec)}
    found = sources.closure(ROOT, ("generator.kernels.registry", *sorted(roots)), CARRIERS)
    assert [source.path for source in found if source.path.startswith("runtime/")] == ["runtime/fmhaforge/fault_codes.py"]


def test_what_carries_the_plan_may_be_imported_without_being_in_the_fingerprint():
    """The plan's classes are the runtime's; a trace imports them with `generator.plan`, and the plan itself is in the fingerprint by value."""
    imported = {path: sources.file_digest(ROOT / path) for path in ("runtime/fmhaforge/plan.py", "runtime/fmhaforge/fields.py", "generator/plan.py")}
    roots = ("generator.kernels.registry",)
    check_sources(roots, imported)
    with pytest.raises(TaskFailure, match="generator/cabi/model.py, which its fingerprint does not cover"):
        check_sources(roots, {**imported, "generator/cabi/model.py": "0"})


# -- end to end -------------------------------------------------------------------------------------------------------------


def outcome(bundle, gpu, operation, mask, fault=None, **options):
    case = selftest.random_case(operation, mask, D, **{"seed": 3, "seqlen_q": 9, "seqlen_kv": 140, "window": 3, "batch": 3, **options})
    opened = over(bundle, gpu)
    runner = opened.runner(case.num_q_heads, case.num_kv_heads, D, len(case.q_lens), case.seqlen_q, checked=True)
    result = selftest.run_case(runner, opened.driver, case, fault=fault)
    opened.unload()
    assert gpu.bytes == {}
    return result


@pytest.mark.parametrize("operation, mask", KINDS)
def test_good_cases_pass(bundle, gpu, operation, mask):
    result = outcome(bundle, gpu, operation, mask)
    assert result and result.variant.endswith("_checked") and result.reported is None and 0 < result.relative_error < 4e-4


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("operation, mask", KINDS)
def test_planted_faults_are_reported_and_the_rest_is_right(bundle, gpu, operation, mask, fault):
    result = outcome(bundle, gpu, operation, mask, fault)
    wanted = {"k-page": (2, 1, -1), "v-page": (2, 1, 14), "kv-length": (2, 0, 257), "q-length": (2, 0, 10)}[fault]
    assert result and (result.reported.kind, result.reported.batch, result.reported.entry, result.reported.value) == (fault, *wanted)
    assert 0 < result.relative_error < 4e-4


def test_a_silent_kernel_fails(bundle, gpu):
    gpu._verified = lambda row, p, b, first, q_len, kv_len: (q_len, 0 if b == 2 else kv_len)
    result = outcome(bundle, gpu, "paged", "causal", "k-page")
    assert not result and not result.report_is_right and result.relative_error < 4e-4


def test_a_false_alarm_fails(bundle, gpu):
    reporting(gpu, 1, 0, 0, 5)
    result = outcome(bundle, gpu, "paged", "causal")
    assert not result and result.relative_error < 4e-4 and result.reported.value == 5


def test_a_wrong_value_of_another_sequence_fails(bundle, gpu):
    gpu.corrupt = lambda data: struct.pack_into("<e", data, selftest.GUARD, 0.5)
    assert not outcome(bundle, gpu, "paged", "causal", "k-page")


def test_the_example_of_the_docs(bundle, gpu, capsys):
    """docs/runtime.md shows the call, and what it prints."""
    example, = [block for block in blocks("runtime.md", "python") if "checked=True" in block]
    names = {"bundle": over(bundle, gpu), "stream": 0, "fmhaforge": fmhaforge}
    gpu.current = 100

    def put(name, shape, typestr, data):
        names[name] = FakeTensor(gpu, shape, typestr)
        gpu.bytes[names[name].pointer] = bytearray(data)
    for name, shape in (("q", (2, 9, 8, 64)), ("o", (2, 9, 8, 64)), ("paged_kv_pool", (64, 128, 2, 64))):
        put(name, shape, "<f2", bytes(2 * math.prod(shape)))
    put("kv_cache_page_list", (2, 2, 3), "<i4", struct.pack("<12i", 0, -1, -1, 1, -1, -1, 2, 3, -1, 5, 6, 7))
    put("cu_q_seqlens", (3,), "<i4", struct.pack("<3i", 0, 9, 18))
    put("cu_kv_seqlens", (3,), "<i4", struct.pack("<3i", 0, 20, 320))
    exec(example, names)
    printed = capsys.readouterr().out
    assert printed.count("\n") == 1 and f"```\n{printed}```" in (DOCS / "runtime.md").read_text(encoding="utf-8")


# -- the command ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def run(bundle_path, gpu, monkeypatch, capsys):
    """(status, stdout, stderr) of `fmhaforge run` for d64 on the fake GPU."""
    monkeypatch.setattr("fmhaforge.driver.default", lambda driver=Driver(gpu): driver)
    sizes = ("--head-dim", "64", "--mask", "causal", "--seqlen-q", "6", "--seqlen-kv", "9")

    def call(*arguments):
        return (main(["run", "--bundle", str(bundle_path), *sizes, *arguments]), *capsys.readouterr())
    return call


def test_run_checked(run):
    status, out, _ = run("--checked")
    assert status == 0 and "2 of 2 passed" in out and out.count("_checked ") == 2


@pytest.mark.parametrize("fault, found", [("k-page", "k-page batch 1 entry 0 value -1"), ("v-page", "v-page batch 1 entry 0 value 6"),
                                          ("kv-length", "kv-length batch 1 entry 0 value 129"), ("q-length", "q-length batch 1 entry 0 value 7")])
def test_run_with_a_fault(run, fault, found):
    status, out, _ = run("--checked", "--fault", fault)
    assert status == 0 and out.count(found) == 2 and "2 of 2 passed" in out


def test_run_with_a_fault_as_json(run):
    status, out, _ = run("--checked", "--fault", "q-length", "--op", "paged_ragged", "--json")
    result, = fmhaforge.commands.json.loads(out)
    assert status == 0 and result["fault"] == "q-length" and result["passed"]
    assert {key: result["reported"][key] for key in ("kind", "argument", "batch", "entry", "value")} == {
        "kind": "q-length", "argument": "cu_q_seqlens", "batch": 1, "entry": 0, "value": 7}


def test_run_when_nothing_is_reported(run, gpu):
    gpu._verified = lambda row, p, b, first, q_len, kv_len: (q_len, 0 if b == 1 else kv_len)
    status, out, _ = run("--checked", "--fault", "k-page")
    assert status == 1 and out.count("FAILED: nothing reported, batch 1 entry 0 value -1 planted") == 2


@pytest.mark.parametrize("arguments, text", [
    (("--fault", "k-page"), "give --checked too"), (("--checked", "--fault", "k-page", "--seqlen-kv", "0"), "--seqlen-q and --seqlen-kv at least 1"),
    (("--checked", "--op", "llm"), "no row of the bundle matches")])
def test_bad_usage(run, arguments, text):
    status, out, err = run(*arguments)
    assert status == 2 and out == "" and text in err
