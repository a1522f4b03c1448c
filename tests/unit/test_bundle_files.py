# SPDX-License-Identifier: Apache-2.0
"""Opening, verifying, finding and comparing bundles."""

import json
import os
import shutil
import struct

import fmhaforge
import pytest
from fake_bundle import elf_header, make_bundle, rewrite, rewrite_metadata
from fmhaforge import BundleNotFoundError, IntegrityError, SchemaError
from fmhaforge.diff import diff
from fmhaforge.elf import cubin_header
from fmhaforge.locate import find_bundle
from fmhaforge.verify import verify

SMS = (80, 86, 87, 89, 90, 100, 101, 110, 120, 121)
CUBIN = "cubins/sm_80/fmha_v2_d128.cubin"


@pytest.fixture(scope="module")
def small(tmp_path_factory, manifest):
    return make_bundle(tmp_path_factory.mktemp("small") / "b", manifest, sms=[80, 110], variants=["fmha_v2_d128", "fmha_v2_d64_small"])


@pytest.fixture
def copy(small, tmp_path):
    """A copy of a small bundle that a test may damage."""
    return shutil.copytree(small, tmp_path / "b")


# -- opening ----------------------------------------------------------------------------------------------------------------


def test_open(small):
    bundle = fmhaforge.open(str(small))
    assert (bundle.metadata.name, bundle.metadata.version, len(bundle.metadata.rows)) == ("fmhaforge", "0.1.0", 4)
    assert "4 rows" in repr(bundle)


def test_nothing_is_written_and_no_driver_is_imported(small, tmp_path):
    script = ("import sys, fmhaforge; b = fmhaforge.open(sys.argv[1]); assert b.can_implement(8, 8, 128, 80, 'float16', 'causal'); "
              "assert not [m for m in sys.modules if m.split('.')[0] in ('cuda', 'numpy', 'cutlass')]")
    import subprocess
    import sys
    runtime = os.path.dirname(os.path.dirname(fmhaforge.__file__))
    before = sorted(path.name for path in small.rglob("*"))
    subprocess.run([sys.executable, "-S", "-c", script, str(small)], check=True, env={"PYTHONPATH": runtime}, cwd=tmp_path)
    assert sorted(path.name for path in small.rglob("*")) == before


@pytest.mark.parametrize("name, word", [("nothing", "no folder"), ("metadata.json", "unpack"), ("cubins", "no metadata.json")])
def test_no_bundle_there(copy, name, word):
    with pytest.raises(BundleNotFoundError, match=word):
        fmhaforge.open(copy / name)


def test_metadata_that_was_changed(copy):
    with (copy / "metadata.json").open("ab") as file:
        file.write(b" ")
    with pytest.raises(IntegrityError, match="metadata.json: has SHA-256"):
        fmhaforge.open(copy)


@pytest.mark.parametrize("text, word", [("", "does not list"), ("abc  metadata.json\n", "line 1"), ("0" * 64 + " metadata.json\n", "line 1"),
                                        (("0" * 64 + "  metadata.json\n") * 2, "line 2 lists"), (None, "missing")])
def test_checksums_that_are_damaged(copy, text, word):
    (copy / "SHA256SUMS").unlink()
    if text is not None:
        (copy / "SHA256SUMS").write_text(text)
    with pytest.raises(IntegrityError, match=f"SHA256SUMS.*{word}"):
        fmhaforge.open(copy)


def test_a_named_pipe_is_no_file(copy):
    (copy / "metadata.json").unlink()
    os.mkfifo(copy / "metadata.json")
    with pytest.raises(BundleNotFoundError):
        fmhaforge.open(copy)


@pytest.mark.parametrize("name", ["SHA256SUMS", CUBIN])
def test_a_folder_is_no_file(copy, name):
    (copy / name).unlink()
    (copy / name).mkdir()
    with pytest.raises(IntegrityError, match=f"{name}: is a folder; fetch the bundle again"):
        fmhaforge.open(copy).read(name, "0" * 64)


def test_verify_finds_links_that_nobody_lists(copy, tmp_path):
    (copy / "cubins/more").symlink_to(tmp_path)
    (copy / "dangling").symlink_to("nowhere")
    assert findings(copy) == {(name, "is not listed in SHA256SUMS") for name in ("cubins/more", "dangling")}


