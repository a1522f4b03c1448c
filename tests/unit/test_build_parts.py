# SPDX-License-Identifier: Apache-2.0
"""The small parts of the build: options, source closures, tool digests, explanations, canonical files, reports."""

import json
import os
import stat

import pytest

from fake_bundle import make_bundle
from generator import buildplan, cabi, explain, metadata, options, report, sources, toolchain
from generator.cabi import rows
from generator.canonical import canonical_json, write_whole
from generator.progress import Event, Failure, Progress, clock


# --- options ---------------------------------------------------------------------------------------------------------------


def test_defaults_are_those_of_the_help_text():
    opts = options.parse({})
    assert (opts.sm, opts.variants, opts.dist, opts.build_dir, opts.hosts, opts.cache_limit, opts.farm) == (
        None, None, "dist", "build", ("x86_64",), 2 << 30, "local")
    assert not (opts.checked or opts.allow_unvalidated or opts.allow_spills or opts.explain) and opts.shard is None and opts.merge is None
    text = options.help_text()
    for option in options.OPTIONS:
        assert f"\n  {option.name}={option.default}" in text and option.help in text


def test_values_are_read():
    opts = options.parse({"sm": "90, 87", "variants": "a*,b", "cache": "c", "cache_limit": "500M", "hosts": "aarch64,x86_64", "shard": "2/3",
                          "time_limit": "1.5", "farm": "tcp://host:8786", "checked": "1", "merge": ""})
    assert (opts.sm, opts.variants, opts.cache_limit, opts.hosts, opts.shard, opts.time_limit, opts.farm, opts.checked) == (
        ("90", "87"), ("a*", "b"), 500 << 20, ("x86_64", "aarch64"), (2, 3), 1.5, "tcp://host:8786", True)


@pytest.mark.parametrize("arguments, message", [
    ({"sms": "90"}, "unknown option sms=90: did you mean sm?"),
    ({"zzzz": "1"}, "unknown option zzzz=1: `scons --help` lists the options"),
    ({"hosts": "arm"}, "option hosts=arm: expected a list of different hosts out of x86_64, aarch64"),
    ({"hosts": "x86_64,x86_64"}, "option hosts=x86_64,x86_64: expected"),
    ({"hosts": ""}, "option hosts=: expected"),
    ({"checked": "yes"}, "option checked=yes: expected 0 or 1"),
    ({"time_limit": "0"}, "option time_limit=0: expected a number of seconds above 0"),
    ({"time_limit": "-1"}, "option time_limit=-1"),
    ({"time_limit": "nan"}, "option time_limit=nan"),
    ({"cache_limit": "1.5G"}, "option cache_limit=1.5G: expected bytes"),
    ({"shard": "0/2", "cache": "c"}, "option shard=0/2"),
    ({"shard": "1", "cache": "c"}, "option shard=1: expected INDEX/COUNT"),
    ({"shard": "1/2", "cache": "c", "merge": "d"}, "option merge="),
    ({"variants": "a,,b"}, "option variants=a,,b: an item of the list is empty"),
    ({"farm": "cluster"}, "option farm=cluster: expected local, or a Dask scheduler"),
    ({"progress": "loud"}, "option progress=loud: expected one of auto, live, plain, none"),
    ({"dist": ""}, "option dist=: expected a path"),
])
def test_wrong_options_are_named(arguments, message):
    with pytest.raises(options.OptionError) as caught:
        options.parse(arguments)
    assert str(caught.value).startswith(message)


# --- sources ---------------------------------------------------------------------------------------------------------------


@pytest.fixture
def package(tmp_path):
    """A tree with a package `generator`."""
    def write(**files):
        for name, text in {"__init__": "", **files}.items():
            path = tmp_path / "generator" / f"{name.replace('__sub__', 'sub/')}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tmp_path
    return write


def paths(root, *roots, without=frozenset()):
    """The closure's paths, without the folder."""
    return [source.path.removeprefix("generator/") for source in sources.closure(root, roots, without)]


def test_closure_follows_every_form_of_import(package):
    root = package(a="import os, generator.b\nfrom generator import c\nfrom . import d\nfrom .e import thing\nfrom generator.sub.f import x",
                   b="", c="from generator.g import y", d="", e="", g="", h="", __sub____init__="", __sub__f="from ..i import z\nfrom . import j", i="",
                   __sub__j="")
    assert paths(root, "generator.a") == ["__init__.py", "a.py", "b.py", "c.py", "d.py", "e.py", "g.py", "i.py", "sub/__init__.py", "sub/f.py", "sub/j.py"]


def test_closure_sees_conditional_imports_and_not_those_in_functions(package):
    root = package(a="try:\n    import generator.b\nexcept ImportError:\n    import generator.c\nif True:\n    from generator import d\n"
                     "class K:\n    import generator.e\ndef f():\n    import generator.g\n"
                     "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import generator.h\n",
                   b="", c="", d="", e="", g="", h="")
    assert paths(root, "generator.a") == ["__init__.py", "a.py", "b.py", "c.py", "d.py", "e.py"]


