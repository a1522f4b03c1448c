# SPDX-License-Identifier: Apache-2.0
"""Loading rows: once per device, from any thread, refused during capture, retried after failure, never silently."""

import os
import threading
import time

import fmhaforge
import pytest
from cuda.bindings.driver import CUresult
from fake_bundle import make_bundle, rewrite_metadata
from fake_cuda import FakeCuda
from fmhaforge import CaptureError, DriverError, DriverMissingError, EmptyLibraryError, ForkedError, IntegrityError, LoadError
from fmhaforge.driver import Driver
from runtime_fixtures import bundle, bundle_path, cuda, loaded  # noqa: F401
from test_runner_launch import D, HKV, HQ, SCALE, dense, lengths


def run(loaded, cuda, stream=0, device=None, **options):
    """One launch on `device`, with tensors that lie there."""
    tensors, cu = dense(cuda), lengths(cuda)
    for tensor in (*tensors.values(), cu):
        cuda.memory[tensor.pointer] = (cuda.memory[tensor.pointer][0], device or 0)
    loaded.runner(HQ, HKV, D, device=device, **options).run(*tensors.values(), cu, stream, SCALE)


def test_preflight_loads_exactly_what_run_selects_and_launches_nothing(loaded, cuda):
    support = loaded.runner(HQ, HKV, D).preflight_llm(0)
    assert support.variants == ("fmha_v2_d128",) and cuda.launches == []
    assert [kernel.row.variant for kernel in loaded.loader.loaded()] == ["fmha_v2_d128"]
    run(loaded, cuda)
    assert cuda.calls.count("cuLibraryLoadData") == 1 and len(cuda.launches) == 1


PREFLIGHTS = [("preflight_llm", 64, {}, ["fmha_v2_d64_small", "fmha_v2_d64"]),
              ("preflight_llm", 64, {"sliding_window_size": 0}, ["fmha_v2_d64_sw"]),
              ("preflight_paged", 512, {}, ["fmha_v2_d512_paged"]),
              ("preflight_paged", 512, {"sliding_window_size": 9}, ["fmha_v2_d512_sw_paged"]),
              ("preflight_paged_ragged", 256, {}, ["fmha_v2_d256_paged_ragged"]),
              ("preflight_padding", 256, {}, ["fmha_v2_d256_padding"]),
              ("preflight_vision_block", 256, {}, ["fmha_v2_d256_bidirectional"]),
              ("preflight_vit", 72, {}, ["fmha_v2_vit_d72"])]


@pytest.mark.parametrize("name, dim, arguments, variants", PREFLIGHTS)
def test_every_preflight(loaded, cuda, name, dim, arguments, variants):
    getattr(loaded.runner(HQ, HKV, dim), name)(0, **arguments)
    assert [kernel.row.variant for kernel in loaded.loader.loaded()] == variants


def test_first_load_during_capture_is_refused_and_names_preflight(loaded, cuda):
    stream = cuda.stream()
    cuda.capturing.add(stream)
    with pytest.raises(CaptureError, match=r"preflight_llm\(stream\)"):
        run(loaded, cuda, stream)
    assert "cuLibraryLoadData" not in cuda.calls
    cuda.capturing.clear()
    loaded.runner(HQ, HKV, D).preflight_llm(stream)
    cuda.capturing.add(stream)
    run(loaded, cuda, stream)
    assert len(cuda.launches) == 1


def test_the_default_stream_while_another_captures(loaded, cuda):
    cuda.cuStreamIsCapturing = lambda stream: (CUresult.CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, None)
    with pytest.raises(CaptureError):
        run(loaded, cuda)


@pytest.mark.parametrize("call, error", [
    ("cuLibraryLoadData", LoadError), ("cuLibraryGetKernelCount", DriverError), ("cuLibraryGetKernel", LoadError),
    ("cuKernelSetAttribute", DriverError), ("cuKernelGetFunction", LoadError), ("cuFuncLoad", LoadError), ("cuLaunchKernel", DriverError)])