@pytest.mark.parametrize("name", ["SHA256SUMS", CUBIN])
def test_a_named_pipe_is_not_waited_for(copy, name):
    (copy / name).unlink()
    os.mkfifo(copy / name)
    with pytest.raises(IntegrityError, match=f"{name}: is no regular file"):
        fmhaforge.open(copy).read(name, "0" * 64)
    if name == CUBIN:
        assert (CUBIN, "is no regular file; fetch the bundle again") in findings(copy)


def put(*path):
    """A change that sets the value at `path` (all but the last item) to the last item."""
    def change(document):
        *keys, last, value = path
        for key in keys:
            document = document[key]
        document[last] = value
    return change


def drop(*path):
    def change(document):
        for key in path[:-1]:
            document = document[key]
        del document[path[-1]]
    return change


def map_of(**change):
    """A parameter that is a tensor map of two axes."""
    return {"name": "x", "type": "tensormap", "map": {"base": "q", "dtype": "float16", "dims": ["64", "seqlen_q"], "strides_bytes": ["128"],
                                                      "box": [64, 64], "swizzle": 128, "l2_promotion": 128, **change}}


@pytest.mark.parametrize("change, words", [
    (put("schema_version", 2), "schema version 2.*reads 1; upgrade"), (put("schema_version", 0), "rebuild"),
    (put("schema_version", "1"), "schema_version must be an integer"), (drop("rows"), "rows is missing"),
    (put("rows", {}), "rows must be a list"), (put("rows", 0, 3), r"rows\[0\] must be an object"),
    (put("rows", 1, "sm", "80"), r"rows\[1\].sm must be an integer"), (drop("rows", 2, "plan"), r"rows\[2\].plan is missing"),
    (put("rows", 0, "plan", "grid", ["1", "1"]), r"rows\[0\].plan.grid must have 3 items"),
    (put("rows", 0, "plan", "grid", ["1", "1 +", "1"]), r"rows\[0\].plan.grid cannot be read"),
    (put("rows", 0, "plan", "params", 0, "type", "f64"), r"params\[0\].type must be one of"),
    (put("rows", 0, "plan", "empty_if_zero", ["nobody"]), "names 'nobody'"), (put("rows", 0, "plan", "grid", ["1", "x", "1"]), "names 'x'"),
    (put("rows", 0, "plan", "counts", [{"things": "rows", "value": "x", "most": 1}]), "names 'x'"),
    (put("rows", 0, "plan", "counts", [{"things": "rows", "value": "batch", "most": 0}]), r"plan.counts\[0\].most must be at least 1"),
    (put("rows", 0, "plan", "counts", [{"things": "rows", "value": "1 +", "most": 1}]), r"plan.counts\[0\].value cannot be read"),
    (put("rows", 0, "plan", "params", 1, "value", "kv"), r"rows\[0\].plan names 'kv', which is no argument of llm"),
    (put("rows", 1, "smem_bytes", 5), r"rows\[1\].plan.smem_bytes is \d+, the row says 5"),
    (put("rows", 1, "threads", 5), r"rows\[1\].plan.block has \d+ threads, the row says 5"),
    (put("rows", 0, "operation", "conv"), "'conv'.*operations"),
    (put("rows", 0, "family", "volta"), "'volta'.*families"), (put("rows", 0, "checked", 1), "checked must be true or false"),
    (put("rows", 0, "select", {"seqlen_q_at_most": 512, "only_if": "luck"}), r"rows\[0\].select.only_if is 'luck', which is no flag of llm"),
    (put("operations", "llm", "seqlen_q_argument", "length"), "llm.seqlen_q_argument is 'length', which is no argument of it"),
    (put("operations", "llm", "checks", 0, "left", "q_heads"), "llm.checks heads_divisible names 'q_heads', which is no argument of it"),
    (put("operations", "llm", "arguments", 0, "type", "i16"), "llm.arguments q has type 'i16'; there are ptr, i64, i32, f32"),
    (put("operations", "llm", "arguments", 0, "dtype", "float4"), "llm.arguments q has element type 'float4'"),
    (put("rows", 0, "plan", "empty_if_zero", ["q"]), r"plan uses 'q' as i32 or i64, but it is ptr"),
    (put("rows", 0, "plan", "grid", ["1", "scale_log2", "1"]), r"plan uses 'scale_log2' as i32 or i64, but it is f32"),
    (put("rows", 0, "plan", "params", 0, {"name": "x", "type": "f32", "value": "q"}), r"plan uses 'q' as f32, but it is ptr"),
    (put("rows", 0, "plan", "params", 0, {"name": "x", "type": "ptr", "value": "batch"}), r"plan uses 'batch' as ptr, but it is i32"),
    (put("rows", 0, "plan", "params", 0, {"name": "x", "type": "i32", "value": "2147483648"}), r"params\[0\].value is 2147483648, which is not in -2147483648 .. "),
    (put("rows", 0, "plan", "params", 0, {"name": "x", "type": "i32", "value": "ceil_div(1, 0)"}), r"params\[0\].value cannot be computed"),
    (put("rows", 0, "plan", "params", 0, map_of(box=[64, 257])), r"params\[0\].map.box is \[64, 257\]; extents are 1 to 256"),
    (put("rows", 0, "plan", "params", 0, map_of(box=[64, 0])), r"map.box is \[64, 0\]"),
    (put("rows", 0, "plan", "params", 0, map_of(dims=["64", "0"])), r"map.dims is 0, which is not in 1 .. 4294967295"),
    (put("rows", 0, "plan", "params", 0, map_of(strides_bytes=["1099511627776"])), r"map.strides_bytes is 1099511627776, which is not in"),
    (put("rows", 0, "plan", "params", 0, map_of(base="batch")), r"uses 'batch' as ptr, but it is i32"),
    (put("rows", 0, "plan", "grid", ["0", "1", "1"]), r"plan.grid is 0, which is not in 1 .. 2147483647"),
    (put("rows", 0, "plan", "grid", ["1", "65536", "1"]), r"plan.grid is 65536, which is not in 1 .. 65535"),
    (put("rows", 0, "plan", "cluster", [1099511627776, 1, 1]), r"plan.cluster is \[1099511627776, 1, 1\]; there are 1 to 16 blocks"),
    (put("rows", 0, "plan", "cluster", [-1, -1, 1]), r"plan.cluster is \[-1, -1, 1\]"),
    (lambda document: (put("rows", 0, "plan", "block", [-32, -4, 1])(document), put("rows", 0, "threads", 128)(document)), r"plan.block is \[-32, -4, 1\]"),
    (lambda document: (put("rows", 0, "plan", "block", [2048, 1, 1])(document), put("rows", 0, "threads", 2048)(document)), "1 to 1024 threads"),
    (lambda document: (put("rows", 0, "plan", "smem_bytes", 1 << 40)(document), put("rows", 0, "smem_bytes", 1 << 40)(document)), "which is no size"),
    (put("rows", 0, "symbol", "\u00fc"), r"rows\[0\].symbol must be printable ASCII"),
    (put("rows", 0, "cubin", "a\0b"), r"rows\[0\].cubin must be printable ASCII"), (put("rows", 0, "ptx", "/etc/passwd"), "ptx is /etc/passwd, which leads out"),
    (put("rows", 0, "cubin", "cubins/../../x"), "which leads out of the bundle"),
    (put("rows", 0, "static_smem_bytes", -1), r"rows\[0\].static_smem_bytes must be at least 0, not -1"),
    (put("targets", 0, "smem_limit", -1), r"targets\[0\].smem_limit must be at least 0, not -1"),
    (put("operations", "llm", "arguments", 0, "alignment", 1), "llm.arguments q is aligned to 1 bytes, but its elements are float16"),
    (put("operations", "llm", "checks", 0, "left", "scale_log2"), "llm.checks heads_divisible names 'scale_log2', which is no integer"),
    (put("operations", "llm", "arguments", 6, "multiple_of", 0), r"arguments\[6\].multiple_of must be at least 1, not 0"),
    (put("operations", "llm", "arguments", 6, "alignment", 0), r"arguments\[6\].alignment must be at least 1, not 0"),
    (put("arch_table", {"80": ["x"]}), r"arch_table.80\[0\]"), (put("arch_table", {"eighty": [80]}), "arch_table has a key"),
    (put("arch_table", {"70": [80]}), "SM 70.*targets"), (put("operations", "llm", "arguments", 0, "shape", "batch"), "shape must look like"),
    (put("operations", "llm", "checks", 0, "kind", "odd"), "kind.*unknown kind"), (put("families", "ampere", {}), "families.ampere.exact is missing")])
