# SPDX-License-Identifier: Apache-2.0
"""Random cases on the GPU, compared with float64: what `fmhaforge run` does. Needs cuda-python and nothing else.

Everything that must not matter is poisoned: keys and values past the logical lengths and pages that no sequence uses are NaN,
the output begins as a sentinel, and guard bytes stand around it. A case for checked kernels may hold a planted fault.
"""

from __future__ import annotations

import math
import random
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .driver import Driver
from .dtypes import INT_MAX
from .errors import FaultReported
from .layout import PAGE_TOKENS
from .reference import attend, causal, group_head, vision_block
from .runner import Runner
from .selftest_faults import Planted, Sizes, plant

NORM_LIMIT = 4e-4
"""Largest relative error, by the norm of the whole output."""

ELEMENT_LIMIT = 2e-3
"""Every element lies within ELEMENT_LIMIT + ELEMENT_LIMIT * |reference|."""

SENTINEL = 117.0
GUARD = 256
NAN = math.nan


@dataclass(frozen=True)
class Case:
    """One random problem. `q_lens` and `kv_lens` are the logical lengths; `window` None is no window."""

    operation: str
    mask: str
    head_dim: int
    num_q_heads: int
    num_kv_heads: int
    q_lens: tuple[int, ...]
    kv_lens: tuple[int, ...]
    seqlen_q: int
    seqlen_kv: int
    window: int | None
    scale: float
    seed: int

    @property
    def packed_q(self) -> bool:
        """Whether queries of all sequences stand one after the other."""
        return self.operation in ("paged_ragged", "vit")

    @property
    def paged(self) -> bool:
        """Whether keys and values come from a pool of pages."""
        return self.operation in ("paged", "paged_ragged")

    @property
    def lens_matter(self) -> bool:
        """Whether the operation is told the logical query lengths (otherwise all seqlen_q rows are queries)."""
        return self.operation not in ("llm", "vision_block")


@dataclass(frozen=True)
class Outcome:
    """How a case went. `relative_error` is by norm; `violation` is the worst element over its limit, below 1 if all hold.

    `planted` is the fault in the case, if any: its sequence's output is left out of the errors. `reported` is what a checked kernel said.
    """

    case: Case
    variant: str
    relative_error: float
    violation: float
    untouched: bool
    planted: Planted | None = None
    reported: FaultReported | None = None

    @property
    def report_is_right(self) -> bool:
        """Whether exactly the planted fault was reported: nothing, if none was planted."""
        return self.reported is None if self.planted is None else self.planted.is_reported_by(self.reported)

    def __bool__(self) -> bool:
        return self.relative_error <= NORM_LIMIT and self.violation <= 1.0 and self.untouched and self.report_is_right


def random_case(operation: str, mask: str, head_dim: int, seed: int, num_q_heads: int = 4, num_kv_heads: int = 2, batch: int = 2,
                seqlen_q: int = 24, seqlen_kv: int = 150, window: int = 7) -> Case:
    """A case with ragged lengths up to the given extents; the last sequence has all of them."""
    rng = random.Random(seed)
    q_lens = (*(rng.randint(0, seqlen_q) for _ in range(batch - 1)), seqlen_q)
    kv_lens = q_lens if operation == "vit" else (*(rng.randint(0, seqlen_kv) for _ in range(batch - 1)), seqlen_kv)
    windowed = mask in ("sliding_causal", "vision_block")
    return Case(operation, mask, head_dim, num_q_heads, num_kv_heads, q_lens, kv_lens, seqlen_q, seqlen_kv,
                window if windowed else None, 1 / math.sqrt(head_dim), seed)


def run_case(runner: Runner, driver: Driver, case: Case, device: int = 0, fault: str | None = None) -> Outcome:
    """Runs a case on the device's default stream and compares. Raises what the runner raises, but FaultReported.

    `fault` is one of `selftest_faults.FAULTS`, to be planted and reported: for paged cases with a query and a key, and checked kernels.
    """
    data = _Data(case)
    planted = plant(fault, data.sizes(), data.tensors) if fault else None
    tensors = {**data.tensors, **(planted.tensors if planted else {})}
    with driver.context_of(device), _Buffers(driver) as buffers:
        address = {name: buffers.put(values) for name, values in tensors.items()}
        output = buffers.put(data.guarded_output())
        address["o"] = output + GUARD
        variant, reported = _launch(runner, case, address, data)
        driver.synchronise()
        found = driver.download(output, len(data.guarded_output()))
    return data.compare(found, variant, planted, reported)


