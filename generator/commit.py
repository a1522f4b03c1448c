# SPDX-License-Identifier: Apache-2.0
"""The commit of the tree, and whether a bundle's inputs were changed since."""

from __future__ import annotations

import os
import subprocess
from functools import lru_cache
from pathlib import Path
from typing import Any

#: What a bundle is made from, relative to the root of the tree. Changes elsewhere (docs, tests) do not make it dirty.
INPUTS = ("variants.yaml", "generator", "runtime/fmhaforge", "SConstruct", "requirements.lock", "tests/device/ledger.json", "LICENSE")


def _git(root: Path, *arguments: str) -> str | None:
    """What git answers, or None when there is no git, no repository, or it refuses."""
    environment = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    try:
        run = subprocess.run(["git", "-C", str(root), *arguments], env={**environment, "LC_ALL": "C", "GIT_OPTIONAL_LOCKS": "0"},
                             stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return run.stdout.decode("utf-8", "replace").strip() if run.returncode == 0 else None


@lru_cache(maxsize=None)
def commit(root: Path) -> dict[str, Any]:
    """{"commit": hash or None outside a repository, "dirty": whether a bundle's input differs from that commit, or None}."""
    top = _git(root, "rev-parse", "--show-toplevel")
    if top is None or Path(top).resolve() != root.resolve():
        return {"commit": None, "dirty": None}
    status = _git(root, "status", "--porcelain", "--untracked-files=normal", "--", *INPUTS)
    return {"commit": _git(root, "rev-parse", "HEAD"), "dirty": None if status is None else bool(status)}