def test_metadata_that_cannot_be_read(copy, change, words):
    rewrite_metadata(copy, change)
    with pytest.raises(SchemaError, match=words) as error:
        fmhaforge.open(copy)
    assert str(error.value).startswith(str(copy / "metadata.json"))


def test_a_row_twice(copy):
    rewrite_metadata(copy, lambda document: document["rows"].append(document["rows"][0]))
    with pytest.raises(SchemaError, match="repeats fmha_v2_d64_small for SM 80|repeats fmha_v2_d128 for SM 80"):
        fmhaforge.open(copy)


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"\xff\xfe", b"null", b"[" * 100000, b"[" + b"9" * 5000 + b"]"])
def test_metadata_that_is_no_json_object(copy, data):
    rewrite(copy, "metadata.json", lambda _: data)
    with pytest.raises(SchemaError):
        fmhaforge.open(copy)


def test_fields_of_a_later_build_are_left_alone(copy):
    rewrite_metadata(copy, put("rows", 0, "new_field", [1]))
    assert fmhaforge.open(copy).metadata.rows[0].raw["new_field"] == [1]


# -- verifying --------------------------------------------------------------------------------------------------------------


def findings(path):
    return {(finding.file, finding.reason) for finding in verify(fmhaforge.open(path)).findings}


