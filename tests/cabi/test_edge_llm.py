# SPDX-License-Identifier: Apache-2.0
"""The Edge-LLM artifacts: a consumer written from the contract compiles, links and launches; layout, metadata and tarballs are right."""

import dataclasses
import gzip
import hashlib
import importlib.util
import io
import json
import math
import re
import struct
import tarfile
from pathlib import Path

import pytest

import edge_calls
from arguments import expected_launch
from c_build import HERE, HOST
from generator import cabi, edge_llm
from generator.cabi.compile import WARNINGS
from generator.edge_llm import make
from generator.edge_llm.abi import WRAPPERS
from generator.edge_llm.sources import EdgeError
from test_c_headers import GNU, STANDARDS, TOGETHER, check_with_gcc, write_units
from test_c_libraries import Elf, archive_members

SCALE_LOG2 = struct.unpack("f", struct.pack("f", 0.25 * math.log2(math.e)))[0]


@pytest.fixture(scope="session")
def combinations(manifest):
    return edge_llm.combinations((target.sm, target.platform) for target in manifest.targets)


@pytest.fixture(scope="session")
def builder(built, zig, tmp_path_factory):
    return edge_llm.Builder(built.document, built.bundle, tmp_path_factory.mktemp("edge") / "work", zig)


def pick(combinations, tag, host="x86_64", major=12):
    found, = (c for c in combinations if (c.tag, c.host, c.cuda_major) == (tag, host, major))
    return found


def unpack(artifact, folder):
    for path, content in artifact.files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
    return folder


@pytest.fixture(scope="session")
def consumer_object(builder, combinations, cxx, tmp_path_factory):
    """The consumer compiled against the headers, which are the same for every SM."""
    folder = unpack(builder.build(pick(combinations, "sm_90")), tmp_path_factory.mktemp("consumer"))
    document = json.loads((folder / "metadata.json").read_text())
    rows = {row["variant"]: row["abi_class"] for row in builder._document["rows"]}
    (folder / "variants.inc").write_text("".join(f"VARIANT({name}, {rows[name]})\n" for name in document["variants"]))
    cxx(("-std=c++17", "-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Wconversion", "-Werror", "-fPIC", "-fvisibility=hidden", "-c", "-I.", "-isysteminclude",
         str(HERE / "edge_consumer.cc"), "-o", "consumer.o"), folder)
    return folder / "consumer.o"


@pytest.fixture(scope="session")
def consumer(builder, combinations, consumer_object, cxx, tmp_path_factory):
    """consumer(tag): the consumer linked with the x86-64 artifact of a tag, as a plugin is."""
    linked = {}

    def link(tag):
        if tag not in linked:
            folder = unpack(builder.build(pick(combinations, tag)), tmp_path_factory.mktemp(tag))
            cxx(("-shared", str(consumer_object), "libcutedsl_x86_64.a", "-Wl,--no-undefined", "-Wl,--exclude-libs,ALL", "-ldl", "-lpthread",
                 "-o", "plugin.so"), folder)
            linked[tag] = folder / "plugin.so"
        return linked[tag]
    return link


@pytest.mark.parametrize("tag, device, row_sm", [("sm_90", 90, 90), ("sm_80", 80, 80), ("sm_80", 86, 80), ("sm_100_v2", 100, 100), ("sm_120", 121, 120)])
def test_every_wrapper_launches_what_its_descriptors_say(stub_process, built, consumer, tag, device, row_sm):
    names, found = stub_process(edge_calls.call_all, consumer(tag), built.metadata, device, row_sm, SCALE_LOG2, 11)
    assert len(names) == len(found) == 34
    for index, values, stream, launch in found:
        row = built.metadata.rows[index]
        assert dataclasses.asdict(launch) == expected_launch(row, values, 0, 100, stream), row.label


X86_64 = ("sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_100_v2", "sm_120")


@pytest.mark.parametrize("tag", X86_64)
def test_consumer_links_for_every_sm(consumer, tag):
    elf = Elf(consumer(tag).read_bytes())
    exported = {name for name, _, shndx in elf.symbols(".dynsym", ".dynstr") if shndx != 0}
    assert {name for name in exported if not name.startswith("_ZT")} <= {
        "entry_count", "entry_name", "entry_load", "entry_unload", "entry_call", "first_error", "reason", "_init", "_fini"}


AARCH64 = {"sm_80": 12, "sm_86": 12, "sm_87": 12, "sm_89": 12, "sm_90": 13, "sm_100": 13, "sm_101": 12, "sm_110": 13, "sm_120": 13, "sm_121": 13,
           "sm_110_sm_120": 13}
