# SPDX-License-Identifier: Apache-2.0
"""Launches of checked kernels: each is waited for, and what it reports is read back."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from . import checked_report
from .checked_report import REPORT_BYTES, Report
from .driver import Driver, Place
from .errors import CaptureError
from .metadata import Row


@dataclass(frozen=True)
class _Buffer:
    """The report of one context, the number of its allocation, and who uses it now."""

    place: Place
    address: int
    allocation: int | None
    lock: threading.Lock = field(default_factory=threading.Lock)


class FaultReports:
    """The device memory that checked kernels report to: one buffer for each context, allocated on first use and kept.

    A context that is destroyed, or a device that is reset, takes its buffer along, and the handle and the address may be given again. So the
    number of the allocation decides whether a buffer is still ours: at every launch, and before it is freed.
    """

    def __init__(self, driver: Driver):
        self._driver = driver
        self._guard = threading.Lock()
        self._buffers: dict[int, _Buffer] = {}

    def launch(self, place: Place, stream: int, enqueue: Callable[[int], None]) -> Report | None:
        """Runs `enqueue(address of a cleared report)` and waits for the stream; gives what was reported, or None.

        The context of `place` is current. Launches in one context take turns. Raises DriverError, also for errors of earlier work.
        """
        buffer = self._buffer(place)
        with buffer.lock:
            self._driver.clear(buffer.address, REPORT_BYTES, stream)
            enqueue(buffer.address)
            return checked_report.read(self._driver.download_after(stream, buffer.address, REPORT_BYTES))

    def _buffer(self, place: Place) -> _Buffer:
        with self._guard:
            found = self._buffers.get(place.context)
            if found is None or not self._is_ours(found):
                address = self._driver.allocate(REPORT_BYTES)
                found = self._buffers[place.context] = _Buffer(place, address, self._driver.allocation(address))
            return found

    def _is_ours(self, buffer: _Buffer) -> bool:
        return self._driver.allocation(buffer.address) == buffer.allocation

    def free(self) -> None:
        """Frees every buffer, when no launch uses one any more; later launches allocate again."""
        with self._guard:
            while self._buffers:
                _, buffer = self._buffers.popitem()
                with buffer.lock:
                    self._free(buffer)

    def _free(self, buffer: _Buffer) -> None:
        if self._is_ours(buffer):  # then its context is alive, too
            with self._driver.current(Place(buffer.place.device, buffer.place.context, False)):
                self._driver.free(buffer.address)


def refuse_capture(driver: Driver, row: Row, stream: int) -> None:
    """Raises CaptureError while the stream captures a graph: the report of a launch in a graph could not be read back."""
    if driver.is_capturing(stream):
        raise CaptureError(row.label, "is a checked kernel, whose launch is waited for to read its report, and the stream captures a graph; "
                                      "launch it outside the capture, or capture without checked=True")
