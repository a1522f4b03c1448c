# SPDX-License-Identifier: Apache-2.0
"""The cache: what it saves, what it survives, and shards, which are caches that other builds take everything from."""

import shutil
import subprocess


def entries(folder):
    """The entries of a cache folder, oldest use first."""
    return sorted((path for path in folder.rglob("*") if path.is_file()), key=lambda path: path.stat().st_mtime)


def test_a_cleaned_build_is_restored(tree):
    tree.good("cubins", "cache=kept")
    before = tree.products()
    tree.good("-c", "cubins", "cache=kept")
    assert tree.products() == {}
    run = tree.good("cubins", "cache=kept")
    assert run.tasks("trace") == run.tasks("assemble") == []
    assert tree.products() == before


def test_another_folder_and_another_tree_share_the_cache(tree, tmp_path):
    cache = tmp_path / "shared"
    tree.good("cubins", f"cache={cache}")
    moved = tree.folder.parent / "elsewhere"
    shutil.copytree(tree.folder, moved)
    shutil.rmtree(moved / "build")
    before = tree.products()
    tree.folder = moved
    run = tree.good("cubins", f"cache={cache}", f"build_dir={tmp_path / 'other place'}", LC_ALL="C", PYTHONHASHSEED="7")
    assert run.tasks("trace") == run.tasks("assemble") == []
    assert tree.products(str(tmp_path / "other place")) == before


def test_a_folder_that_last_held_other_cubins_is_restored_whole(tree):
    """A cubin and its report are two files: the one that comes back first must not vouch for the other, older one."""
    text = (tree.folder / "variants.yaml").read_text()
    tree.good("cubins", "cache=kept")
    before = tree.products()
    tree.write("variants.yaml", text.replace("{m: 64, n: 32, warps: 4}", "{m: 64, n: 64, warps: 4}"))
    tree.good("cubins", "cache=kept")
    assert tree.products() != before
    tree.write("variants.yaml", text)
    run = tree.good("cubins", "cache=kept")
    assert run.tasks("trace") == run.tasks("assemble") == []
    assert tree.products() == before
    assert tree.good("cubins", "cache=kept").tasks("restore") == []


def test_a_damaged_entry_is_built_again_and_stored_again(tree):
    tree.good("cubins", "cache=kept")
    before = tree.products()
    found = entries(tree.folder / "kept")
    assert len(found) == 3 + 2 * 6
    for index, path in enumerate(found):
        data = bytearray(path.read_bytes())
        if index % 3 == 0:
            data[-1] ^= 1
        elif index % 3 == 1:
            del data[len(data) // 2:]
        else:
            data = bytearray()
        path.write_bytes(data)
    shutil.rmtree(tree.folder / "build")
    run = tree.good("cubins", "cache=kept")
    assert len(run.tasks("trace")) == 3 and len(run.tasks("assemble")) == 6
    assert tree.products() == before
    shutil.rmtree(tree.folder / "build")
    assert tree.good("cubins", "cache=kept").tasks("trace") == []


def test_an_entry_under_another_key_is_not_taken(tree):
    tree.good("cubins", "cache=kept")
    before = tree.products()
    found = entries(tree.folder / "kept")
    contents = [path.read_bytes() for path in found]
    for path, content in zip(found, contents[1:] + contents[:1]):
        path.write_bytes(content)
    shutil.rmtree(tree.folder / "build")
    tree.good("cubins", "cache=kept")
    assert tree.products() == before


def test_the_cache_is_trimmed_to_its_limit(tree):
    tree.good("cubins", "cache=kept", "cache_limit=20K")
    assert 0 < sum(path.stat().st_size for path in entries(tree.folder / "kept")) <= 20 * 1024


def test_a_cache_that_cannot_be_written_does_not_stop_the_build(tree):
    tree.write("file", "in the way")
    assert len(tree.good("cubins", "cache=file/cache").tasks("assemble")) == 6


def test_writers_at_once(tree):
    runs = [subprocess.Popen(tree.command("cubins", "cache=kept", f"build_dir=build{index}"), cwd=tree.folder, env=tree.environment(),
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for index in range(3)]
    outputs = [run.communicate(timeout=300)[0] for run in runs]
    assert [run.returncode for run in runs] == [0, 0, 0], outputs
    assert tree.products("build0") == tree.products("build1") == tree.products("build2")
    assert not list((tree.folder / "kept").rglob("*.part"))
    assert tree.good("cubins", "cache=kept", "build_dir=again").tasks("trace") == []


def test_shards_are_disjoint_and_merge_to_the_same_bytes(tree):
    tree.good("cubins", "build_dir=whole")
    whole = tree.products("whole")
    built = []
    for index in (1, 2):
        run = tree.good(f"shard={index}/2", f"cache=part{index}", f"build_dir=build{index}")
        built += run.tasks("assemble")
    assert len(built) == len(set(built)) == 6
    run = tree.good("cubins", "merge=part1,part2", "build_dir=merged")
    assert run.tasks("trace") == run.tasks("assemble") == []
    assert tree.products("merged") == whole


def test_a_missing_shard_is_an_error(tree):
    tree.good("shard=1/2", "cache=part1")
    run = tree.build("-k", "cubins", "merge=part1", "build_dir=merged")
    assert run.status == 2 and "none of the merged parts (part1) holds it" in run.out, run.text


def test_other_options_do_not_share(tree):
    tree.good("cubins", "cache=kept")
    shutil.rmtree(tree.folder / "build")
    assert len(tree.good("cubins", "cache=kept", "allow_spills=1").tasks("assemble")) == 6