"""A tag, and a CUDA major, for every set of SMs that aarch64 has artifacts of; the objects of its other tags and majors are the same."""


@pytest.fixture(scope="session")
def aarch64_consumer_object(builder, combinations, consumer_object, zig, tmp_path_factory):
    """The same consumer for aarch64. It needs nothing of a C++ library but headers."""
    folder = unpack(builder.build(pick(combinations, "sm_110", "aarch64", 13)), tmp_path_factory.mktemp("aarch64 consumer"))
    (folder / "variants.inc").write_text((consumer_object.parent / "variants.inc").read_text())
    zig.run(("c++", "-target", cabi.HOSTS["aarch64"].triple, "-std=c++17", *WARNINGS, "-fno-exceptions", "-fno-sanitize=all", "-fPIC", "-fvisibility=hidden", "-c", "-I.",
             "-isysteminclude", str(HERE / "edge_consumer.cc"), "-o", "consumer.o"), folder)
    return folder / "consumer.o"


@pytest.mark.parametrize("tag", AARCH64)
def test_consumer_links_for_every_sm_of_aarch64(builder, combinations, aarch64_consumer_object, zig, tmp_path, tag):
    folder = unpack(builder.build(pick(combinations, tag, "aarch64", AARCH64[tag])), tmp_path)
    zig.compile(cabi.HOSTS["aarch64"], ("-shared", str(aarch64_consumer_object), "libcutedsl_aarch64.a", "-Wl,-z,defs", "-ldl", "-lpthread", "-o", "use.so"),
                folder)
    elf = Elf((folder / "use.so").read_bytes())
    assert elf.machine == 0xB7 and "entry_call" in {name for name, _, shndx in elf.symbols(".dynsym", ".dynstr") if shndx != 0}


def test_the_consumer_is_linked_for_every_sm_of_every_host(combinations):
    def sms(host, tags):
        return {c.sms for c in combinations if c.host == host and (tags is None or c.tag in tags)}
    assert sms("aarch64", AARCH64) == sms("aarch64", None) and sms("x86_64", X86_64) == sms("x86_64", None)


def test_any_window_is_taken(stub_process, built, consumer):
    """As Edge-LLM's class passes them on: clamped to what the kernels take, which sees the same keys."""
    clamped = {-(1 << 31): -1, -5: -1, -1: -1, 0: 0, 77: 77, 1 << 30: 1 << 30, (1 << 30) + 1: 1 << 30, (1 << 31) - 1: 1 << 30}
    for sm in (80, 90):
        found = stub_process(edge_calls.windows, consumer(f"sm_{sm}"), built.metadata, sm, tuple(clamped))
        assert len(found) == len(clamped) * 28
        for index, values, window, result, launch in found:
            row = built.metadata.rows[index]
            assert result == (0, ""), (row.label, window, result)
            values = {**values, "window_size_left": clamped[window], "scale_log2": SCALE_LOG2}
            assert dataclasses.asdict(launch) == expected_launch(row, values, 0, 100, 0), (row.label, window)


def test_a_thread_without_context_launches_on_the_streams_device(stub_process, built, consumer):
    result = stub_process(edge_calls.without_context, consumer("sm_90"), built.metadata, "fmha_v2_d64", (86, 90))
    assert result == ((0, ""), [(1, "fmha_v2_d64_0@90")])


@pytest.mark.parametrize("variant, changes, words", [
    ("fmha_v2_d64", [(0, 1, 0, (1 << 31) - 1), (1, 1, 0, (1 << 31) - 1), (2, 1, 0, (1 << 31) - 1), (3, 1, 0, (1 << 31) - 1), (4, 1, 0, -(1 << 31))],
     "cum_seqlen_k must have one more entry than there are sequences"),
    ("fmha_v2_vit_d64", [(4, 1, 0, -(1 << 31))], "batch: -1 is below 0"),
    ("fmha_v2_vit_d64", [(4, 1, 0, 0)], "batch: -1 is below 0"),
    ("fmha_v2_d64", [(3, 1, 1, 9)], "o_tensor and q_tensor differ in extent 1"),
    ("fmha_v2_d64", [(2, 1, 2, 99)], "v_tensor and k_tensor differ in extent 2"),
    ("fmha_v2_d64", [(4, 1, 0, 1)], "cum_seqlen_k must have one more entry than there are sequences"),
    ("fmha_v2_d64", [(0, 0, 0, 0)], "q: is null; pass device memory"),
    ("fmha_v2_d64", [(0, 2, 1, 12)], "q_stride_seq: 12 is not a multiple of 8"),
    ("fmha_v2_d64_paged", [(1, 1, 2, 64)], "a page of kv_cache_pool must have 128 tokens"),
    ("fmha_v2_d64_paged", [(1, 1, 3, 128)], "kv_cache_pool has another head dimension"),
    ("fmha_v2_d64_paged", [(2, 1, 1, 1)], "a row of K pages and a row of V pages"),
    ("fmha_v2_d256_bidirectional", [(6, 2, 0, 3)], "block_begin and block_end differ in their stride"),
])
def test_wrong_descriptors_are_refused(stub_process, built, consumer, variant, changes, words):
    (code, reason), launches = stub_process(edge_calls.wrong_descriptors, consumer("sm_90"), built.metadata, 90, variant, changes)
    assert (code, launches) == (1, 0)
    assert reason.startswith(f"{variant}: ") and words in reason


