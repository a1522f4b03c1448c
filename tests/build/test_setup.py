# SPDX-License-Identifier: Apache-2.0
"""The set-up behind `make`: an environment from a lock file, made once, made again when the lock changes or when it was interrupted."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def folder(tmp_path):
    """A tree whose lock file asks for nothing, so that no network is needed."""
    place = tmp_path / "a tree of ü's"
    (place / "tools").mkdir(parents=True)
    for name in ("Makefile", "tools/setup.sh", "tools/setup_venv.py"):
        shutil.copyfile(ROOT / name, place / name)
    (place / "requirements.lock").write_text("# nothing\n")
    return place


def make(folder, *arguments, **settings):
    """Runs make in a plain environment."""
    environment = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/"), "PYTHON": sys.executable, **settings}
    return subprocess.run(["make", *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=300)


def test_made_once_and_again_when_the_lock_changes(folder):
    done = make(folder, "setup", LC_ALL="C")
    assert done.returncode == 0 and "setup: making .venv with Python" in done.stdout, done.stderr
    marker = folder / ".venv/marker"
    marker.touch()
    assert make(folder, "setup").stdout == "" and marker.exists()
    (folder / "requirements.lock").write_text("# something else\n")
    assert make(folder, "setup").returncode == 0 and not marker.exists()


def test_an_interrupted_set_up_is_redone(folder):
    assert make(folder, "setup").returncode == 0
    (folder / ".venv/requirements.lock").unlink()
    (folder / ".venv/marker").touch()
    assert make(folder, "setup").returncode == 0 and not (folder / ".venv/marker").exists()


def test_a_lock_without_hashes_is_refused(folder):
    (folder / "requirements.lock").write_text("pyyaml==6.0.3\n")
    done = make(folder, "setup")
    assert done.returncode != 0 and "hash" in done.stderr.lower() and not (folder / ".venv/requirements.lock").exists()


def test_no_usable_python_is_one_clear_error(folder):
    done = make(folder, "setup", PYTHON="no-such-python")
    assert done.returncode != 0 and "no usable Python on PATH" in done.stderr and "3.10" in done.stderr


def test_foreign_settings_choose_nothing(folder):
    done = make(folder, "setup", PYTHONPATH="/nowhere", PIP_USER="1", PIP_TARGET="/nowhere", PYTHONHOME="")
    assert done.returncode == 0, done.stderr


def test_the_tree_is_importable_from_its_environment(folder):
    shutil.copytree(ROOT / "runtime", folder / "runtime", ignore=shutil.ignore_patterns("__pycache__"))
    assert make(folder, "setup").returncode == 0
    done = subprocess.run([folder / ".venv/bin/python", "-c", "import fmhaforge.version; print(fmhaforge.version.__file__)"], cwd="/",
                          capture_output=True, text=True, check=True, env={"PATH": os.environ["PATH"], "PYTHONIOENCODING": "utf-8"})
    assert done.stdout.strip() == str(folder / "runtime/fmhaforge/version.py")


def test_the_lock_pins_every_package_with_hashes():
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    pins = [line.split()[0] for line in lines if line and not line.startswith((" ", "#"))]
    assert all("==" in pin for pin in pins)
    assert sum("--hash=sha256:" in line for line in lines) >= len(pins)
    versions = dict(pin.split("==") for pin in pins)
    assert versions["nvidia-cutlass-dsl"] == versions["nvidia-cutlass-dsl-libs-cu12"] == "4.8.1"
    assert versions["nvidia-cuda-nvcc-cu12"] == "12.9.86" and versions["nvidia-cuda-nvcc"].startswith("13.")


def test_help_names_the_two_commands(folder):
    out = make(folder, "help").stdout
    assert "make bundle" in out and "make test" in out