def test_a_failure_leaves_nothing_behind_and_can_be_retried(loaded, cuda, call, error):
    cuda.fail[call] = CUresult.CUDA_ERROR_OUT_OF_MEMORY
    with pytest.raises(error, match="OUT_OF_MEMORY"):
        run(loaded, cuda)
    assert cuda.launches == []
    assert len(cuda.libraries) == len(loaded.loader.loaded()) == (1 if call == "cuLaunchKernel" else 0)
    run(loaded, cuda)
    assert len(cuda.launches) == len(cuda.libraries) == 1


def test_a_library_without_a_kernel_is_an_error(tmp_path, manifest):
    path = make_bundle(tmp_path, manifest, sms=[80], variants=["fmha_v2_d128"])
    rewrite_metadata(path, lambda document: document["arch_table"].update({"90": [80]}))
    cuda = FakeCuda(90)
    with pytest.raises(EmptyLibraryError, match="fmha_v2_d128.cubin.*SM 90.*no kernel"):
        run(fmhaforge.open(path, driver=Driver(cuda)), cuda)
    cuda.version = 12020  # drivers that cannot count kernels
    with pytest.raises(EmptyLibraryError):
        run(fmhaforge.open(path, driver=Driver(cuda)), cuda)
    assert cuda.libraries == {} and cuda.launches == []


def test_a_damaged_cubin_is_never_loaded(tmp_path, manifest):
    path = make_bundle(tmp_path, manifest, sms=[90], variants=["fmha_v2_d128"])
    cuda = FakeCuda(90)
    bundle = fmhaforge.open(path, driver=Driver(cuda))
    cubin = path / bundle.metadata.rows[0].cubin
    good = cubin.read_bytes()
    cubin.write_bytes(good + b"\0")
    with pytest.raises(IntegrityError, match="fmha_v2_d128.cubin.*SHA-256"):
        run(bundle, cuda)
    cubin.unlink()
    with pytest.raises(IntegrityError, match="missing"):
        run(bundle, cuda)
    cubin.write_bytes(good)
    run(bundle, cuda)
    assert cuda.calls.count("cuLibraryLoadData") == 1


def test_a_device_with_less_shared_memory_than_its_target(loaded, cuda):
    cuda.cuDeviceGetAttribute = lambda attribute, device, real=cuda.cuDeviceGetAttribute: (
        (CUresult.CUDA_SUCCESS, 1024) if "OPTIN" in attribute.name else real(attribute, device))
    with pytest.raises(LoadError, match="device 0 gives 1024"):
        run(loaded, cuda)


