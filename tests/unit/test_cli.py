# SPDX-License-Identifier: Apache-2.0
"""The command line: what is printed, and the exit status."""

import json
import os
import shutil
import shlex
import subprocess
import sys

import fmhaforge
import pytest
from fake_gpu import FakeGpu
from fmhaforge import commands
from fmhaforge.cli import main
from fmhaforge.driver import Driver
from runtime_fixtures import bundle_path  # noqa: F401

QUERY = ["query", "--op", "llm", "--heads-q", "32", "--heads-kv", "8", "--head-dim", "128", "--sm", "87", "--dtype", "float16", "--mask", "causal"]


@pytest.fixture(autouse=True)
def here(bundle_path, monkeypatch):
    monkeypatch.setenv("FMHAFORGE_BUNDLE", str(bundle_path))


def call(capsys, *arguments):
    """(status, stdout, stderr) of the command line."""
    try:
        status = main(arguments)
    except SystemExit as stop:
        status = stop.code
    return (status, *capsys.readouterr())


def with_value(option, value):
    arguments = list(QUERY)
    arguments[arguments.index(option) + 1] = value
    return arguments


def test_query_yes(capsys, bundle_path):
    assert call(capsys, *QUERY, "--bundle", str(bundle_path)) == (0, "yes: fmha_v2_d128 (cubin of SM 87)\n", "")


def test_query_no(capsys):
    status, out, err = call(capsys, *with_value("--head-dim", "96"))
    assert (status, err) == (1, "") and out.startswith("no: head_dim 96 is not served") and "nearest: fmha_v2_d64 (head_dim 64)" in out


@pytest.mark.parametrize("option, value, field", [("--sm", "103", "sm"), ("--dtype", "bfloat16", "dtype"), ("--mask", "padding", "mask"),
                                                  ("--heads-q", "30", "num_q_heads"), ("--heads-kv", "0", "num_kv_heads")])
def test_query_no_as_json(capsys, option, value, field):
    status, out, _ = call(capsys, *with_value(option, value), "--json")
    answer = json.loads(out)
    assert status == 1 and answer["supported"] is False and answer["field"] == field and answer["reason"] and answer["variants"] == []


def test_query_yes_as_json(capsys):
    status, out, _ = call(capsys, "query", "--op", "vit", "--head-dim", "96", "--sm", "101", "--json")
    answer = json.loads(out)
    assert status == 0 and answer["supported"] and answer["variants"] == ["fmha_v2_vit_d96"]
    assert answer["rows"] == [{"variant": "fmha_v2_vit_d96", "sm": 101, "cubin": "cubins/sm_101/fmha_v2_vit_d96.cubin"}]


@pytest.mark.parametrize("more, variants", [
    ([], "fmha_v2_d64_small (cubin of SM 90), fmha_v2_d64 (cubin of SM 90)"), (["--no-small-d64"], "fmha_v2_d64 (cubin of SM 90)"),
    (["--seqlen-q", "512"], "fmha_v2_d64_small (cubin of SM 90)"), (["--seqlen-q", "513"], "fmha_v2_d64 (cubin of SM 90)")])
def test_query_small_tiles(capsys, more, variants):
    arguments = ("query", "--op", "llm", "--head-dim", "64", "--sm", "90", "--mask", "causal", *more)
    assert call(capsys, *arguments)[:2] == (0, f"yes: {variants}\n")


@pytest.mark.parametrize("arguments, word", [
    ([], "required: COMMAND"), (["fly"], "invalid choice"), (QUERY[:-2], "--mask is needed for llm: causal or sliding_causal"),
    (with_value("--sm", "sm_87"), "--sm"), (with_value("--op", "conv"), "--op conv does not exist"),
    (with_value("--mask", "causel"), "--mask causel does not exist; there are bidirectional, causal, padding, sliding_causal, vision_block"), (QUERY + ["--mas", "x"], "--mas"),
    (["query", "--op", "llm"], "required"), (["list", "--bundle", "/nonexistent"], "/nonexistent: is no folder"),
    (["run", "--op", "conv"], "--op conv does not exist; there are llm"), (["run", "--mask", "causel"], "--mask causel does not exist; there are"),
    (["run", "--head-dim", "63"], "no row of the bundle matches"), (["list", "--op", "conv"], "--op conv does not exist; there are llm"),
    (["list", "--plans"], "--plans is for --json"), (["list", "--bundle", ""], "--bundle: is empty; give the folder of a bundle"),
    (["doctor", "--bundle", ""], "--bundle: is empty"), (["verify", "--bundle", "x" * 5000], "cannot be looked at: File name too long"), (["diff", "/nonexistent", "/nonexistent"], "no folder")])
