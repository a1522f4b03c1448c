# SPDX-License-Identifier: Apache-2.0
"""The report of a checked kernel in words: which value was wrong, where it stands, and what is allowed there."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass

from .errors import FaultReported
from .fault_codes import K_PAGE, KV_LENGTH, Q_LENGTH, REPORT_WORDS, V_PAGE
from .layout import PAGE_TOKENS
from .metadata import Row
from .names import public_name

REPORT_BYTES = 4 * REPORT_WORDS

KINDS = {K_PAGE: "k-page", V_PAGE: "v-page", KV_LENGTH: "kv-length", Q_LENGTH: "q-length"}
"""Code -> the name of the fault for people."""

PAGE_PLANES = {K_PAGE: (0, "keys"), V_PAGE: (1, "values")}
"""Code of a page fault -> its row in a sequence's page list, and what the page holds."""


@dataclass(frozen=True)
class Report:
    """What a kernel has reported; the fields as in `fmhaforge.fault_codes`."""

    code: int
    batch: int
    entry: int
    value: int


def read(data: bytes) -> Report | None:
    """The report in `REPORT_BYTES` bytes of device memory, or None when the kernel found nothing wrong."""
    report = Report(*struct.unpack_from("<4i", data))
    return report if report.code else None


def fault(report: Report, row: Row, values: Mapping[str, int]) -> FaultReported:
    """The exception for a report of `row`'s kernel; `values` are the integer arguments of the launch."""
    argument, found, allowed = _words(report, row.operation, values)
    reason = (f"batch entry {report.batch}: {found}; {allowed}; put that right (the output of this batch entry means nothing, "
              "the others are right)")
    return FaultReported(row.label, KINDS.get(report.code, "unknown"), argument, report.batch, report.entry, report.value, reason)


def _words(report: Report, operation: str, values: Mapping[str, int]) -> tuple[str | None, str, str]:
    """(the wrong argument, what was found there, what is allowed)."""
    if report.code in PAGE_PLANES:
        plane, held = PAGE_PLANES[report.code]
        name = public_name("page_list")
        first = report.entry * PAGE_TOKENS
        return (name, f"{name}[{report.batch}, {plane}, {report.entry}], the page of {held} {first} .. {first + PAGE_TOKENS - 1}, is "
                      f"{report.value}", f"the pool has pages 0 .. {values['num_flat_pages'] - 1}")
    if report.code == KV_LENGTH:
        pages = values["max_pages"]
        return _length("cu_kv_seqlens", "key", report, pages * PAGE_TOKENS, f"{public_name('max_pages')} {pages} x {PAGE_TOKENS}")
    if report.code == Q_LENGTH and operation == "paged_ragged":
        total = values["total_seqlen_q"]
        name, found, allowed = _length("cu_q_seqlens", "query", report, values["max_seqlen_q"], public_name("max_seqlen_q"))
        return name, found, f"{allowed}, between {name} 0 and {total} ({public_name('total_seqlen_q')})"
    if report.code == Q_LENGTH:
        return _length("cu_q_seqlens", "query", report, values["seqlen_q"], "seqlen_q")
    return None, f"fault {report.code} at entry {report.entry}, value {report.value}", "this runtime does not know it; upgrade fmhaforge"


def _length(name: str, what: str, report: Report, most: int, why: str) -> tuple[str, str, str]:
    found = f"{name}[{report.batch + 1}] - {name}[{report.batch}] is {report.value}"
    return name, found, f"a {what} length is 0 .. {most} ({why})"
