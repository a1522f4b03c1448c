# SPDX-License-Identifier: Apache-2.0
"""Where a bundle comes from, without clocks, paths or host names: the commit, whether its inputs were changed since, and the tools."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

from generator import toolchain
from generator.commit import commit


@lru_cache(maxsize=None)
def tools() -> dict[str, dict[str, str]]:
    """Package -> {version, digest} of everything that put bytes into the bundle, and the Python minor version."""
    found = [*toolchain.trace_distributions(), *(toolchain.assembler_distribution(name) for name in toolchain.ASSEMBLERS),
             toolchain.compiler_distribution()]
    described = {tool.name: {"version": tool.version, "digest": tool.digest} for tool in found}
    return {**described, "python": {"version": toolchain.python_minor()}}


def describe(root: Path) -> dict[str, Any]:
    """The `provenance` of a bundle's metadata."""
    return {**commit(root), "tools": tools()}
