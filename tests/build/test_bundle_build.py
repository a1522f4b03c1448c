# SPDX-License-Identifier: Apache-2.0
"""From rows to a bundle and its archive: what stands in it, that it is whole, and that its bytes are the same everywhere."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import time

import pytest

from generator import unchanged
from tests.build.fake_tree import FakeTree

BUNDLE = "dist/fmhaforge-0.1.0"
ARGUMENTS = ("allow_unvalidated=1",)


@pytest.fixture(scope="module")
def zig_cache(tmp_path_factory):
    """The C compiler's own cache, which takes long to fill."""
    return tmp_path_factory.mktemp("zig")


def with_zig(tree: FakeTree, cache) -> FakeTree:
    """Lets a tree's builds share the compiler's cache."""
    (tree.folder / "build").mkdir()
    (tree.folder / "build/zig").symlink_to(cache)
    return tree


@pytest.fixture(scope="module")
def built(tmp_path_factory, zig_cache):
    """A tree with its bundle, for tests that only read it."""
    tree = with_zig(FakeTree(tmp_path_factory.mktemp("built") / "tree one"), zig_cache)
    tree.run = tree.good(*ARGUMENTS)
    return tree


def contents(folder) -> dict[str, bytes]:
    """Every file below a folder."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_the_build_ends_with_the_table(built):
    lines = built.run.out.splitlines()
    start = next(index for index, line in enumerate(lines) if line.startswith("variant "))
    assert [line.split()[:2] for line in lines[start + 2: start + 8]] == [
        ["fake_d64", "90"], ["fake_d64", "110"], ["fake_d128", "90"], ["fake_d128", "110"], ["fake_d64_sw", "90"], ["fake_d64_sw", "110"]]
    assert "6 rows (3 variants, 2 SMs), 3 kernels" in built.run.out and "NOT VALIDATED" in built.run.out


def test_the_metadata_describes_the_files(built):
    folder = built.folder / BUNDLE
    document = json.loads((folder / "metadata.json").read_bytes())
    assert (document["schema_version"], document["name"], document["version"], document["validated"]) == (1, "fmhaforge", "0.1.0", False)
    assert document["arch_table"] == {"90": [90], "110": [110]}
    assert len(document["rows"]) == 6
    for row in document["rows"]:
        cubin = (folder / row["cubin"]).read_bytes()
        assert row["cubin"] == f"cubins/sm_{row['sm']}/{row['variant']}.cubin"
        assert (hashlib.sha256(cubin).hexdigest(), len(cubin)) == (row["cubin_sha256"], row["cubin_bytes"])
        assert hashlib.sha256((folder / row["ptx"]).read_bytes()).hexdigest() == row["ptx_sha256"]
        assert (row["symbol"], row["threads"], row["spill_bytes"]) == ("fake_llm", 128, 0)
        assert row["assembler"] == {90: "cuda12", 110: "cuda13"}[row["sm"]]
    assert document["provenance"]["commit"] is None
    assert document["provenance"]["tools"]["nvidia-cuda-nvcc-cu12"]["version"] == "12.9.86"


def test_checksums_cover_every_file(built):
    done = subprocess.run(["sha256sum", "--strict", "--quiet", "-c", "SHA256SUMS"], cwd=built.folder / BUNDLE, check=False)
    assert done.returncode == 0
    listed = {line.split("  ")[1] for line in (built.folder / BUNDLE / "SHA256SUMS").read_text().splitlines()}
    assert listed | {"SHA256SUMS"} == set(contents(built.folder / BUNDLE))


def test_the_runtime_verifies_the_bundle(built):
    done = subprocess.run([sys.executable, "-m", "fmhaforge", "verify", "--bundle", BUNDLE], cwd=built.folder,
                          env=built.environment(PYTHONPATH=str(built.folder / "runtime")), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_archive_holds_the_same_files(built, tmp_path):
    with tarfile.open(built.folder / f"{BUNDLE}.tar.xz") as tar:
        members = tar.getmembers()
        tar.extractall(tmp_path)
    assert {(m.uid, m.gid, m.uname, m.gname, m.mtime) for m in members} == {(0, 0, "", "", 0)}
    names = [m.name for m in members]
    assert all(os.path.dirname(name) in names[:index] for index, name in enumerate(names) if "/" in name)
    assert contents(tmp_path / "fmhaforge-0.1.0") == contents(built.folder / BUNDLE)
    assert (tmp_path / "fmhaforge-0.1.0/lib/x86_64/libfmhaforge.so").is_symlink()


def test_no_path_user_or_machine_is_in_the_bundle(built):
    words = [str(built.folder).encode(), str(built.folder.parent).encode(), b"/site-packages/"]
    words += [name.encode() for name in (os.uname().nodename, os.environ.get("USER", "")) if len(name) > 5]  # shorter ones are found anywhere
    for name, data in contents(built.folder / BUNDLE).items():
        for word in words:
            assert word not in data, (name, word)


def test_the_same_bytes_elsewhere(built, tmp_path, zig_cache):
    other = FakeTree(tmp_path / "another place, ü")
    (other.folder / "build").mkdir()
    command = ["sh", "-c", 'umask 077; exec "$@"', "sh", *other.command("-j1", *ARGUMENTS)]
    other.write("headers/stdint.h", "#error a header of the caller's\n")
    settings = other.environment(CPATH=str(other.folder / "headers"), CFLAGS="-O0", LC_ALL="C", LANG="de_DE", TZ="Asia/Tokyo", PYTHONHASHSEED="12345", USER="somebody", CUTE_DSL_KEEP_PTX="1")
    done = subprocess.run(command, cwd=other.folder, env=settings, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert contents(other.folder / BUNDLE) == contents(built.folder / BUNDLE)
    assert (other.folder / f"{BUNDLE}.tar.xz").read_bytes() == (built.folder / f"{BUNDLE}.tar.xz").read_bytes()
    assert (other.folder / BUNDLE / "metadata.json").stat().st_mode & 0o777 == 0o644


def test_source_date_epoch_is_the_archive_s_time(built, tmp_path):
    tree = copy(built, tmp_path)
    tree.good(*ARGUMENTS, SOURCE_DATE_EPOCH="1700000000")
    with tarfile.open(tree.folder / f"{BUNDLE}.tar.xz") as tar:
        assert {member.mtime for member in tar.getmembers()} == {1700000000}
    run = tree.build(*ARGUMENTS, SOURCE_DATE_EPOCH="yesterday")
    assert run.status == 2 and "SOURCE_DATE_EPOCH=yesterday: expected seconds" in run.text, run.text


def copy(built: FakeTree, tmp_path) -> FakeTree:
    """A built tree of a test's own."""
    tree = object.__new__(FakeTree)
    tree.folder = tmp_path / "copy"
    shutil.copytree(built.folder, tree.folder, symlinks=True)
    return tree


