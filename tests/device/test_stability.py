# SPDX-License-Identifier: Apache-2.0
"""The same launch gives the same bits, however busy the device is."""

import pytest

from tests.device.named import case

REPEATS = 2000


@pytest.fixture
def noise(lab):
    """A second stream that keeps the device's multiprocessors and memory busy until the test ends."""
    torch = lab.backend.xp
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        matrix = torch.randn(1024, 1024, dtype=torch.float16, device="cuda")
        target = torch.empty_like(matrix)
        block = torch.randn(1 << 22, device="cuda")

    def make():
        with torch.cuda.stream(stream):
            torch.mm(matrix, matrix, out=target)
            block.mul_(1.0)

    yield make
    stream.synchronize()


def test_repeats_are_bit_equal(lab, subject, noise):
    """2,000 launches into one output, each compared bit for bit with the first, beside a noisy second stream."""
    lengths = (193, 61)
    problem = lab.prepare(case(subject, "repeats", lengths, lengths, num_q_heads=8, num_kv_heads=4))
    for route in lab.routes_of(subject):
        launch = lab.prepared(problem, route)
        problem.reset()
        launch()
        first = lab.backend.bits(problem.o.flat) + 0
        different = lab.backend.zeros((), "float64")
        for repeat in range(REPEATS):
            if repeat % 8 == 0:
                noise()
            launch()
            different += (lab.backend.bits(problem.o.flat) != first).any()
        assert different.item() == 0, route
