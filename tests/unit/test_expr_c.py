# SPDX-License-Identifier: Apache-2.0
"""Expressions rendered to C and compiled, against the runtime's values."""

import ctypes
import random
import subprocess
import sys

import pytest

from fmhaforge import expr
from generator import expr_c

from expr_cases import VALUES, random_expression

FUNCTION = """
int64_t e{index}(int64_t a, int64_t b, int64_t c, int *status)
{{
    (void)a, (void)b, (void)c, (void)status;
    return {c};
}}
"""


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """(expressions, library) with one C function for each expression."""
    pytest.importorskip("ziglang")
    rng = random.Random(11)
    texts = [random_expression(rng, 3)[0] for _ in range(300)]
    source = ["#include <stdint.h>\n", expr_c.HELPERS]
    source += [FUNCTION.format(index=index, c=expr_c.render(text, status="status")) for index, text in enumerate(texts)]
    folder = tmp_path_factory.mktemp("expr_c")
    (folder / "expressions.c").write_text("".join(source), encoding="utf-8")
    subprocess.run([sys.executable, "-m", "ziglang", "cc", "-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Wshadow",
                    "-Werror", "-O1", "-shared", "-fPIC", "-nostdlib", "-ffreestanding",
                    "-o", folder / "expressions.so", folder / "expressions.c"], check=True)
    return texts, ctypes.CDLL(str(folder / "expressions.so"))


def value_in_python(text, env):
    try:
        return expr.compile(text)(env)
    except expr.ExprError:
        return None


def value_in_c(function, env):
    function.restype = ctypes.c_int64
    status = ctypes.c_int(0)
    value = function(*(ctypes.c_int64(env[name]) for name in "abc"), ctypes.byref(status))
    return None if status.value else value


def test_c_and_python_agree(compiled):
    texts, library = compiled
    rng = random.Random(13)
    values = []
    for index, text in enumerate(texts):
        for _ in range(20):
            env = {name: rng.choice(VALUES) for name in "abc"}
            values.append(value_in_python(text, env))
            assert value_in_c(library[f"e{index}"], env) == values[-1], (text, env)
    assert len(values) == 6000
    assert 500 < sum(value is None for value in values) < 5000