def test_loading_reports_through_the_hook_and_can_be_repeated(stub_process, consumer):
    steps, loads, unloads = stub_process(edge_calls.loading, consumer("sm_90"), "fmha_v2_d128", (90, 80))
    assert steps == [("no kernel", (False, 200)), ("driver fails", (False, 200)), ("foreign device", (False, 209)),
                     ("another stream captures", (True, 0)), ("again", (True, 0)), ("unload", True), ("after unload", (True, 0))]
    assert (loads, unloads) == (3, 1)


@pytest.mark.parametrize("suffix", STANDARDS)
def test_headers_compile_alone_and_together(builder, combinations, zig, tmp_path, suffix):
    folder = unpack(builder.build(pick(combinations, "sm_90")), tmp_path / "artifact")
    headers = sorted(path.name for path in (folder / "include").iterdir())
    assert len(headers) == 36
    units = write_units(tmp_path / "units", headers, suffix)
    zig.compile(HOST, (STANDARDS[suffix], *WARNINGS, *TOGETHER[:-1], str(tmp_path / "all.so"), f"-I{folder / 'include'}", *units), tmp_path / "units")


@pytest.mark.parametrize("suffix", GNU)
def test_headers_compile_with_gcc(builder, combinations, tmp_path, suffix):
    include = unpack(builder.build(pick(combinations, "sm_90")), tmp_path / "artifact") / "include"
    check_with_gcc(tmp_path / "units", sorted(path.name for path in include.iterdir()), suffix, include)


def test_headers_compile_beside_the_cuda_headers(builder, combinations, zig, tmp_path):
    spec = importlib.util.find_spec("nvidia")
    found = [path for root in (spec.submodule_search_locations if spec else ()) for path in Path(root).glob("*/include/cuda_runtime.h")]
    found += Path("/usr/local").glob("cuda*/include/cuda_runtime.h")
    if not found:
        pytest.skip("no CUDA headers here; without them everything is tested")
    folder = unpack(builder.build(pick(combinations, "sm_90")), tmp_path)
    (tmp_path / "unit.c").write_text('#include "cutedsl_all.h"\ncudaError_t f(cudaStream_t s);\ncudaError_t f(cudaStream_t s) { (void)s; return cudaSuccess; }\n')
    zig.compile(HOST, ("-std=c11", *WARNINGS, *TOGETHER, "-Iinclude", "-isystem", str(found[0].parent), "unit.c"), folder)


def test_umbrellas(builder, combinations):
    files = builder.build(pick(combinations, "sm_90")).files
    variants = json.loads(files["metadata.json"])["variants"]
    lines = files["include/cutedsl_all.h"].decode().splitlines()
    assert lines[0] == "#pragma once" and lines[1].startswith("//")
    assert lines[2:] == [f'#include "{name}"' for name in sorted(f"{name}.h" for name in variants)]
    assert files["include/cutedsl_fmha_all.h"].decode().splitlines()[2:] == [f'#include "{name}.h"' for name in variants]


@pytest.mark.parametrize("tag, host, major, machine", [("sm_90", "x86_64", 12, 0x3E), ("sm_87", "aarch64", 13, 0xB7)])
def test_archive(builder, combinations, tag, host, major, machine):
    files = builder.build(pick(combinations, tag, host, major)).files
    members = archive_members(files[f"libcutedsl_{host}.a"])
    variants = json.loads(files["metadata.json"])["variants"]
    assert sorted(name for name, *_ in members) == sorted([*(f"{name}.o" for name in variants), "fmhaforge.o", "fmhaforge_edge_llm.o"])
    defined, needed = set(), set()
    for name, mtime, uid, gid, content in members:
        elf = Elf(content)
        assert (elf.machine, mtime, uid, gid) == (machine, "0", "0", "0"), name
        assert not [section for section in elf.sections if section.startswith((".init", ".ctors"))]
        for symbol, binding, shndx in elf.symbols(".symtab", ".strtab"):
            if symbol and binding:
                (needed if shndx == 0 else defined).add(symbol)
    assert all(name.startswith(("_mlir_", "fmhaforge_")) for name in defined)
    assert [name for name in needed - defined if name.lower().startswith(("cu", "fmhaforge", "_mlir", "_cu"))] == []
    for name in variants:
        declared = re.findall(r"^void (_mlir_\w+)\(", files[f"include/{name}.h"].decode(), re.M)
        assert len(declared) == 3 and set(declared) <= defined


