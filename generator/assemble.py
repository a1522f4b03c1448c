# SPDX-License-Identifier: Apache-2.0
"""PTX to cubin with the pinned ptxas, and what the assembler says about the kernel's resources."""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from generator import cubin as cubin_reader
from generator import process, toolchain
from generator.process import ToolRun

_ENTRY = re.compile(r"Compiling entry function '([^']+)' for '([^']+)'")
_PROPERTIES = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers\b")
_SHARED = re.compile(r"(\d+) bytes smem\b")
_INFO = re.compile(r"^ptxas info\s*:")
#: ptxas says how long it took; that is no property of the kernel.
_CLOCK = re.compile(r"Compile time = ")

DEFAULT_TIME_LIMIT_S = 300.0


class AssembleError(Exception):
    """ptxas failed, or what it wrote is not one kernel. `log` holds its whole output."""

    def __init__(self, reason: str, log: str = "") -> None:
        super().__init__(reason)
        self.log = log


@dataclass(frozen=True)
class AssembleReport:
    """What the assembler made: registers a thread, bytes of spills, stack and static shared memory, and the cubin's own layout.

    `params` are (ordinal, offset, size) in bytes as the cubin states them; `reqntid` is the block size that the kernel demands.
    """

    arch: str
    assembler: str
    symbol: str
    registers: int
    spill_stores: int
    spill_loads: int
    stack: int
    static_smem: int
    params: tuple[tuple[int, int, int], ...]
    reqntid: tuple[int, int, int] | None
    elf_abi: int
    cubin_bytes: int
    cubin_sha256: str
    warnings: tuple[str, ...]

    @property
    def spill_bytes(self) -> int:
        """Bytes that the kernel writes to and reads back from local memory for want of registers."""
        return self.spill_stores + self.spill_loads

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> "AssembleReport":
        """The inverse of `to_json`."""
        reqntid = value["reqntid"]
        return cls(**{**value, "params": tuple(tuple(param) for param in value["params"]),
                      "reqntid": None if reqntid is None else tuple(reqntid), "warnings": tuple(value["warnings"])})


def parse_log(log: str) -> dict[str, Any]:
    """The resources in the output of `ptxas -v`. Raises AssembleError unless it speaks of exactly one entry function."""
    entries = _ENTRY.findall(log)
    used = _USED.findall(log)
    properties = _PROPERTIES.findall(log)
    if len(entries) != 1 or len(used) != 1 or not properties:
        raise AssembleError(f"ptxas reports {len(entries)} entry functions and {len(used)} register counts, expected one of each", log)
    shared = _SHARED.search(log)
    return {
        "registers": int(used[0]),
        "stack": sum(int(stack) for stack, _, _ in properties),
        "spill_stores": sum(int(stores) for _, stores, _ in properties),
        "spill_loads": sum(int(loads) for _, _, loads in properties),
        "static_smem": int(shared.group(1)) if shared else 0,
        "warnings": tuple(warnings(log)),
    }


def warnings(log: str) -> list[str]:
    """The lines of ptxas's output that warn: all but the report itself."""
    lines = []
    for line in log.splitlines():
        text = line.strip()
        expected = _ENTRY.search(text) or _PROPERTIES.search(text) or _USED.search(text) or _CLOCK.search(text)
        if not text or expected or "bytes gmem" in text or "Function properties for" in text:
            continue
        lines.append(_INFO.sub("", text).strip())
    return lines


def assemble_text(ptx: bytes, arch: str, assembler: str, time_limit_s: float = DEFAULT_TIME_LIMIT_S,
                  scratch: str | None = None) -> tuple[bytes, AssembleReport, ToolRun]:
    """Assembles PTX for `arch` (`sm_90`, `sm_90a`): (cubin, report, how ptxas ran).

    Works in a folder of its own below `scratch`, under fixed file names, so that no path can reach the cubin.
    Raises AssembleError when ptxas fails or runs over the limit, or when the cubin is not exactly one kernel for `arch`.
    """
    executable = toolchain.assembler_path(assembler)
    with tempfile.TemporaryDirectory(prefix="assemble-", dir=scratch) as folder:
        (Path(folder) / "kernel.ptx").write_bytes(ptx)
        tool = process.run([str(executable), "-v", "-arch", arch, "kernel.ptx", "-o", "kernel.cubin"], folder,
                           {"PATH": os.defpath, "LC_ALL": "C", "TMPDIR": folder}, time_limit_s)
        if tool.timed_out:
            raise AssembleError(f"ptxas took longer than {time_limit_s:g} s (time_limit=SECONDS raises the limit)", tool.log)
        if tool.status:
            raise AssembleError(f"ptxas failed with status {tool.status}: {first_useful_line(tool.log)}", tool.log)
        data = (Path(folder) / "kernel.cubin").read_bytes()
    return data, _report(data, arch, assembler, tool.log), tool


def first_useful_line(log: str) -> str:
    """The first line that says what went wrong: an error or fatal line, else the last line with text."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    for line in lines:
        if re.search(r"\b(error|fatal)\b", line, re.IGNORECASE):
            return line
    return lines[-1] if lines else "no output"


def _report(data: bytes, arch: str, assembler: str, log: str) -> AssembleReport:
    try:
        info = cubin_reader.read(data)
        kernel = info.only_kernel()
    except cubin_reader.CubinError as error:
        raise AssembleError(f"the cubin for {arch}: {error}", log) from None
    if info.sm != sm_of(arch):
        raise AssembleError(f"ptxas was asked for {arch} and wrote a cubin for SM {info.sm}", log)
    resources = parse_log(log)
    if resources["registers"] != kernel.registers:
        raise AssembleError(f"ptxas reports {resources['registers']} registers, the cubin {kernel.registers}", log)
    return AssembleReport(arch=arch, assembler=assembler, symbol=kernel.symbol, params=tuple(map(tuple, kernel.params)),
                          reqntid=kernel.reqntid, elf_abi=info.abi_version, cubin_bytes=len(data),
                          cubin_sha256=hashlib.sha256(data).hexdigest(), **resources)


def sm_of(arch: str) -> int:
    """The SM number of an assembler's target: 90 for `sm_90a`."""
    return int(arch.removeprefix("sm_").rstrip("a"))


def assemble(ptx_path: str | os.PathLike[str], arch: str, assembler: str, out: str | os.PathLike[str]) -> AssembleReport:
    """Assembles the PTX file for `arch` and writes the cubin to `out`. Raises AssembleError or OSError."""
    data, report, _ = assemble_text(Path(ptx_path).read_bytes(), arch, assembler)
    Path(out).write_bytes(data)
    return report
