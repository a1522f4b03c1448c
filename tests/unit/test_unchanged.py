# SPDX-License-Identifier: Apache-2.0
"""What the stamp of a finished build vouches for."""

from dataclasses import replace

import pytest

from generator import unchanged
from generator.options import parse


@pytest.fixture
def tool(tmp_path):
    path = tmp_path / "tool"
    path.write_bytes(b"one")
    return path


@pytest.fixture
def seen(tmp_path, tool):
    """The inputs, looked at a while after everything was written."""
    (tmp_path / "build").mkdir()
    (tmp_path / "build/lock").touch()
    later_ns = tool.stat().st_ctime_ns + 10_000_000_000
    return replace(unchanged.look({"build_dir": str(tmp_path / "build"), "dist": str(tmp_path / "dist")}), at_ns=later_ns, inputs={})


@pytest.fixture
def place(tmp_path):
    folder = tmp_path / "dist/bundle"
    folder.mkdir(parents=True)
    (folder / "file").write_bytes(b"content")
    (tmp_path / "dist/archive").write_bytes(b"archive")
    return unchanged.Place(folder, tmp_path / "dist/archive")


def test_a_build_is_known_until_a_tool_changes(seen, place, tool):
    unchanged.remember(seen, place, [tool])
    assert unchanged.nothing_to_do(seen) == place
    tool.write_bytes(b"two!")
    assert unchanged.nothing_to_do(seen) is None


def test_a_tool_that_was_installed_during_a_build_is_not_vouched_for(seen, place, tool):
    unchanged.remember(seen, place, [tool])
    unchanged.remember(replace(seen, at_ns=tool.stat().st_ctime_ns), place, [tool])
    assert unchanged.nothing_to_do(seen) is None


def test_a_touched_product_stays_known_when_a_build_begins(seen, place, tool, tmp_path):
    unchanged.remember(seen, place, [tool])
    (place.folder / "file").write_bytes(b"changed")
    for _ in range(2):
        unchanged.forget(tmp_path / "build")
        assert unchanged.products(tmp_path / "build") == unchanged.Products(frozenset(), frozenset({str(place.folder / "file")}))
    unchanged.remember(seen, place, [tool])
    unchanged.forget(tmp_path / "build")
    assert unchanged.products(tmp_path / "build") == unchanged.Products(frozenset(), frozenset())