def test_every_artifact_of_an_archive_holds_only_its_sms(built, builder, combinations):
    archive = builder.build(pick(combinations, "sm_80")).files["libcutedsl_x86_64.a"]
    for row in built.metadata.rows:
        assert archive.count((built.bundle / row.cubin).read_bytes()) == (1 if row.sm == 80 else 0)


def test_combinations(combinations):
    names = {combination.tarball for combination in combinations}
    assert len(names) == len(combinations) == 37
    assert {"cutedsl_x86_64_sm_80_cuda13.tar.gz", "cutedsl_x86_64_sm_100_cuda13.tar.gz", "cutedsl_x86_64_sm_120_cuda13.tar.gz",
            "cutedsl_x86_64_sm_120_cuda12.tar.gz", "cutedsl_aarch64_sm_87_cuda13.tar.gz", "cutedsl_aarch64_sm_87_cuda12.tar.gz",
            "cutedsl_aarch64_sm_101_cuda12.tar.gz", "cutedsl_aarch64_sm_110_cuda13.tar.gz", "cutedsl_aarch64_sm_121_cuda12.tar.gz",
            "cutedsl_aarch64_sm_121_cuda13.tar.gz", "cutedsl_aarch64_sm_110_sm_120_cuda13.tar.gz", "cutedsl_x86_64_sm_90_cuda13.tar.gz"} <= names
    assert not {name for name in names if "sm_101_cuda13" in name or "sm_110_cuda12" in name or "x86_64_sm_87" in name}
    for combination in combinations:
        assert re.fullmatch(r"[a-z0-9_]+", combination.tag)
    avoiding = {combination.tag for combination in combinations if combination.tag.endswith("_v2")}
    assert avoiding == {"sm_100_v2", "sm_101_v2", "sm_110_v2"}
    assert not [tag for tag in avoiding if re.fullmatch(r"sm_(100|101|110)", tag)]


KEYS = ["arch", "artifact_tag", "gpu_arch", "compile_gpu_arch", "wrapper_gpu_arch", "host_target", "cuda_version", "cuda_package_variant",
        "host_cuda_version", "cutlass_dsl_version", "cutlass_dsl_cuda_version", "cupy_package", "cupy_version", "runtime_libs_version",
        "build_date", "groups", "variants", "runtime_static_archive"]


@pytest.mark.parametrize("tag, host, major, compiled", [
    ("sm_80", "x86_64", 13, "sm_80"), ("sm_87", "aarch64", 12, "sm_87"), ("sm_120", "x86_64", 12, "sm_120a"), ("sm_100_v2", "x86_64", 13, "sm_100a")])
def test_metadata_passes_the_validator(builder, combinations, tag, host, major, compiled):
    content = builder.build(pick(combinations, tag, host, major)).files["metadata.json"]
    assert content.endswith(b"}\n")
    document = json.loads(content)
    assert list(document) == KEYS and json.dumps(document, indent=2) + "\n" == content.decode()
    assert (document["arch"], document["artifact_tag"], document["gpu_arch"]) == (host, tag, tag)
    assert document["compile_gpu_arch"] == document["wrapper_gpu_arch"] == compiled
    assert (document["cuda_package_variant"], document["cupy_package"]) == (f"cu{major}", f"cupy-cuda{major}x")
    for key in ("cuda_version", "cutlass_dsl_cuda_version", "host_cuda_version"):
        assert document[key].split(".")[0] == str(major)
    assert document["groups"] == ["fmha"] and len(document["variants"]) == 34 and document["runtime_libs_version"] == "4.6.1"
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", document["build_date"])


def test_multi_sm_artifact(builder, combinations, built):
    artifact = builder.build(pick(combinations, "sm_110_sm_120", "aarch64", 13))
    document = json.loads(artifact.files["metadata.json"])
    assert document["gpu_archs"] == ["sm_110", "sm_120"] and document["compile_gpu_arch"] == "sm_110a,sm_120a"
    assert document["dispatch_source"] in artifact.files
    archive = artifact.files["libcutedsl_aarch64.a"]
    assert {row.sm for row in built.metadata.rows if (built.bundle / row.cubin).read_bytes() in archive} == {110, 120}


