# SPDX-License-Identifier: Apache-2.0
"""Every header compiles on its own and in any company, as C11 and as C++17, with every warning an error."""

import re
import shutil
import subprocess

import pytest

from c_build import HOST
from fmhaforge import clib
from generator.cabi.compile import WARNINGS

TOGETHER = ("-shared", "-nostdlib", "-fno-sanitize=all", "-o", "all.so")
"""Compile many units with one call of zig; the language follows from the suffix."""

STANDARDS = {"c": "-std=c11", "cc": "-std=c++17"}


def write_units(folder, headers, suffix):
    """One source for each header alone, and one for all of them, twice, in both orders."""
    folder.mkdir(exist_ok=True)
    units = {f"alone_{index}.{suffix}": [header] for index, header in enumerate(headers)}
    units[f"together.{suffix}"] = [*headers, *headers]
    units[f"reversed.{suffix}"] = [*reversed(headers), *headers]
    for name, included in units.items():
        lines = "".join(f'#include "{header}"\n' for header in included)
        (folder / name).write_text(lines + f"int unit_{name.split('.')[0]}(void);\nint unit_{name.split('.')[0]}(void) {{ return 0; }}\n")
    return sorted(units)


@pytest.mark.parametrize("suffix", STANDARDS)
def test_headers_compile_with_zig(built, zig, tmp_path, suffix):
    headers = built.sources.headers
    assert len(headers) == len({row.variant for row in built.metadata.rows}) + 1
    units = write_units(tmp_path, headers, suffix)
    zig.compile(HOST, (STANDARDS[suffix], *WARNINGS, *TOGETHER, f"-I{built.sources.include}", *units), tmp_path)


GNU = {"c": "gcc", "cc": "g++"}


def check_with_gcc(folder, headers, suffix, *include):
    """Every unit of `headers` passes GCC, or the test is skipped where there is none."""
    compiler = GNU[suffix]
    if shutil.which(compiler) is None:
        pytest.skip(f"no {compiler} here; zig's clang is tested everywhere")
    units = write_units(folder, headers, suffix)
    command = [compiler, STANDARDS[suffix], *WARNINGS, "-Wredundant-decls", "-fsyntax-only", *(f"-I{path}" for path in include), *units]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("suffix", GNU)
def test_headers_compile_with_gcc(built, tmp_path, suffix):
    check_with_gcc(tmp_path, built.sources.headers, suffix, built.sources.include)


RUNNER_HEADERS = ("cuteDslFMHAV2Runner.h", "fmhaforge_nvinfer1.h", "fmhaforge.h")


def test_runner_headers_compile_with_zig(built, zig, tmp_path):
    units = write_units(tmp_path, RUNNER_HEADERS, "cc")
    for unit in units:
        zig.run(("c++", "-target", HOST.triple, STANDARDS["cc"], *WARNINGS, f"-I{built.sources.include}", f"-I{built.sources.root / 'cpp'}", "-c", unit), tmp_path)


def test_runner_headers_compile_with_gcc(built, tmp_path):
    check_with_gcc(tmp_path, RUNNER_HEADERS, "cc", built.sources.include, built.sources.root / "cpp")


def test_a_warning_would_fail(built, zig, tmp_path):
    from generator.cabi import CompileError

    (tmp_path / "bad.c").write_text('#include "fmhaforge.h"\nint f(void);\nint f(void) { int x = 1L << 40; return 0; }\n')
    with pytest.raises(CompileError, match="bad.c:3"):
        zig.compile(HOST, ("-std=c11", *WARNINGS, *TOGETHER, f"-I{built.sources.include}", "bad.c"), tmp_path)


def test_header_has_the_numbers_and_layouts_of_the_runtime(built, zig, tmp_path):
    """The sizes and offsets that ctypes computes are those of the C compiler."""
    import ctypes

    structs = {"fmhaforge_problem": clib.Problem, "fmhaforge_row": clib.Row, "fmhaforge_refusal": clib.Refusal}
    for name, operation in built.metadata.operations.items():
        layout = tuple((argument.name, argument.type) for argument in operation.arguments.values())
        structs[f"fmhaforge_{name}_args"] = clib.args_struct(layout)
    lines = ['#include <stddef.h>\n#include "fmhaforge.h"\n']
    for c_name, struct in structs.items():
        lines.append(f'_Static_assert(sizeof({c_name}) == {ctypes.sizeof(struct)}, "size of {c_name}");\n')
        for field, *_ in struct._fields_:
            offset = getattr(struct, field).offset
            lines.append(f'_Static_assert(offsetof({c_name}, {field}) == {offset}, "{c_name}.{field}");\n')
    for prefix, numbers in (("OPERATION", clib.OPERATIONS), ("MASK", clib.MASKS), ("DTYPE", clib.DTYPES)):
        lines += [f'_Static_assert(FMHAFORGE_{prefix}_{word.upper()} == {value}, "{word}");\n' for word, value in numbers.items()]
    assert len(lines) > 150
    (tmp_path / "layout.c").write_text("".join(lines))
    zig.compile(HOST, ("-std=c11", *WARNINGS, *TOGETHER, f"-I{built.sources.include}", "layout.c"), tmp_path)


def test_structs_have_no_padding_at_their_end(built, zig, tmp_path):
    """So that every member that is ever added shows in the size."""
    text = (built.sources.include / "fmhaforge.h").read_text()
    structs = re.findall(r"^typedef struct fmhaforge_\w+ \{\n(.*?)^\} (\w+);", text, re.M | re.S)
    assert len(structs) == 4 + len(built.metadata.operations)
    lines = ['#include <stddef.h>\n#include "fmhaforge.h"\n']
    for members, name in structs:
        last = re.findall(r"(\w+)(?:\[\d+\])?(?:\)\([^;]*)?;", members)[-1]
        lines.append(f'_Static_assert(offsetof({name}, {last}) + sizeof((({name}*)0)->{last}) == sizeof({name}), "{name}");\n')
    (tmp_path / "ends.c").write_text("".join(lines))
    zig.compile(HOST, ("-std=c11", *WARNINGS, *TOGETHER, f"-I{built.sources.include}", "ends.c"), tmp_path)


def test_header_tells_the_limits_of_arguments(built):
    text = (built.sources.include / "fmhaforge.h").read_text()
    for words in ("q: float16 [batch, seqlen_q, num_q_heads, head_dim], queries; aligned to 16 bytes\n", "from 0; aligned to 4 bytes\n",
                  "q_stride_seq: Q: distance of two tokens, in elements; a multiple of 8\n", "num_kv_heads: key/value heads; at least 1\n",
                  "rounded to float32; finite and > 0; at most 94549\n"):
        assert words in text, words


def test_public_names_have_the_prefix(built):
    """Types, functions and macros of the header all begin with fmhaforge_ or FMHAFORGE_."""
    text = re.sub(r"/\*.*?\*/", "", (built.sources.include / "fmhaforge.h").read_text(), flags=re.S)
    defined = re.findall(r"#define (\w+)", text) + re.findall(r"^\} (\w+);", text, re.M) + re.findall(r"(\w+)\(\s*(?:const|void|int32_t|float|uint32_t|fmhaforge_status)[^;]*\);", text)
    assert len(defined) > 25
    assert [name for name in defined if not name.lower().startswith("fmhaforge_") and name not in ("query",)] == []


def test_header_texts_are_ascii_without_trailing_blanks(built):
    for header in built.sources.headers:
        text = (built.sources.include / header).read_bytes()
        assert text.isascii() and text.endswith(b"\n") and not re.search(rb"[ \t]\n", text), header
