# SPDX-License-Identifier: Apache-2.0
"""What the stamp of a finished build vouches for."""

import shutil
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
        unchanged.forget(tmp_path / "build", str(tmp_path / "dist"))
        assert unchanged.products(tmp_path / "build") == unchanged.Products(frozenset(), frozenset({str(place.folder / "file")}))
    unchanged.remember(seen, place, [tool])
    unchanged.forget(tmp_path / "build", str(tmp_path / "dist"))
    assert unchanged.products(tmp_path / "build") == unchanged.Products(frozenset(), frozenset())


def into(seen, tmp_path, name):
    """The same inputs for a build into another dist folder, and the bundle there."""
    place = unchanged.Place(tmp_path / name / "bundle", tmp_path / name / "archive")
    place.folder.mkdir(parents=True, exist_ok=True)
    (place.folder / "file").write_bytes(b"content")
    place.archive.write_bytes(b"archive")
    looked = unchanged.look({"build_dir": str(tmp_path / "build"), "dist": str(tmp_path / name)})
    return replace(looked, at_ns=seen.at_ns, inputs={}), place


def built(seen, place, tool):
    """A whole build that finds nothing to make in the build folder."""
    unchanged.forget(place.folder.parents[1] / "build", seen.options.dist)
    unchanged.remember(seen, place, [tool])


def test_each_dist_folder_has_a_stamp(seen, tool, tmp_path):
    one, other = into(seen, tmp_path, "one"), into(seen, tmp_path, "other")
    for build in (one, other, one):
        built(*build, tool)
    assert (unchanged.nothing_to_do(one[0]), unchanged.nothing_to_do(other[0])) == (one[1], other[1])
    (tmp_path / "build/lib").mkdir()
    (tmp_path / "build/lib/code.o").write_bytes(b"made by another build")
    assert unchanged.nothing_to_do(one[0]) is None and unchanged.nothing_to_do(other[0]) is None
    built(*one, tool)
    assert unchanged.nothing_to_do(one[0]) == one[1] and unchanged.nothing_to_do(other[0]) is None


@pytest.mark.parametrize("change", [shutil.rmtree, lambda folder: (folder / "archive").write_bytes(b"changed"), lambda folder: (folder / "bundle/more").touch()])
def test_a_dist_folder_that_was_changed_between_builds_into_another(seen, tool, tmp_path, change):
    one, other = into(seen, tmp_path, "one"), into(seen, tmp_path, "other")
    built(*one, tool)
    change(tmp_path / "one")
    built(*other, tool)
    assert unchanged.nothing_to_do(one[0]) is None and unchanged.nothing_to_do(other[0]) == other[1]


def test_an_archive_that_somebody_touched_stays_known_over_builds_into_another_folder(seen, tool, tmp_path):
    one, other = into(seen, tmp_path, "one"), into(seen, tmp_path, "other")
    built(*one, tool)
    one[1].archive.write_bytes(b"changed")
    for _ in range(2):
        built(*other, tool)
    unchanged.forget(tmp_path / "build", one[0].options.dist)
    assert unchanged.products(tmp_path / "build").touched == {str(one[1].archive)}


def test_a_file_of_the_build_folder_is_known_from_the_last_build_only(seen, tool, tmp_path):
    one, other = into(seen, tmp_path, "one"), into(seen, tmp_path, "other")
    code = tmp_path / "build/lib/code.o"
    code.parent.mkdir()
    code.write_bytes(b"one")
    built(*one, tool)
    unchanged.forget(tmp_path / "build", other[0].options.dist)
    code.write_bytes(b"made again")
    assert unchanged.products(tmp_path / "build").touched == frozenset()
    unchanged.remember(*other, [tool])
    assert str(code) in unchanged.products(tmp_path / "build").kept and unchanged.products(tmp_path / "build").touched == frozenset()


def test_the_stamps_are_bounded(seen, tool, tmp_path):
    builds = [into(seen, tmp_path, f"dist{number}") for number in range(unchanged.KEPT_STAMPS + 3)]
    for build in builds:
        built(*build, tool)
    assert len(list((tmp_path / "build/unchanged").glob("*.json"))) == unchanged.KEPT_STAMPS + 1
    assert [unchanged.nothing_to_do(looked) is not None for looked, _ in builds] == [False] * 3 + [True] * unchanged.KEPT_STAMPS