def test_closure_stops_at_carriers_and_survives_circles(package):
    root = package(a="import generator.b, generator.c", b="import generator.a", c="import generator.d", d="")
    assert paths(root, "generator.a", without=frozenset({"generator.c"})) == ["__init__.py", "a.py", "b.py"]


def test_closure_names_what_is_missing_or_broken(package):
    root = package(a="import generator.b", b="def (")
    with pytest.raises(sources.SourceError, match="there is no module generator.zz below"):
        sources.closure(root, ("generator.zz",))
    with pytest.raises(sources.SourceError, match=r"generator/b.py:1: "):
        sources.closure(root, ("generator.a",))


# --- tools -----------------------------------------------------------------------------------------------------------------

RECORD = """pkg/__init__.py,sha256=AAA,10
pkg/"a,b".py,sha256=BBB,3
pkg/__pycache__/__init__.cpython-311.pyc,,
../../../bin/tool,sha256=PATHDEPENDENT,200
pkg-1.0.dist-info/INSTALLER,sha256=CCC,4
pkg-1.0.dist-info/RECORD,,
"""


def test_record_digest_ignores_what_the_installer_adds():
    digest = toolchain.record_digest(RECORD)
    other = "\n".join(reversed(RECORD.replace("PATHDEPENDENT", "OTHER").replace("sha256=CCC", "sha256=DDD").splitlines()[:-1]))
    assert toolchain.record_digest(other) == digest
    assert toolchain.record_digest(RECORD.replace("AAA", "EEE")) != digest
    assert toolchain.record_digest(RECORD.replace("pkg/__init__", "pkg/__other__")) != digest


def test_the_pinned_tools_are_there():
    versions = {tool.name: tool.version for tool in toolchain.trace_distributions()}
    assert versions["nvidia-cutlass-dsl"] == versions["nvidia-cutlass-dsl-libs-cu12"] == "4.8.1"
    assert toolchain.assembler_distribution("cuda12").version == "12.9.86"
    assert toolchain.assembler_distribution("cuda13").version.startswith("13.")
    assert os.access(toolchain.compiler_path(), os.X_OK)


def test_a_missing_tool_is_named_with_the_remedy():
    with pytest.raises(toolchain.ToolchainError, match="the package no-such-tool is not installed for .*make setup"):
        toolchain.distribution("no-such-tool")


def test_digest_of_does_not_depend_on_the_order_of_keys():
    assert toolchain.digest_of({"a": 1, "b": [2]}) == toolchain.digest_of({"b": [2], "a": 1}) != toolchain.digest_of({"a": 1, "b": [3]})


# --- explain ---------------------------------------------------------------------------------------------------------------


def test_changes_name_each_field():
    before = {"spec": {"tile": {"m": 64, "n": 32}}, "sources": {"a.py": "1", "gone.py": "2"}, "same": [1]}
    now = {"spec": {"tile": {"m": 128, "n": 32}}, "sources": {"a.py": "9", "new.py": "3"}, "same": [1]}
    assert explain.changes(before, now) == ["sources, a.py: 1 -> 9", "sources, gone.py: gone (was 2)", "sources, new.py: new (3)",
                                            "spec, tile, m: 64 -> 128"]


def test_records_remember(tmp_path):
    records = explain.Records(tmp_path)
    assert records.why("ptx/k.ptx", False, {"a": 1}) == ["it was not built here before"]
    records.write("ptx/k.ptx", {"a": (1,)}, {"ptx/k.ptx": "digest"})
    assert records.digests("ptx/k.ptx", {"a": (1,)}) == {"ptx/k.ptx": "digest"}
    assert records.digests("ptx/k.ptx", {"a": (2,)}) == records.digests("other", {"a": (1,)}) == {}
    records.write("ptx/k.ptx", {"a": 1}, {})
    assert records.why("ptx/k.ptx", True, {"a": 2}) == ["a: 1 -> 2"]
    assert records.why("ptx/k.ptx", False, {"a": 1}) == ["its file is missing"]
    assert records.why("ptx/k.ptx", True, {"a": 1}) == ["its file is not the one that the last build left"]
    (tmp_path / "ptx/k.ptx.json").write_text("{")
    assert records.why("ptx/k.ptx", True, {"a": 1}) == ["it was not built here before"]


# --- canonical files -------------------------------------------------------------------------------------------------------


def test_canonical_json():
    assert canonical_json({"b": [1, "ü"], "a": None}) == '{\n "a": null,\n "b": [\n  1,\n  "ü"\n ]\n}\n'.encode()