def test_nothing_to_do_and_a_lost_file(built, tmp_path):
    tree = copy(built, tmp_path)
    tree.good(*ARGUMENTS)
    before = contents(tree.folder / BUNDLE)
    run = tree.good(*ARGUMENTS)
    assert run.tasks("bundle") == run.tasks("compile") == [] and "6 rows" in run.out
    (tree.folder / BUNDLE / "cubins/sm_90/fake_d64.cubin").unlink()
    run = tree.good(*ARGUMENTS)
    assert len(run.tasks("bundle")) == 1 and run.tasks("compile") == []
    assert contents(tree.folder / BUNDLE) == before


def test_an_untouched_build_is_known_by_its_files(built, tmp_path):
    """Without SCons's own record everything would be built again; it is not even opened."""
    tree = copy(built, tmp_path)
    tree.good(*ARGUMENTS)
    (tree.folder / "build/sconsign.dblite").unlink()
    before = contents(tree.folder / "dist")
    for arguments in ((), ("bundle", "-k"), ("explain=1", "-j1")):
        run = tree.good(*ARGUMENTS, *arguments)
        assert run.tasks("trace") == run.tasks("bundle") == [] and "6 rows (3 variants, 2 SMs), 3 kernels" in run.out
    assert contents(tree.folder / "dist") == before and not (tree.folder / "build/sconsign.dblite").exists()


def has_stamp(tree, dist="dist"):
    """Whether the last build into a dist folder left a stamp."""
    return unchanged.stamp_path(tree.folder / "build", str(tree.folder / dist)).exists()


def states(folder):
    """Everything about every file and folder: bytecode, times and inodes too."""
    found = {}
    for path in sorted([folder, *folder.rglob("*")]):
        status = path.lstat()
        found[str(path)] = status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_size, path.read_bytes() if path.is_file() else None
    return found


LOOKING = [("-q",), ("-n",), ("-n", "-c"), ("-q", "-c"), ("-h",), ("-q", "cubins"), ("-n", "--explain", "edge-llm"), ("-q", "cache=kept"), ("-n", "dist=elsewhere")]


