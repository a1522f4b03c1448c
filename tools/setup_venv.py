# SPDX-License-Identifier: Apache-2.0
"""Makes the build's virtual environment from the lock file. Run by any Python 3.10 to 3.13; needs the standard library only.

    python3 tools/setup_venv.py .venv requirements.lock

The copy of the lock file inside the environment is written last: an environment without it, or with another one, was interrupted or is
out of date, and is made again from nothing. Two set-ups at once wait for each other.
"""

from __future__ import annotations

import fcntl
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

# Settings of the caller that would send pip's output elsewhere or let other packages in.
FOREIGN_SETTINGS = ("PYTHONPATH", "PYTHONHOME", "PIP_USER", "PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_REQUIRE_VIRTUALENV",
                    "PIP_CONSTRAINT", "PIP_NO_DEPS", "PIP_NO_BINARY", "__PYVENV_LAUNCHER__")

# A path file line that starts with `import` is executed, so it holds for a tree in any folder, whatever the locale.
PATH_FILE = ("import os, sys; sys.path[len(sys.path):] = [os.path.join(os.path.dirname(sys.prefix), name) for name in ('runtime', '')"
             " if os.path.isfile(os.path.join(os.path.dirname(sys.prefix), 'runtime', 'fmhaforge', 'version.py'))]\n")

COMMAND = """#!/bin/sh
# Starts fmhaforge from the source tree that this environment belongs to.
exec "$(dirname -- "$(readlink -f -- "$0")")/python" -m fmhaforge "$@"
"""


class SetupError(Exception):
    """The environment could not be made; the message says what to do."""


def is_complete(venv: Path, lock: Path) -> bool:
    """Whether `venv` was made from exactly this lock file, to the end."""
    try:
        return (venv / lock.name).read_bytes() == lock.read_bytes() and os.access(venv / "bin" / "python", os.X_OK)
    except OSError:
        return False


def run(command: list[str], remedy: str) -> None:
    """Runs one step in a clean environment; raises SetupError with the remedy when it fails."""
    environment = {name: value for name, value in os.environ.items() if name not in FOREIGN_SETTINGS}
    environment["PYTHONNOUSERSITE"] = "1"
    status = subprocess.call(command, env=environment)
    if status:
        raise SetupError(f"`{' '.join(command)}` failed with status {status}. {remedy}")


def site_packages(venv: Path) -> Path:
    """The environment's one site-packages folder."""
    return venv / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"


def check_machine() -> None:
    """Raises SetupError on a machine for which the lock file has no packages."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        raise SetupError(f"the build runs on x86-64 Linux, and this is {platform.machine()} {sys.platform}. Build there; the bundle holds the "
                         "libraries of other hosts too.")
    libc, version = platform.libc_ver()
    if libc != "glibc" or tuple(map(int, version.split("."))) < (2, 28):
        raise SetupError(f"the toolchain needs glibc 2.28 or newer, and this Python runs on {libc or 'another C library'} {version}.")


def make(venv: Path, lock: Path) -> None:
    """Makes the environment from nothing; the copy of the lock file comes last."""
    check_machine()
    if venv.is_symlink() or venv.is_file():
        raise SetupError(f"{venv} is not a folder. Remove it and run make again.")
    if venv.exists():
        shutil.rmtree(venv)
    run([sys.executable, "-m", "venv", str(venv)], "Debian and Ubuntu ship venv in the package python3-venv.")
    # --no-deps: the lock file is complete. It leaves out what nvidia-cuda-nvcc asks for but its ptxas does not use.
    run([str(venv / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--require-hashes",
         "--only-binary", ":all:", "--requirement", str(lock)],
        "The packages come from PyPI (x86-64 Linux, glibc 2.28 or newer): check the network or pip's index settings, and run make again.")
    (site_packages(venv) / "fmhaforge_tree.pth").write_text(PATH_FILE, encoding="ascii")
    command = venv / "bin" / "fmhaforge"
    command.write_text(COMMAND, encoding="ascii")
    command.chmod(0o755)
    unfinished = venv / (lock.name + ".part")
    shutil.copyfile(lock, unfinished)
    os.replace(unfinished, venv / lock.name)


def main(arguments: list[str]) -> int:
    if len(arguments) != 2:
        print("usage: python3 tools/setup_venv.py VENV LOCK_FILE", file=sys.stderr)
        return 2
    venv, lock = Path(arguments[0]), Path(arguments[1])
    try:
        with open(lock, "rb") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX)
            if not is_complete(venv, lock):
                print(f"setup: making {venv} with Python {sys.version.split()[0]} from {lock} (about 450 MB to download, once)", flush=True)
                make(venv, lock)
    except (SetupError, OSError) as error:
        print(f"setup: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
