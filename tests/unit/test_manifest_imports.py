# SPDX-License-Identifier: Apache-2.0
"""The description layer stands alone: in a fresh interpreter it imports no code generator, no CUDA, no build system."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LAYER = ("manifest", "plan", "arch", "operations", "families", "selection", "expr_c")
FORBIDDEN = ("cutlass", "cuda", "SCons", "jinja2", "numpy", "torch")

PROGRAM = """
import importlib, sys
sys.path[:0] = [sys.argv[1]]
for name in sys.argv[2].split(","):
    importlib.import_module(name)
print(",".join(sorted({name.partition(".")[0] for name in sys.modules})))
"""


def imported(names):
    result = subprocess.run([sys.executable, "-c", PROGRAM, str(ROOT), ",".join(names)], capture_output=True, text=True, check=True)
    return set(result.stdout.strip().split(","))


@pytest.mark.parametrize("names", [[f"generator.{name}"] for name in LAYER] + [[f"generator.{name}" for name in LAYER]],
                         ids=[*LAYER, "all"])
def test_the_description_layer_imports_nothing_heavy(names):
    assert imported(names) & set(FORBIDDEN) == set()


def test_the_check_sees_an_import():
    assert "numpy" in FORBIDDEN and {"json", "decimal"} <= imported(["json", "decimal"])


def test_planning_every_row_imports_nothing_heavy():
    program = PROGRAM.replace("print(", "import pathlib\nfrom generator import manifest, plan\n"
                              "[plan.plan_for(row) for row in manifest.load(pathlib.Path(sys.argv[1], 'variants.yaml')).rows()]\nprint(")
    result = subprocess.run([sys.executable, "-c", program, str(ROOT), "generator.plan"], capture_output=True, text=True, check=True)
    modules = set(result.stdout.strip().split(","))
    assert "yaml" in modules and modules & set(FORBIDDEN) == set()
