# SPDX-License-Identifier: Apache-2.0
"""Trees to build in."""

from pathlib import Path

import pytest

from tests.build.fake_tree import FakeTree


@pytest.fixture
def tree(tmp_path: Path) -> FakeTree:
    """A tree with fake kernels, in a folder whose name is unkind to quoting."""
    return FakeTree(tmp_path / "a tree of ü's")
