# SPDX-License-Identifier: Apache-2.0
"""The examples of docs/runtime.md and docs/cli.md, run."""

import io
import re
import shlex
import struct
from contextlib import redirect_stdout
from pathlib import Path

import fmhaforge
import pytest
from fake_cuda import FakeTensor
from fake_gpu import FakeGpu
from fmhaforge.cli import main
from fmhaforge.driver import Driver
from runtime_fixtures import bundle_path  # noqa: F401

DOCS = Path(__file__).resolve().parents[2] / "docs"


def blocks(name, language):
    """The code blocks of a page."""
    return re.findall(rf"```{language}\n(.*?)```", (DOCS / name).read_text(encoding="utf-8"), re.DOTALL)


def commands():
    """(command, expected output) of every console example in docs/cli.md."""
    for block in blocks("cli.md", "console"):
        for example in block.split("$ ")[1:]:
            command, _, expected = example.partition("\n")
            yield command, expected


def run_console_example(command, expected, bundle, monkeypatch):
    """Runs a command of the command line on a bundle and compares what it prints, up to a `| head -N`."""
    monkeypatch.setenv("FMHAFORGE_BUNDLE", str(bundle))
    command, _, head = command.partition(" | head -")
    output = io.StringIO()
    with redirect_stdout(output):
        main(shlex.split(command)[1:])
    lines = output.getvalue().splitlines(keepends=True)
    assert "".join(lines[:int(head)] if head else lines) == expected


@pytest.mark.parametrize("command, expected", list(commands()))
def test_console_examples(command, expected, bundle_path, monkeypatch):
    run_console_example(command, expected, bundle_path, monkeypatch)


@pytest.mark.parametrize("sm", [90, 86])
def test_python_examples(bundle_path, sm):
    gpu = FakeGpu([row for row in fmhaforge.open(bundle_path).metadata.rows if row.sm == sm], sm)
    names = {"path": bundle_path, "stream": 0}
    ask, run = blocks("runtime.md", "python")[:2]
    with redirect_stdout(io.StringIO()) as output:
        exec(ask, names)
    assert output.getvalue().startswith("head_dim 96 is not served")
    names["bundle"] = fmhaforge.open(bundle_path, driver=Driver(gpu))
    gpu.current = 100
    tensors = {"q": (1, 3, 8, 64), "k": (1, 5, 2, 64), "v": (1, 5, 2, 64), "o": (1, 3, 8, 64)}
    for name, shape in tensors.items():
        names[name] = FakeTensor(gpu, shape)
        gpu.bytes[names[name].pointer] = bytearray(struct.pack("<e", 1.0) * (shape[1] * shape[2] * shape[3]))
    names["cu_kv_seqlens"] = FakeTensor(gpu, (2,), "<i4")
    gpu.bytes[names["cu_kv_seqlens"].pointer] = bytearray(struct.pack("<2i", 0, 5))
    gpu.bytes[names["o"].pointer] = bytearray(len(gpu.bytes[names["o"].pointer]))
    exec(run, names)
    assert [launched.symbol.removesuffix("_0") for launched in gpu.launches] == ["fmha_v2_d64_small", "fmha_v2_d64_sw"]
    assert bytes(gpu.bytes[names["o"].pointer]) == struct.pack("<e", 1.0) * (3 * 8 * 64)