def test_questions_and_dry_runs_change_nothing(built, tmp_path):
    tree = copy(built, tmp_path)
    shutil.rmtree(tree.folder / "generator/__pycache__")
    tree.good(*ARGUMENTS)
    time.sleep(0.2)
    tree.good(*ARGUMENTS)
    (tree.folder / "build/lib/empty").mkdir()
    before = states(tree.folder)
    ended = {options: tree.build(*ARGUMENTS, *options).status for options in LOOKING}
    assert states(tree.folder) == before
    assert ended == dict.fromkeys(LOOKING, 0)
    (tree.folder / "build/sconsign.dblite").unlink()
    assert tasks_of(tree.good(*ARGUMENTS)) == {}, "the stamp still says that there is nothing to do"


def test_a_question_is_answered(built, tmp_path):
    tree = copy(built, tmp_path)
    tree.good(*ARGUMENTS)
    path = "generator/kernels/fake_b.py"
    tree.write(path, (tree.folder / path).read_text().replace('"b"', '"changed"'))
    before = states(tree.folder)
    for options in (("-q",), ("-q", "cubins"), ("-q", "ptx"), ("-q", "dist=elsewhere")):
        assert tree.build(*ARGUMENTS, *options).status == 1
    assert states(tree.folder) == before


@pytest.mark.parametrize("options", [("-q",), ("-n",), ("-h",), ("-n", "-c")])
def test_looking_at_a_fresh_tree_writes_nothing(tree, options):
    before = states(tree.folder)
    assert tree.build("cubins", *options).status == (options == ("-q",))
    assert states(tree.folder) == before


def test_builds_into_two_dist_folders_know_each_its_own(built, tmp_path):
    tree = copy(built, tmp_path)
    shutil.rmtree(tree.folder / "dist")
    for dist in ("dist=a", "dist=b"):
        tree.good(*ARGUMENTS, dist)
        time.sleep(0.2)
        tree.good(*ARGUMENTS, dist)
    assert has_stamp(tree, "a") and has_stamp(tree, "b")
    record = tree.folder / "build/sconsign.dblite"
    kept = record.read_bytes()
    record.unlink()  # without it everything would be made again
    for dist in ("dist=a", "dist=b", "dist=a"):
        run = tree.good(*ARGUMENTS, dist)
        assert tasks_of(run) == {} and f"bundle: {dist[5:]}/fmhaforge-0.1.0" in run.out
    assert not record.exists()
    record.write_bytes(kept)
    good = contents(tree.folder / "a")
    rewritten(tree.folder / "a/fmhaforge-0.1.0.tar.xz", b"7zXZ", b"7zxz")
    assert tasks_of(tree.good(*ARGUMENTS, "dist=b")) == {}
    assert tasks_of(tree.good(*ARGUMENTS, "dist=a")) == {"bundle": 1}
    shutil.rmtree(tree.folder / "a")
    assert tasks_of(tree.good(*ARGUMENTS, "dist=b")) == {}
    assert tasks_of(tree.good(*ARGUMENTS, "dist=a")) == {"bundle": 1}
    assert contents(tree.folder / "a") == contents(tree.folder / "b") == good


def rewritten(path, old, new):
    """Changes a file's content, but not its size, and its date only where Python would take old bytecode for the new source."""
    status, data = path.stat(), path.read_bytes()
    assert old in data and len(old) == len(new)
    path.write_bytes(data.replace(old, new))
    if path.suffix != ".py":
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


CHANGED_INPUTS = [
    ("variants.yaml", b"n: 32", b"n: 64", {"trace": 1, "assemble": 2, "compile": 2, "bundle": 1}),
    ("generator/kernels/fake_b.py", b'"b"', b'"c"', {"trace": 1, "assemble": 2, "compile": 1, "bundle": 1}),
    ("generator/csrc/ff_load.c", b"loaded on", b"placed on", {"render": 1, "compile": 2, "bundle": 1}),
    ("generator/bundle.py", b"Collects", b"Gathers ", {"bundle": 1}),
    ("LICENSE", b"License", b"license", {"bundle": 1}),
]
CHANGED_PRODUCTS = [
    (f"{BUNDLE}/cubins/sm_90/fake_d64.cubin", b"ELF", b"elf", {"bundle": 1}),
    (f"{BUNDLE}/lib/x86_64/libfmhaforge.so.0", b"ELF", b"elf", {"bundle": 1}),
    (f"{BUNDLE}.tar.xz", b"7zXZ", b"7zxz", {"bundle": 1}),
    ("build/lib/x86_64/libfmhaforge.so", b"ELF", b"elf", {"compile": 1}),
    ("build/lib/x86_64/code.o", b"ELF", b"elf", {"compile": 1}),
    ("build/cabi/src/ff_load.c", b"SPDX", b"spdx", {"render": 1}),
    ("build/cabi/include/fmhaforge.h", b"SPDX", b"spdx", {"render": 1}),
]


