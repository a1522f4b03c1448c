# SPDX-License-Identifier: Apache-2.0
"""The documentation does what it says: the ten lines of a new variant are added, built with the real kernels, and asked for."""

import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from generator.options import OPTIONS

ROOT = Path(__file__).resolve().parents[2]


def blocks(path, language):
    """The fenced blocks of one language in a page."""
    fenced = (ROOT / path).read_text(encoding="utf-8").split("```")[1::2]
    return [block.partition("\n")[2] for block in fenced if block.partition("\n")[0] == language]


def test_add_a_variant(tmp_path):
    tree = tmp_path / "tree"
    tree.mkdir()
    for name in ("SConstruct", "LICENSE", "requirements.lock", "variants.yaml"):
        shutil.copyfile(ROOT / name, tree / name)
    for name in ("generator", "runtime"):
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
    entry, = blocks("docs/add-a-variant.md", "yaml")
    assert len(entry.splitlines()) == 10
    with open(tree / "variants.yaml", "a", encoding="utf-8") as file:
        file.write(entry)
    make, query = map(shlex.split, blocks("docs/add-a-variant.md", ""))
    assert make[:2] == ["make", "bundle"] and make[2].startswith("ARGS=") and query[0] == ".venv/bin/fmhaforge"
    build = subprocess.run([sys.executable, "-m", "SCons", "-Q", *make[2].removeprefix("ARGS=").split()], cwd=tree, capture_output=True, text=True, check=False)
    assert build.returncode == 0, build.stdout + build.stderr
    assert "3 rows (1 variants, 3 SMs), 1 kernels" in build.stdout
    asked = subprocess.run([sys.executable, "-m", "fmhaforge", *query[1:]], cwd=tree, env={"PYTHONPATH": str(tree / "runtime"), "PATH": "/usr/bin:/bin"},
                           capture_output=True, text=True, check=False)
    assert asked.returncode == 0 and "fmha_v2_d96" in asked.stdout, asked.stdout + asked.stderr


def test_every_option_is_documented_with_its_default():
    page = (ROOT / "docs/build.md").read_text(encoding="utf-8")
    for option in OPTIONS:
        default = f"`{option.default}`" if option.default else ""
        assert f"| `{option.name}` | {default} | {option.help} |" in page, option.name
