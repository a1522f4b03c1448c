# SPDX-License-Identifier: Apache-2.0
"""The C examples of README.md and of the operations' pages compile against the header of a bundle."""

import re
from pathlib import Path

import pytest
from generator import cabi
from generator.operations import OPERATIONS

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = [ROOT / "README.md", *(ROOT / "docs" / "operations" / f"{name}.md" for name in OPERATIONS)]
WARNINGS = ("-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Wconversion", "-Werror")


def compile_all(sources, built, zig, folder):
    """Compiles the sources as one translation unit, as C11, with warnings as errors. Raises CompileError."""
    for index, source in enumerate(sources):
        (folder / f"example{index}.h").write_text(source, encoding="utf-8")
    (folder / "all.c").write_text("".join(f'#include "example{index}.h"\n' for index in range(len(sources))), encoding="utf-8")
    zig.compile(cabi.HOSTS["x86_64"], ("-c", "-std=c11", *WARNINGS, f"-I{built.sources.include}", "-o", "all.o", "all.c"), folder)


def test_every_example_compiles(built, zig, tmp_path):
    sources = [re.findall(r"^```c\n(.*?)^```$", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE) for page in EXAMPLES]
    assert [len(found) for found in sources] == [1] * len(EXAMPLES)
    compile_all([found for found, in sources], built, zig, tmp_path)
    assert (tmp_path / "all.o").stat().st_size > 0


def test_a_wrong_field_is_noticed(built, zig, tmp_path):
    with pytest.raises(cabi.CompileError, match="q_stride_sequence"):
        compile_all(['#include "fmhaforge.h"\nconst fmhaforge_llm_args args = {.q_stride_sequence = 1};\n'], built, zig, tmp_path)
