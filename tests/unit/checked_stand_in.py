# SPDX-License-Identifier: Apache-2.0
"""What a checked kernel verifies, as plain Python: the stand-ins of kernels report and go on as the real one does."""

from dataclasses import dataclass

PAGE = 128


@dataclass(frozen=True)
class Limits:
    """What a launch allows. `total` is None where queries are not packed."""

    pages: int
    capacity: int
    seqlen_q: int
    total: int | None = None


def length_faults(limits, start, q_len, kv_len):
    """(code, entry, value) of each length that is not to be believed; the kernel takes it for 0."""
    if not 0 <= kv_len <= limits.capacity:
        yield 3, 0, kv_len
    inside = 0 <= q_len <= limits.seqlen_q and (limits.total is None or (start >= 0 and start + q_len <= limits.total))
    if not inside:
        yield 4, 0, q_len


def page_faults(limits, page_list, visited):
    """(code, entry, value) of each page that is followed and does not exist. `page_list` is [2][entries], `visited(key)` says which
    keys some query sees."""
    for plane, code in ((0, 1), (1, 2)):
        for entry, page in enumerate(page_list[plane]):
            if not 0 <= page < limits.pages and any(map(visited, range(entry * PAGE, entry * PAGE + PAGE))):
                yield code, entry, int(page)