def tasks_of(run):
    """Action -> how many tasks of it were done, but for those that were not."""
    counts = {action: len([line for line in run.out.splitlines() if line.startswith("[") and line.split("]", 1)[1].split()[0] == action])
              for action in ("trace", "assemble", "render", "compile", "bundle")}
    return {action: count for action, count in counts.items() if count}


@pytest.mark.parametrize("path, old, new, tasks", CHANGED_INPUTS + CHANGED_PRODUCTS)
def test_content_decides_in_every_file_of_a_bundle(built, tmp_path, path, old, new, tasks):
    tree = copy(built, tmp_path)
    tree.good(*ARGUMENTS)
    time.sleep(0.2)  # a file that changed just before a build is not vouched for
    tree.good(*ARGUMENTS)
    good = contents(tree.folder / "dist")
    assert has_stamp(tree)
    rewritten(tree.folder / path, old, new)
    assert tasks_of(tree.good(*ARGUMENTS)) == tasks | ({"render": 1} if path == "variants.yaml" or "kernels" in path else {})
    if (path, old, new, tasks) in CHANGED_PRODUCTS:
        assert contents(tree.folder / "dist") == good
    assert tasks_of(tree.good(*ARGUMENTS)) == {}


def test_a_touched_product_is_made_again_even_after_a_build_of_other_targets(built, tmp_path):
    tree = copy(built, tmp_path)
    tree.good(*ARGUMENTS)
    good = contents(tree.folder / "dist")
    rewritten(tree.folder / "build/lib/x86_64/libfmhaforge.so", b"ELF", b"elf")
    assert tasks_of(tree.good("cubins", *ARGUMENTS)) == {}
    assert tasks_of(tree.good(*ARGUMENTS)) == {"compile": 1}
    assert contents(tree.folder / "dist") == good
    assert tasks_of(tree.good(*ARGUMENTS)) == {}


def test_the_code_is_compiled_apart_from_the_cubins(built, tmp_path):
    """A kernel that changes leaves the code alone; a source of the code leaves the kernels alone."""
    tree = copy(built, tmp_path)
    path = "generator/kernels/fake_b.py"
    tree.write(path, (tree.folder / path).read_text().replace('"b"', '"changed"'))
    run = tree.good(*ARGUMENTS)
    assert (run.tasks("trace"), run.tasks("compile")) == (["fake_d64_sw sm_80"], ["libraries x86_64"])
    before = (tree.folder / BUNDLE / "lib/x86_64/libfmhaforge.so.0").read_bytes()
    path = "generator/csrc/ff_load.c"
    tree.write(path, (tree.folder / path).read_text().replace("loaded on device", "lies on device"))
    run = tree.good(*ARGUMENTS)
    assert (run.tasks("assemble"), run.tasks("compile")) == ([], ["code x86_64", "libraries x86_64"])
    after = (tree.folder / BUNDLE / "lib/x86_64/libfmhaforge.so.0").read_bytes()
    assert b"lies on device" in after and b"lies on device" not in before
    (tree.folder / "cold").mkdir()
    (tree.folder / "cold/zig").symlink_to(tree.folder / "build/zig")
    tree.good("-j1", "build_dir=cold", "dist=elsewhere", *ARGUMENTS)
    assert contents(tree.folder / "elsewhere") == contents(tree.folder / "dist")


def test_a_removed_variant_is_gone_everywhere(built, tmp_path):
    tree = copy(built, tmp_path)
    text = (tree.folder / "variants.yaml").read_text()
    tree.write("variants.yaml", text[: text.index("  - name: fake_d64_sw")])
    tree.good(*ARGUMENTS)
    for top in ("build/ptx", "build/cubins", "build/state", "build/cabi", "dist"):
        assert [str(path) for path in (tree.folder / top).rglob("*fake_d64_sw*")] == []
    for path in (tree.folder / BUNDLE / "lib").rglob("*"):
        assert path.is_dir() or b"fake_d64_sw" not in path.read_bytes(), path
    with tarfile.open(tree.folder / f"{BUNDLE}.tar.xz") as tar:
        assert not [name for name in tar.getnames() if "fake_d64_sw" in name]