def test_bad_usage(capsys, arguments, word):
    status, out, err = call(capsys, *arguments)
    assert status == 2 and out == "" and word in err and err.count("\n") == 1


@pytest.mark.parametrize("option, value, limit", [("--batch", "0", "1 .. 2147483647"), ("--cases", "0", "1 .. 2147483647"), ("--seqlen-q", "-1", "0 .. 2147483647"),
                                                  ("--device", "-1", "0 .. 2147483647"), ("--heads-q", "0", "1 .. 2147483647"), ("--heads-kv", "-2", "1 .. 2147483647"),
                                                  ("--seqlen-kv", "99999999999", "0 .. 2147483647"), ("--cases", "many", "an integer, not 'many'")])
def test_numbers_that_make_no_case(capsys, option, value, limit):
    """No case is no success."""
    status, out, err = call(capsys, "run", option, value)
    assert status == 2 and out == "" and f"argument {option}: must be " in err and limit in err and err.count("\n") == 1


@pytest.mark.parametrize("arguments", [["--batch", "2147483647"], ["--seqlen-kv", "1000000", "--batch", "9"], ["--heads-q", "1000000"]])
def test_cases_that_no_host_could_compare(capsys, arguments):
    status, out, err = call(capsys, "run", "--op", "vit", *arguments)
    assert status == 2 and out == "" and "elements, at most 16777216 are compared on the host; give smaller --batch" in err and err.count("\n") == 1


def test_run_on_a_device_that_does_not_exist(capsys, monkeypatch):
    monkeypatch.setattr("fmhaforge.driver.default", lambda: Driver(FakeGpu([], 90)))
    assert call(capsys, "run", "--device", "1") == (2, "", "fmhaforge run: --device 1 does not exist; there are 1 devices\n")


def test_run_without_a_driver_makes_no_case(capsys, monkeypatch):
    def none():
        raise fmhaforge.DriverMissingError("no CUDA driver can be used")
    monkeypatch.setattr(Driver, "device_count", lambda driver: none())
    monkeypatch.setattr("fmhaforge.selftest.random_case", None)
    assert call(capsys, "run") == (2, "", "fmhaforge run: no CUDA driver can be used\n")


def test_doctor_says_that_the_stated_bundle_is_damaged(capsys, bundle_path, tmp_path, monkeypatch):
    monkeypatch.setattr("fmhaforge.driver.default", lambda: Driver(FakeGpu([], 90)))
    copy = shutil.copytree(bundle_path, tmp_path / "copy")
    (copy / "SHA256SUMS").unlink()
    monkeypatch.setenv("FMHAFORGE_BUNDLE", str(copy))
    status, out, err = call(capsys, "doctor")
    assert status == 2 and out == "" and "SHA256SUMS: is missing" in err
    monkeypatch.delenv("FMHAFORGE_BUNDLE")
    monkeypatch.chdir(tmp_path)
    assert call(capsys, "doctor")[0] == 0, "no bundle is no problem"


def test_masks_in_capitals_and_rows_of_another_sm(capsys):
    arguments = ["query", "--op", "llm", "--head-dim", "128", "--sm", "90", "--mask", "CAUSAL"]
    assert call(capsys, *arguments)[:2] == (0, "yes: fmha_v2_d128 (cubin of SM 90)\n")
    status, out, _ = call(capsys, *arguments, "--row-sm", "91")
    assert status == 1 and out.startswith("no: row_sm 91 is not served (there are 80, 86, 87, 89, 90, 100, ") and "nearest: fmha_v2_d128 (row_sm 90)" in out


@pytest.mark.parametrize("command", ["", "list", "query", "explain", "verify", "doctor", "run", "diff"])
def test_help(capsys, command):
    status, out, err = call(capsys, *command.split(), "--help")
    assert status == 0 and err == "" and (("--json" in out) == bool(command))


def test_list(capsys, manifest):
    status, out, _ = call(capsys, "list")
    lines = out.splitlines()
    assert status == 0 and lines[-1] == f"{len(manifest.rows())} rows" and len(lines) == len(manifest.rows()) + 2
    assert lines[0].split()[:3] == ["variant", "sm", "operation"]
    assert call(capsys, "list", "--sm", "90", "--variant", "fmha_v2_d64*", "--op", "paged")[1].splitlines()[-1] == "3 rows"
    assert call(capsys, "list", "--sm", "77")[0] == 1


def test_list_as_json(capsys, manifest):
    rows = json.loads(call(capsys, "list", "--json")[1])
    wanted = {"variant", "sm", "operation", "mask", "head_dim", "kv_layout", "dtype", "family", "registers", "spill_bytes", "smem_bytes",
              "ptx_sha256", "cubin_sha256"}
    assert len(rows) == len(manifest.rows()) and all(wanted <= set(row) and "plan" not in row for row in rows)
    assert all("grid" in row["plan"] for row in json.loads(call(capsys, "list", "--json", "--plans")[1]))