def test_verify_a_good_bundle(small):
    result = verify(fmhaforge.open(small))
    assert result and result.rows == 4 and result.files == len([path for path in small.rglob("*") if path.is_file()]) - 1


def test_verify_finds_every_kind_of_damage(copy):
    def only(word):
        found = findings(copy)
        assert len(found) == 1 and all(word in reason for _, reason in found), found
        return next(iter(found))[0]
    data = (copy / CUBIN).read_bytes()
    (copy / CUBIN).write_bytes(data[:-1] + b"\0")
    found = findings(copy)
    assert {file for file, _ in found} == {CUBIN} and len(found) == 2
    (copy / CUBIN).unlink()
    assert {file for file, _ in findings(copy)} == {CUBIN}
    (copy / CUBIN).write_bytes(data)
    (copy / "extra.txt").write_text("?")
    assert only("is not listed") == "extra.txt"


@pytest.mark.parametrize("change, word", [
    (lambda data: elf_header(86) + data[64:], "assembled for SM 86"), (lambda data: b"MZ" + data[2:], "is no cubin"),
    (lambda data: data[:18] + struct.pack("<H", 62) + data[20:], "machine 62"), (lambda data: data + b"\0", "bytes, the metadata says"),
    (lambda data: data.replace(b"fmha_v2_d128_0", b"fmha_v2_d129_0"), "no symbol fmha_v2_d128_0")])
def test_verify_cubins_against_the_metadata(copy, change, word):
    rewrite(copy, CUBIN, change)  # with the right digest in SHA256SUMS
    found = findings(copy)
    assert {file for file, _ in found} == {CUBIN} and any(word in reason for _, reason in found), found


def test_verify_ptx_and_shared_memory(copy):
    ptx = fmhaforge.open(copy).metadata.rows[0].ptx
    rewrite_metadata(copy, lambda document: [row.update(ptx_target="sm_75") for row in document["rows"] if row["ptx"] == ptx])
    assert any(file == ptx and ".target sm_75" in reason for file, reason in findings(copy))
    rewrite_metadata(copy, lambda document: [row.update(ptx_target="sm_8") for row in document["rows"] if row["ptx"] == ptx])
    assert any(file == ptx and ".target sm_8'" in reason for file, reason in findings(copy)), "sm_80 is another target than sm_8"
    rewrite_metadata(copy, put("rows", 0, "static_smem_bytes", 1 << 20))
    assert any("bytes of shared memory, its SM has" in reason for _, reason in findings(copy))