def test_kernels_that_the_ledger_does_not_know_are_not_shipped(built, tmp_path):
    tree = copy(built, tmp_path)
    before = contents(tree.folder / BUNDLE)
    run = tree.build()
    assert run.status == 2 and "tests/device/ledger.json does not know 3 of the kernels:\n  fake_d64 (PTX " in run.out, run.text
    assert max(map(len, run.out.splitlines())) <= 120, run.text
    assert contents(tree.folder / BUNDLE) == before
    rows = json.loads((tree.folder / BUNDLE / "metadata.json").read_text())["rows"]
    entries = {row["ptx_sha256"]: {"runs": [{"route": route, "sm": 90, "cases": 300} for route in ("cubin", "driver-ptx")]} for row in rows}
    tree.write("tests/device/ledger.json", json.dumps({"schema_version": 1, "entries": entries}))
    run = tree.good()
    assert json.loads((tree.folder / BUNDLE / "metadata.json").read_text())["validated"] is True and "NOT VALIDATED" not in run.out
    entries[rows[0]["ptx_sha256"]]["runs"].pop()
    tree.write("tests/device/ledger.json", json.dumps({"schema_version": 1, "entries": entries}))
    run = tree.build()
    assert run.status == 2 and "does not know 1 of the kernels:\n  fake_d64 (PTX " in run.out and "): no run by driver-ptx\n" in run.out, run.text
    assert "\n  python -m pytest tests/device --variant fake_d64 \\\n    --bundle DIR --ledger-out tests/device/ledger.json" in run.out


def test_clean_removes_our_products_only(built, tmp_path):
    tree = copy(built, tmp_path)
    tree.write("build/mine", "")
    tree.write("dist/mine", "")
    tree.good("-c", *ARGUMENTS)
    left = [path for path in tree.listing() if path.startswith(("build/", "dist/"))]
    assert left == ["build/lock", "build/mine", "build/sconsign.dblite", "build/zig", "dist/mine"]


def test_a_folder_that_is_no_bundle_is_not_replaced(built, tmp_path):
    tree = copy(built, tmp_path)
    tree.write("other/fmhaforge-0.1.0/precious", "mine")
    run = tree.build(*ARGUMENTS, "dist=other")
    assert run.status == 2 and "exists and is no bundle" in run.out, run.text
    assert (tree.folder / "other/fmhaforge-0.1.0/precious").read_text() == "mine"
    assert [path.name for path in (tree.folder / "other").iterdir()] == ["fmhaforge-0.1.0"]


def test_a_read_only_tree(built, tmp_path):
    """As root no mode keeps anybody from writing, so the tree is mounted read only."""
    tree = copy(built, tmp_path)
    script = 'mount --bind "$1" "$1" && mount -o remount,bind,ro "$1" && cd "$1" && shift && exec "$@"'
    out = tmp_path / "out"
    command = ["unshare", "-rm", "sh", "-c", script, "sh", str(tree.folder), *tree.command("cubins", f"build_dir={out / 'b'}", f"dist={out / 'd'}")]
    done = subprocess.run(command, cwd=tmp_path, env=tree.environment(), capture_output=True, text=True, check=False)
    if "unshare" in done.stderr or "mount:" in done.stderr:
        pytest.skip(f"this machine mounts no file system of its own: {done.stderr.strip()}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(list((out / "b/cubins").rglob("*.cubin"))) == 6


def test_no_network_is_needed(tree):
    done = subprocess.run(["unshare", "-rn", *tree.command("cubins")], cwd=tree.folder, env=tree.environment(), capture_output=True, text=True, check=False)
    if "unshare" in done.stderr:
        pytest.skip(f"this machine gives no network name space: {done.stderr.strip()}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(list((tree.folder / "build/cubins").rglob("*.cubin"))) == 6


def test_the_bill_of_materials_names_the_tools(built):
    document = json.loads((built.folder / BUNDLE / "sbom.cdx.json").read_bytes())
    assert (document["bomFormat"], document["specVersion"]) == ("CycloneDX", "1.6")
    names = {component["name"]: component for component in document["components"]}
    assert {"nvidia-cutlass-dsl", "nvidia-cuda-nvcc-cu12", "nvidia-cuda-nvcc", "ziglang"} <= set(names)
    assert all(component["purl"] == f"pkg:pypi/{name}@{component['version']}" and component["licenses"] for name, component in names.items())
    assert document["dependencies"][0]["dependsOn"] == [component["bom-ref"] for component in document["components"]]
    assert "timestamp" not in document["metadata"] and "serialNumber" not in document