def _launch(runner: Runner, case: Case, address: dict[str, int], data: _Data) -> tuple[str, FaultReported | None]:
    """Runs the case: the variant that the preflight names, and what a checked kernel reported."""
    for_preflight, for_run = _arguments(case, address, data)
    variant = getattr(runner, f"preflight_{case.operation}")(*for_preflight).variants[0]
    try:
        getattr(runner, "run" if case.operation == "llm" else f"run_{case.operation}")(*for_run)
    except FaultReported as error:
        return variant, error
    return variant, None


def _arguments(case: Case, a: dict[str, int], data: _Data) -> tuple[tuple, tuple]:
    """The arguments of the operation's preflight function, and of the function that runs it."""
    window = INT_MAX if case.window is None else case.window
    paged = (a.get("q"), a.get("pool"), a.get("pages"), a["o"], a.get("cu_q"), a.get("cu_kv"))
    dense = (a.get("q"), a.get("k"), a.get("v"), a["o"])
    pages = (data.flat_pages, data.max_pages, PAGE_TOKENS)
    lengths = (sum(case.q_lens), case.seqlen_q)
    if case.operation == "llm":
        return (0, window), (*dense, a["cu_kv"], 0, case.scale, window)
    if case.operation == "padding":
        return (0,), (*dense, a["cu_q"], a["cu_kv"], 0, case.scale)
    if case.operation == "vision_block":
        return (0,), (*dense, a["cu_kv"], a["begin"], a["end"], 0, case.scale, window)
    if case.operation == "paged":
        return (0, window), (*paged, *pages, 0, case.scale, window)
    if case.operation == "paged_ragged":
        return (0, window), (*paged, *lengths, *pages, 0, case.scale, window)
    return (0,), (*dense, a["cu_q"], *lengths, len(case.q_lens), 0, case.scale)