def test_write_whole_replaces_and_leaves_nothing_behind(tmp_path):
    old = os.umask(0o077)
    try:
        write_whole(tmp_path / "sub" / "file", b"one")
        write_whole(tmp_path / "sub" / "file", b"two")
    finally:
        os.umask(old)
    assert (tmp_path / "sub/file").read_bytes() == b"two"
    assert stat.S_IMODE((tmp_path / "sub/file").stat().st_mode) == 0o644
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError):
        write_whole(tmp_path / "folder", b"three")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "sub"]
    assert [path.name for path in (tmp_path / "sub").iterdir()] == ["file"]


# --- progress and reports --------------------------------------------------------------------------------------------------


def test_plain_progress_counts_and_lists(capsys):
    progress = Progress("plain")
    progress.total = 12
    for _ in range(3):
        progress.visit()
    ticket = progress.start("trace", "k sm_80")
    progress.finish(ticket, "built", 1.5, 100)
    progress.fail(Failure("assemble", "k sm_90", "no", "log"))
    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith("[ 3/12] trace     k sm_80 ") and out[0].endswith(" s") and out[1] == "FAILED assemble k sm_90: no"
    assert [(event.action, event.name, event.cpu_seconds, event.status) for event in progress.events] == [("trace", "k sm_80", 1.5, "built")]


def test_tasks_at_once_get_lanes_of_their_own():
    progress = Progress("none")
    first, second = progress.start("a", "1"), progress.start("a", "2")
    progress.finish(first, "built")
    third = progress.start("a", "3")
    progress.finish(second, "built")
    progress.finish(third, "built")
    assert [(event.name, event.lane) for event in progress.events] == [("1", 0), ("2", 1), ("3", 0)]


def test_timing_sums_by_action_and_the_trace_has_one_event_a_task():
    events = [Event("trace", "a", 0.0, 2.0, 1.75, 10, 0, "built"), Event("trace", "b", 0.5, 3.0, 2.25, 20, 1, "built"),
              Event("assemble", "a", 2.0, 0.25, 0.25, 5, 0, "built")]
    found = report.timing(events, 4.0)
    assert found["actions"]["trace"] == {"tasks": 2, "seconds": 5.0, "cpu_seconds": 4.0}
    assert [task["name"] for task in found["tasks"]] == ["b", "a", "a"]
    trace = json.loads(canonical_json(report.browser_trace(events)))
    assert [(event["name"], event["ts"], event["dur"], event["tid"]) for event in trace["traceEvents"]] == [
        ("a", 0, 2000000, 0), ("b", 500000, 3000000, 1), ("a", 2000000, 250000, 0)]


def test_tables_align_numbers_right_and_text_left():
    assert report.table(("name", "n"), [("a", 1), ("long", 1000)]) == "name     n\n----  ----\na        1\nlong  1000"


@pytest.mark.parametrize("seconds, text", [(0, "0:00"), (65.9, "1:05"), (3600, "60:00")])
def test_clock(seconds, text):
    assert clock(seconds) == text


# --- code without cubins ---------------------------------------------------------------------------------------------------


def test_the_code_of_the_libraries_needs_no_cubin(manifest, tmp_path):
    """What is rendered from the plan alone is what is rendered from the metadata of the finished bundle."""
    plan = buildplan.make(manifest, manifest.rows(sms=[80, 90], variants=["fmha_v2_d64*"]))
    bundle = make_bundle(tmp_path / "bundle", manifest, sms=[80, 90], variants=["fmha_v2_d64*"])
    finished = json.loads((bundle / "metadata.json").read_bytes())
    planned = metadata.planned(plan, finished["version"])
    assert [row["cubin_sha256"] for row in planned["rows"]] == [""] * len(finished["rows"])
    before, after = cabi.render_code(planned, tmp_path / "planned"), cabi.render(finished, bundle, tmp_path / "finished")
    written = {path.relative_to(before.root): path.read_bytes() for path in before.root.rglob("*") if path.is_file()}
    assert before.files == after.files and len(written) > 20
    for path, content in written.items():
        assert (after.root / path).read_bytes() == content, path


def test_cubins_stand_together_and_equal_ones_once():
    cubins = [cabi.Embedded(content, 1, 0, "k") for content in (b"a" * 65, b"b" * 64, b"a" * 65, b"c")]
    content, offsets = rows.together(cubins)
    assert [offsets[cubin.sha256] for cubin in cubins] == [0, 128, 0, 192]
    assert content == b"a" * 65 + bytes(63) + b"b" * 64 + b"c" + bytes(63)


@pytest.mark.parametrize("value", [{}, [], {"b": [], "a": {}}, {"b": 1, "a": [True, None, 1.5, -0.0, 1e300, "ü\n\"\\\x7f\u2028"]}, [[[1]], ({"x": ()},)], "x", 3])
def test_canonical_json_is_the_library_s_spelling(value):
    shared = [value, {"again": value, "deeper": {"again": value}}, value]
    for case in (value, shared):
        assert canonical_json(case) == (json.dumps(case, sort_keys=True, indent=1, ensure_ascii=False) + "\n").encode()
