# SPDX-License-Identifier: Apache-2.0
"""The C library on a device: the same bits as through cuda.bindings, in graphs too; a first load during capture is refused and repeatable."""

import shutil

import pytest

from fmhaforge.clib import CLibrary, CLibraryError, library_file
from fmhaforge.query import ROUTE_CUBIN
from tests.device import launch
from tests.device.named import case

REPLAYS = 100
LENGTHS = (193, 61)


@pytest.fixture
def through_library(bundle):
    """through_library(case): a runner over the bundle's C library for the shape of a case."""
    if library_file() not in bundle.checksums:
        pytest.skip("the bundle under test has no C library for this machine")

    def make(made):
        subject = made.subject
        if subject.checked:
            pytest.skip("the C library holds no checked kernels")
        if ROUTE_CUBIN not in subject.routes:
            pytest.skip("the C library holds no code of this row for this device")
        return bundle.runner(made.num_q_heads, made.num_kv_heads, subject.head_dim, made.batch, made.seqlen_q, made.seqlen_kv,
                             use_small_d64=subject.use_small_d64, library=True)
    return make


def problem_of(lab, subject):
    return lab.prepare(case(subject, "library", LENGTHS, LENGTHS, num_q_heads=8, num_kv_heads=4))


def bits_of(lab, problem):
    lab.backend.synchronise()
    return lab.backend.bits(problem.o.flat) + 0


def test_library_and_bindings_give_equal_bits(lab, bundle, subject, through_library):
    problem = problem_of(lab, subject)
    library = through_library(problem.case)
    problem.reset()
    launch.launch(launch.runner_for(bundle, problem.case, ROUTE_CUBIN), problem, lab.backend.stream())
    bindings_bits = bits_of(lab, problem)
    problem.reset()
    launch.launch(library, problem, lab.backend.stream())
    assert (bits_of(lab, problem) == bindings_bits).all()


def test_graph_replays_are_bit_equal(lab, subject, through_library):
    torch, problem = lab.backend.xp, problem_of(lab, subject)
    runner = through_library(problem.case)
    problem.reset()
    launch.launch(runner, problem, lab.backend.stream())
    eager_bits = bits_of(lab, problem)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch.launch(runner, problem, torch.cuda.current_stream().cuda_stream)
    different = lab.backend.zeros((), "float64")
    for _ in range(REPLAYS):
        problem.reset()
        graph.replay()
        different += (lab.backend.bits(problem.o.flat) != eager_bits).any()
    assert different.item() == 0


def test_first_load_during_capture_is_refused_and_repeatable(lab, bundle, device_sm, tmp_path, through_library):
    torch = lab.backend.xp
    copy = tmp_path / "copy.so"
    shutil.copyfile(bundle.path / library_file(), copy)
    library = CLibrary(copy)
    row = next(library.row(index) for index, row in enumerate(library.rows()) if row.sm == device_sm)
    stream = torch.cuda.Stream()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        with pytest.raises(CLibraryError) as refused:
            library.preload(row, stream.cuda_stream)
        torch.zeros(1, device="cuda").add_(1)
    assert refused.value.status == "STREAM_CAPTURING"
    library.preload(row, stream.cuda_stream)
    graph.replay()
    lab.backend.synchronise()