def test_verify_paths_that_lead_out(copy):
    with (copy / "SHA256SUMS").open("a") as sums:
        sums.write("0" * 64 + "  ../outside\n" + "0" * 64 + "  /etc/hostname\n")
    assert {reason for _, reason in findings(copy)} == {"stands in SHA256SUMS, but leads out of the bundle"}


@pytest.mark.parametrize("sm", SMS)
def test_sm_of_a_cubin(sm):
    assert cubin_header(elf_header(sm)) == (sm, 7 if sm <= 90 else 8)


@pytest.mark.parametrize("data", [b"", b"\x7fELF", bytes(64), b"\x7fELF\x01\x01" + bytes(60)])
def test_not_a_cubin(data):
    with pytest.raises(ValueError):
        cubin_header(data)


# -- finding ----------------------------------------------------------------------------------------------------------------


def test_find_bundle(tmp_path, small):
    with pytest.raises(BundleNotFoundError, match="make bundle.*FMHAFORGE_BUNDLE"):
        find_bundle(None, {}, tmp_path)
    for version in ("0.9.0", "0.10.0", "0.2.0"):
        folder = tmp_path / "dist" / f"f-{version}"
        folder.mkdir(parents=True)
        (folder / "metadata.json").write_text(json.dumps({"version": version}))
    unfinished = tmp_path / "dist" / ".f-0.99.0.part"
    unfinished.mkdir()
    (unfinished / "metadata.json").write_text(json.dumps({"version": "0.99.0"}))
    assert find_bundle(None, {}, tmp_path).name == "f-0.10.0"
    assert find_bundle(None, {"FMHAFORGE_BUNDLE": str(small)}, tmp_path) == small
    assert str(find_bundle("stated", {"FMHAFORGE_BUNDLE": str(small)}, tmp_path)) == "stated"
    twin = tmp_path / "dist" / "a-0.10.0"
    twin.mkdir()
    (twin / "metadata.json").write_text(json.dumps({"version": "0.10.0"}))
    os.utime(twin / "metadata.json", (1, 1))
    assert find_bundle(None, {}, tmp_path).name == "f-0.10.0"
    os.utime(twin / "metadata.json", (1 << 33, 1 << 33))
    assert find_bundle(None, {}, tmp_path).name == "a-0.10.0"


# -- comparing --------------------------------------------------------------------------------------------------------------


def differences(old, new):
    return {(d.kind, d.place): (d.old, d.new) for d in diff(fmhaforge.open(old), fmhaforge.open(new))}


def test_equal_bundles(small, copy):
    assert differences(small, copy) == {}


def test_a_difference_that_no_row_shows(small, copy):
    rewrite_metadata(copy, lambda document: document["variants"][0].update(sms=[80]))
    difference, = diff(fmhaforge.open(small), fmhaforge.open(copy))
    assert (difference.kind, difference.place) == ("changed", "file metadata.json") and difference.old != difference.new


def test_differences(small, copy):
    old_digest = fmhaforge.open(small).checksums["ptx/sm_80/" + os.listdir(copy / "ptx/sm_80")[0]]
    rewrite_metadata(copy, put("rows", 0, "plan", "params", 0, "value", "k"))
    rewrite_metadata(copy, put("provenance", "commit", "1" * 40))
    rewrite_metadata(copy, lambda document: document["rows"].pop(1))
    row = fmhaforge.open(small).metadata.rows
    found = differences(small, copy)
    assert found == {("changed", f"{row[0].variant} sm_80.plan.params[0].value"): ("q", "k"),
                     ("removed", f"{row[1].variant} sm_110"): (row[1].raw, None),
                     ("changed", "provenance.commit"): ("0" * 40, "1" * 40)}
    assert len(old_digest) == 64
    (copy / "LICENSE").write_text("text")
    with (copy / "SHA256SUMS").open("a") as sums:
        sums.write("0" * 64 + "  LICENSE\n")
    assert ("added", "file LICENSE") in differences(small, copy)
    assert ("removed", "file LICENSE") in differences(copy, small)