def test_thirty_two_threads_load_once(loaded, cuda):
    barrier, errors = threading.Barrier(32), []

    def work():
        try:
            barrier.wait()
            loaded.loader.prepare(row, "cubin", 0, 100, 0, "preflight_llm")
        except Exception as error:
            errors.append(error)
    row = loaded.can_implement(HQ, HKV, D, 90, "float16", "causal").rows[0]
    cuda.current = 100
    load = cuda.cuLibraryLoadData
    cuda.cuLibraryLoadData = lambda *arguments: time.sleep(0.02) or load(*arguments)
    threads = [threading.Thread(target=work) for _ in range(32)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == [] and cuda.calls.count("cuLibraryLoadData") == 1


def test_each_device_gets_its_own_row(loaded, cuda):
    for device in range(3):
        run(loaded, cuda, device=device)
    assert [launched.device for launched in cuda.launches] == [0, 1, 2]
    assert [(kernel.device, kernel.row.sm) for kernel in loaded.loader.loaded()] == [(0, 90), (1, 90), (2, 86)]
    assert cuda.current == 0 and cuda.stack == []


def test_the_current_context_is_used_and_restored(loaded, cuda):
    cuda.current = 201  # a context of device 1 that is not the primary one
    run(loaded, cuda, device=1)
    run(loaded, cuda, device=0)
    assert (cuda.current, cuda.stack) == (201, [])
    assert [launched.device for launched in cuda.launches] == [1, 0]
    assert cuda.calls.count("cuDevicePrimaryCtxRetain") == 1


def test_the_stream_decides_the_device(loaded, cuda):
    stream = cuda.stream(1)
    assert loaded.runner(HQ, HKV, D).preflight_llm(stream).rows[0].sm == 90
    assert [kernel.device for kernel in loaded.loader.loaded()] == [1]


def test_a_second_context_of_a_device_loads_no_second_library(loaded, cuda):
    run(loaded, cuda, device=0)
    cuda.current = 200
    run(loaded, cuda, device=0)
    assert cuda.calls.count("cuLibraryLoadData") == 1 and cuda.calls.count("cuFuncLoad") == 2


def test_a_context_that_gets_the_handle_of_a_destroyed_one_is_loaded_into(loaded, cuda):
    cuda.current, runner = 200, loaded.runner(HQ, HKV, D)
    for loads in (1, 1):
        runner.preflight_llm(0)
        assert cuda.calls.count("cuFuncLoad") == loads
    cuda.reuse_context(200)
    runner.preflight_llm(0)
    assert (cuda.calls.count("cuLibraryLoadData"), cuda.calls.count("cuFuncLoad")) == (1, 2)


def test_an_operation_that_the_bundle_does_not_have(tmp_path, manifest, cuda):
    def without(document):
        del document["operations"]["vit"]
    bundle = fmhaforge.open(make_bundle(tmp_path, manifest, sms=[90], variants=["fmha_v2_d128"], change=without), driver=Driver(cuda))
    runner = bundle.runner(HQ, HKV, D)
    for call in (lambda: runner.preflight_vit(0), lambda: runner.run_vit(1, 2, 3, 4, 5, 6, 7, 8, 0, 0.5)):
        with pytest.raises(fmhaforge.UnsupportedError, match=r"operation vit is not served \(there is llm\)"):
            call()


def test_driver_ptx_route(loaded, cuda):
    runner = loaded.runner(HQ, HKV, D, route="driver-ptx", row_sm=120)
    support = runner.preflight_llm(0)
    assert support.rows[0].sm == 120
    run(loaded, cuda, route="driver-ptx", row_sm=120)
    kernel = loaded.loader.loaded()[0]
    assert kernel.row.sm == 120 and len(cuda.launches) == 1 and cuda.launches[0].device == 0


def test_jit_errors_are_quoted(loaded, cuda):
    cuda.sms = (75,)
    with pytest.raises(fmhaforge.UnsupportedError):
        loaded.runner(HQ, HKV, D).preflight_llm(0)
    with pytest.raises(LoadError, match="SM 75.*NO_BINARY_FOR_GPU"):
        loaded.runner(HQ, HKV, 64, route="driver-ptx", row_sm=80).preflight_llm(0)


def test_unload_and_load_again(loaded, cuda):
    run(loaded, cuda, device=0)
    loaded.unload()
    assert cuda.libraries == {} and loaded.loader.loaded() == ()
    run(loaded, cuda, device=0)
    assert len(cuda.launches) == 2


def test_after_fork(loaded, cuda):
    """A forked child is told so; the parent goes on."""
    run(loaded, cuda, device=0)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            run(loaded, cuda, device=0)
        except ForkedError as error:
            status = 0 if "spawn" in str(error) and len(cuda.launches) == 1 else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    run(loaded, cuda, device=0)
    assert len(cuda.launches) == 2


def test_without_a_driver(bundle_path):
    class NoDriver:
        def cuInit(self, flags):
            raise RuntimeError("libcuda.so.1 not found")
    bundle = fmhaforge.open(bundle_path, driver=Driver(NoDriver()))
    assert bundle.can_implement(HQ, HKV, D, 90, "float16", "causal")
    with pytest.raises(DriverMissingError, match="libcuda.so.1 not found.*install"):
        bundle.runner(HQ, HKV, D).preflight_llm(0)
