# SPDX-License-Identifier: Apache-2.0
"""As much of torch.cuda as the benchmarks time with: a device whose work takes the time that it is said to, and a slow host."""

from contextlib import contextmanager
from types import SimpleNamespace

CLOCK_MHZ = 2000


class FakeClock:
    """`torch.cuda` with a device clock and a host clock in microseconds. `work(name, us)` makes a function that enqueues one launch.

    Work starts when the device is free and the host has enqueued it, so an idle device shows in the events. `host_us` is what enqueueing
    one launch or graph costs the host; `log` has every launch that ran as (name, input set, host time was behind the device).
    """

    def __init__(self, host_us=25.0, capturable=True, slower=lambda now: 1.0):
        self.device, self.host, self.host_us, self.capturable, self.slower = 0.0, 0.0, host_us, capturable, slower
        self.log, self.recording, self.graphs = [], None, 0
        self.cuda = SimpleNamespace(
            Event=lambda enable_timing: _Event(self), synchronize=self.synchronize, _sleep=self._sleep, CUDAGraph=lambda: _Graph(self),
            graph=self.graph, empty_cache=lambda: None,
        )

    def work(self, name, us):
        def enqueue(index):
            if self.recording is not None:
                self.recording.append((name, index, us))
                return
            self.host += self.host_us
            self.run([(name, index, us)])
        return enqueue

    def run(self, launches):
        ahead = self.host <= self.device
        self.device = max(self.device, self.host)
        for name, index, us in launches:
            self.device += us * self.slower(self.device)
            self.log.append((name, index, ahead))

    def _sleep(self, cycles):
        self.host += self.host_us
        self.device = max(self.device, self.host) + cycles / CLOCK_MHZ

    def synchronize(self):
        self.host = max(self.host, self.device)

    @contextmanager
    def graph(self, graph, capture_error_mode):
        if not self.capturable:
            raise RuntimeError("cannot capture")
        self.recording = graph.launches
        yield
        self.recording = None


class _Event:
    def __init__(self, clock):
        self.clock, self.time = clock, None

    def record(self):
        self.time = max(self.clock.device, self.clock.host)

    def elapsed_time(self, end):
        return (end.time - self.time) / 1000


class _Graph:
    def __init__(self, clock):
        self.clock, self.launches = clock, []

    def replay(self):
        self.clock.host += self.clock.host_us
        self.clock.run(self.launches)