def test_tarball(builder, combinations, tmp_path, monkeypatch):
    combination = pick(combinations, "sm_90")
    path = builder.write(combination, tmp_path / "one")
    assert path.name == "cutedsl_x86_64_sm_90_cuda12.tar.gz"
    content = path.read_bytes()
    sums = (tmp_path / "one" / f"{path.name}.sha256").read_text()
    assert sums == f"{hashlib.sha256(content).hexdigest()}  {path.name}\n"
    assert content[4:8] == b"\0\0\0\0"
    with tarfile.open(fileobj=io.BytesIO(gzip.decompress(content))) as tar:
        members = tar.getmembers()
    names = [member.name for member in members]
    assert {"sm_90/metadata.json", "sm_90/libcutedsl_x86_64.a", "sm_90/include/cutedsl_all.h"} <= set(names)
    assert all(name == "sm_90" or name.startswith("sm_90/") for name in names) and not [name for name in names if ".." in name]
    assert all(member.isfile() or member.isdir() for member in members)
    assert {(member.uid, member.gid, member.mtime) for member in members} == {(0, 0, 0)}
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    later = builder.write(combination, tmp_path / "two")
    assert b"2023-11-14T22:13:20+00:00" in gzip.decompress(later.read_bytes())


def test_tarballs_are_reproducible(built, builder, combinations, zig, tmp_path):
    combination = pick(combinations, "sm_90")
    again = edge_llm.Builder(built.document, built.bundle, tmp_path / "other place", zig)
    assert again.write(combination, tmp_path / "a").read_bytes() == builder.write(combination, tmp_path / "b").read_bytes()


def test_no_row_for_the_sm(built, zig, tmp_path, combinations):
    document = {**built.document, "rows": [row for row in built.document["rows"] if row["sm"] == 80]}
    with pytest.raises(EdgeError, match="no variant is built for SM 90; build those SMs first"):
        edge_llm.Builder(document, built.bundle, tmp_path, zig).build(pick(combinations, "sm_90"))


@pytest.mark.parametrize("abi_class", WRAPPERS)
def test_an_artifact_of_variants_of_one_class(built, zig, tmp_path, abi_class):
    """A bundle may be built of some variants only."""
    name = next(row["variant"] for row in built.document["rows"] if row["abi_class"] == abi_class)
    document = {**built.document, "rows": [row for row in built.document["rows"] if (row["variant"], row["sm"]) == (name, 90)]}
    combination, = (c for c in edge_llm.combinations([(90, "desktop")]) if (c.host, c.cuda_major) == ("x86_64", 13))
    files = edge_llm.Builder(document, built.bundle, tmp_path, zig).build(combination).files
    members = {member for member, *_ in archive_members(files["libcutedsl_x86_64.a"])}
    assert members == {f"{name}.o", "fmhaforge.o", "fmhaforge_edge_llm.o"}
    assert files["include/cutedsl_all.h"].decode().splitlines()[2:] == [f'#include "{name}.h"']


def test_a_bundle_that_is_none_or_is_damaged_makes_nothing(built, tmp_path):
    with pytest.raises(EdgeError, match="is no folder; build one with `make bundle`"):
        make.read_bundle(tmp_path / "nothing")
    for name in ("metadata.json", "SHA256SUMS"):
        (tmp_path / name).write_bytes((built.bundle / name).read_bytes())
    assert make.read_bundle(tmp_path) == built.document
    (tmp_path / "metadata.json").write_bytes((tmp_path / "metadata.json").read_bytes() + b" ")
    with pytest.raises(EdgeError, match="metadata.json: has SHA-256"):
        make.read_bundle(tmp_path)


def test_only_earlier_tarballs_are_removed(tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    names = ("cutedsl_a.tar.gz", "cutedsl_a.tar.gz.sha256", "kept.tar.gz", "notes.txt")
    for name in names:
        (out / name).write_text("x")
    (tmp_path / "b.tar.gz").write_text("x")
    (out / "SHA256SUMS").write_text("".join(f"{'0' * 64}  {name}\n" for name in ("cutedsl_a.tar.gz", "..", "notes.txt", "../b.tar.gz", "gone.tar.gz")))
    make._remove_earlier(out)
    assert sorted(path.name for path in out.iterdir()) == ["kept.tar.gz", "notes.txt"] and (tmp_path / "b.tar.gz").exists()