def test_explain(capsys):
    arguments = ["explain", *QUERY[1:]]
    status, out, _ = call(capsys, *arguments)
    lines = {line.split()[0]: line.split()[1] for line in out.splitlines()[1:-1]}
    assert status == 0 and lines["fmha_v2_d128"] == "taken" and lines["fmha_v2_d64"] == "head_dim" and lines["fmha_v2_vit_d64"] == "operation"
    answer = json.loads(call(capsys, *arguments, "--json")[1])
    assert [v["variant"] for v in answer["verdicts"] if v["taken"]] == answer["variants"] == ["fmha_v2_d128"]


def test_verify(capsys, bundle_path, tmp_path):
    status, out, _ = call(capsys, "verify")
    assert status == 0 and "ok (340 rows" in out
    copy = shutil.copytree(bundle_path, tmp_path / "copy")
    cubin = next(copy.rglob("*.cubin"))
    cubin.write_bytes(b"")
    status, out, _ = call(capsys, "verify", "--bundle", str(copy), "--json")
    answer = json.loads(out)
    assert status == 1 and not answer["ok"] and answer["findings"][0]["file"] == cubin.relative_to(copy).as_posix()
    (copy / "metadata.json").write_text("{}")
    status, out, _ = call(capsys, "verify", "--bundle", str(copy))
    assert status == 1 and "metadata.json: has SHA-256" in out


def test_diff(capsys, bundle_path):
    assert call(capsys, "diff", str(bundle_path), str(bundle_path))[:2] == (0, "the bundles are equal\n")


def test_doctor(capsys, monkeypatch):
    monkeypatch.setattr("fmhaforge.driver.default", lambda: Driver(FakeGpu([], 90)))
    status, out, _ = call(capsys, "doctor", "--json")
    notes = {note["subject"]: note for note in json.loads(out)}
    assert status == 0 and notes["driver"]["detail"] == "CUDA 13.0" and "34 variants" in notes["device 0"]["detail"]


@pytest.mark.parametrize("sm", [90, 86])
def test_run(capsys, monkeypatch, bundle_path, sm):
    rows = [row for row in fmhaforge.open(bundle_path).metadata.rows if row.sm == sm]
    gpu = FakeGpu(rows, sm)
    monkeypatch.setattr("fmhaforge.driver.default", lambda driver=Driver(gpu): driver)
    arguments = ("run", "--op", "llm", "--head-dim", "64", "--seqlen-q", "6", "--seqlen-kv", "9", "--cases", "2")
    status, out, _ = call(capsys, *arguments, "--json")
    outcomes = json.loads(out)
    assert status == 0 and [(o["mask"], o["seed"], o["passed"]) for o in outcomes] == [
        ("causal", 0, True), ("causal", 1, True), ("sliding_causal", 0, True), ("sliding_causal", 1, True)]
    assert all(0 < o["relative_error"] < 4e-4 for o in outcomes)
    gpu.corrupt = lambda data: data.__setitem__(300, data[300] ^ 0x40)
    status, out, _ = call(capsys, *arguments)
    assert status == 1 and "FAILED" in out and "0 of 4 passed" in out


def test_run_without_a_driver(capsys, monkeypatch):
    class NoDriver:
        def cuInit(self, flags):
            raise RuntimeError("no libcuda")
    monkeypatch.setattr("fmhaforge.driver.default", lambda: Driver(NoDriver()))
    status, out, err = call(capsys, "run")
    assert status == 2 and out == "" and "no libcuda" in err and "install" in err


def test_the_module_is_the_command(bundle_path):
    runtime = os.path.dirname(os.path.dirname(fmhaforge.__file__))
    done = subprocess.run([sys.executable, "-m", "fmhaforge", *QUERY, "--bundle", str(bundle_path)], capture_output=True, text=True,
                          env={"PYTHONPATH": runtime})
    assert (done.returncode, done.stdout) == (0, "yes: fmha_v2_d128 (cubin of SM 87)\n")


def test_a_reader_that_stops_early(bundle_path):
    runtime = os.path.dirname(os.path.dirname(fmhaforge.__file__))
    command = f"{shlex.quote(sys.executable)} -m fmhaforge list --json --bundle {shlex.quote(str(bundle_path))} | head -1"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, env={"PYTHONPATH": runtime, "PATH": os.environ["PATH"]})
    assert (done.stdout, done.stderr) == ("[\n", "")


def test_table_is_aligned(capsys):
    commands._print_table(("name", "n"), [("a", 5), ("longer", 123)])
    assert capsys.readouterr().out == "name    n\na         5\nlonger  123\n"