class _Data:
    """The tensors of a case as bytes, and what the output must be."""

    def __init__(self, case: Case):
        self.case = case
        self._rng = random.Random(case.seed + 1)
        self.max_pages = -(-case.seqlen_kv // PAGE_TOKENS)
        self._q = self._rows(self._q_rows(), case.num_q_heads)
        self._kv = {plane: [self._rows(length, case.num_kv_heads) for length in case.kv_lens] for plane in "kv"}
        self._blocks = [self._block(b) for b in range(len(case.kv_lens))]
        self.flat_pages = 2 * (len(case.kv_lens) * self.max_pages + 1)
        self.tensors = dict(self._tensors())

    def sizes(self) -> Sizes:
        """What decides where a fault is planted."""
        case = self.case
        return Sizes(len(case.kv_lens), case.seqlen_q, case.kv_lens[-1], self.max_pages, self.flat_pages)

    def _q_rows(self) -> int:
        case = self.case
        return sum(case.q_lens) if case.packed_q else len(case.q_lens) * case.seqlen_q

    def _rows(self, count: int, heads: int) -> list[list[list[float]]]:
        """[count][heads][head_dim] random float16 values."""
        return [[_halves([self._rng.uniform(-1, 1) for _ in range(self.case.head_dim)]) for _ in range(heads)] for _ in range(count)]

    def _block(self, b: int) -> list[tuple[int, int]]:
        """An inclusive interval of keys, or (-1, -1), for each query row."""
        found = []
        for _ in range(self.case.seqlen_q):
            begin = self._rng.randint(-1, max(self.case.kv_lens[b] - 1, -1))
            found.append((begin, begin + self._rng.randint(0, 9)) if begin >= 0 else (-1, -1))
        return found

    # -- bytes ----------------------------------------------------------------------------------------------------------

    def _tensors(self) -> Iterator[tuple[str, bytes]]:
        case = self.case
        yield "q", _pack(self._q)
        yield "cu_q", _prefix_sums(case.q_lens)
        yield "cu_kv", _prefix_sums(case.kv_lens)
        if case.paged:
            yield from self._pool()
        elif case.operation == "vit":
            for plane in "kv":
                yield plane, b"".join(map(_pack, self._kv[plane]))
        else:
            for plane in "kv":
                yield plane, b"".join(_pack(rows) + self._poison(case.seqlen_kv - len(rows)) for rows in self._kv[plane])
        if case.operation == "vision_block":
            for name, side in (("begin", 0), ("end", 1)):
                yield name, b"".join(struct.pack("<i", pair[side]) for block in self._blocks for pair in block)

    def _poison(self, tokens: int) -> bytes:
        return struct.pack("<e", NAN) * (tokens * self.case.num_kv_heads * self.case.head_dim)

    def _pool(self) -> Iterator[tuple[str, bytes]]:
        """Scrambled pages; keys and values have page numbers of their own, and one page of each stays poisoned."""
        pages = list(range(self.flat_pages))
        self._rng.shuffle(pages)
        pool = [self._poison(PAGE_TOKENS)] * self.flat_pages
        table: list[int] = []
        for b in range(len(self.case.kv_lens)):
            for plane in "kv":
                rows = self._kv[plane][b]
                entries = [-1] * self.max_pages
                for index in range(0, len(rows), PAGE_TOKENS):
                    page = pages.pop()
                    chunk = rows[index:index + PAGE_TOKENS]
                    pool[page] = _pack(chunk) + self._poison(PAGE_TOKENS - len(chunk))
                    entries[index // PAGE_TOKENS] = page
                table += entries
        yield "pool", b"".join(pool)
        yield "pages", struct.pack(f"<{len(table)}i", *table)

    def guarded_output(self) -> bytes:
        """The output before the launch, all sentinel, guard bytes on both sides."""
        count = self._q_rows() * self.case.num_q_heads * self.case.head_dim
        return b"\xA5" * GUARD + struct.pack("<e", SENTINEL) * count + b"\xA5" * GUARD

    # -- what is right --------------------------------------------------------------------------------------------------

    def _seen(self, b: int, row: int) -> Sequence[int]:
        """The keys that query row `row` of sequence `b` sees."""
        case = self.case
        keys = case.kv_lens[b]
        queries = case.q_lens[b] if case.lens_matter else case.seqlen_q
        if row >= queries:
            return ()
        if case.mask in ("padding", "bidirectional"):
            return range(keys)
        if case.mask == "vision_block":
            return vision_block(row, queries, keys, case.window, *self._blocks[b][row])
        return causal(row, queries, keys, case.window)

    def _expected(self, without: int | None) -> Iterator[list[float] | None]:
        """The output rows in memory order, one per query head; None for those of sequence `without`."""
        case = self.case
        first = 0
        for b, length in enumerate(case.q_lens):
            rows = length if case.packed_q else case.seqlen_q
            for row in range(rows):
                seen = self._seen(b, row)
                for head in range(case.num_q_heads):
                    if b == without:
                        yield None
                        continue
                    kv_head = group_head(head, case.num_q_heads, case.num_kv_heads)
                    keys, values = ([self._kv[plane][b][key][kv_head] for key in seen] for plane in "kv")
                    yield attend(self._q[first + row][head], keys, values, case.scale, case.head_dim)
            first += rows

    def compare(self, found: bytes, variant: str, planted: Planted | None, reported: FaultReported | None) -> Outcome:
        """Compares the guarded output after the launch with what is right, but the sequence of a planted fault."""
        guards = found[:GUARD] + found[-GUARD:]
        rows = struct.iter_unpack(f"<{self.case.head_dim}e", found[GUARD:-GUARD])
        pairs = [pair for row, right in zip(rows, self._expected(planted.batch if planted else None)) if right is not None
                 for pair in zip(row, right)]
        errors = [abs(value - right) if math.isfinite(value) else math.inf for value, right in pairs]
        worst = max((error / (ELEMENT_LIMIT * (1 + abs(right))) for error, (_, right) in zip(errors, pairs)), default=0.0)
        norm = math.sqrt(math.fsum(right * right for _, right in pairs))
        error_norm = math.sqrt(math.fsum(error * error for error in errors))
        relative = error_norm / norm if norm else (math.inf if error_norm else 0.0)
        return Outcome(self.case, variant, relative, worst, guards == b"\xA5" * (2 * GUARD), planted, reported)


class _Buffers:
    """Device memory that is freed at the end of a block."""

    def __init__(self, driver: Driver):
        self._driver = driver
        self._addresses: list[int] = []

    def __enter__(self) -> _Buffers:
        return self

    def put(self, data: bytes) -> int:
        """Copies bytes to fresh device memory."""
        address = self._driver.allocate(max(len(data), 1))
        self._addresses.append(address)
        if data:
            self._driver.upload(address, data)
        return address

    def __exit__(self, *exception: object) -> None:
        for address in self._addresses:
            self._driver.free(address)


def _halves(values: list[float]) -> list[float]:
    """The values rounded to float16."""
    form = f"<{len(values)}e"
    return list(struct.unpack(form, struct.pack(form, *values)))


def _pack(rows: list[list[list[float]]]) -> bytes:
    flat = [value for row in rows for head in row for value in head]
    return struct.pack(f"<{len(flat)}e", *flat)


def _prefix_sums(lengths: Sequence[int]) -> bytes:
    sums = [0]
    for length in lengths:
        sums.append(sums[-1] + length)
    return struct.pack(f"<{len(sums)}i", *sums)
