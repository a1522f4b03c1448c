# SPDX-License-Identifier: Apache-2.0
"""The numerics ledger: what is entered, what is replaced, what is removed, and that it is written whole or not at all."""

import json
import math

import pytest
from fake_bundle import built_row
from test_device_cases import metadata_of

from tests.device import ledger
from generator.ledger import LedgerError
from tests.device.ledger import FEWEST_CASES, Machine, Recorder
from tests.device.problem import Outcome
from tests.device.subjects import Subject

MACHINE = Machine(90, "NVIDIA H200", "580.1", "2026-01-02")
GOOD = Outcome(2.5e-4, 0.4, ())
BAD = Outcome(math.inf, math.inf, ("a row holds NaN",))


def subject(digest="a" * 64, variant="fmha_v2_d64"):
    return Subject(variant, "llm", 64, "causal", "ampere", 90, 128, 64, digest)


def record(recorder, outcome=GOOD, count=FEWEST_CASES, route="cubin", which=None):
    for number in range(count):
        recorder.add(which or subject(), route, f"fmha_v2_d64/{number}", outcome)
    return recorder


def test_a_full_run_is_entered():
    recorder = record(Recorder())
    recorder.add(subject(), "cubin", "fmha_v2_d64/worst", Outcome(3.21987e-4, 0.25, ()))
    entries = ledger.merged(ledger.empty(), recorder.tallies, MACHINE)["entries"]
    assert entries == {"a" * 64: {
        "variant": "fmha_v2_d64", "family": "ampere", "operation": "llm", "head_dim": 64, "mask": "causal",
        "runs": [{
            "route": "cubin", "sm": 90, "device": "NVIDIA H200", "driver": "580.1", "cases": FEWEST_CASES + 1,
            "worst_relative_error": 3.22e-4, "worst_violation": 0.4, "date": "2026-01-02",
        }],
    }}


def test_too_few_cases_prove_nothing():
    recorder = record(Recorder(), count=FEWEST_CASES - 1)
    assert ledger.merged(ledger.empty(), recorder.tallies, MACHINE)["entries"] == {}


def test_routes_and_devices_stand_side_by_side_and_a_rerun_replaces():
    first = ledger.merged(ledger.empty(), record(Recorder()).tallies, MACHINE)
    second = ledger.merged(first, record(Recorder(), route="driver-ptx").tallies, MACHINE)
    other = Machine(120, "other", "600", "2026-03-04")
    third = ledger.merged(second, record(Recorder(), count=150).tallies, other)
    fourth = ledger.merged(third, record(Recorder(), count=200).tallies, MACHINE)
    runs = fourth["entries"]["a" * 64]["runs"]
    assert [(run["route"], run["sm"], run["cases"]) for run in runs] == [
        ("cubin", 90, 200), ("cubin", 120, 150), ("driver-ptx", 90, FEWEST_CASES),
    ]
    assert len(first["entries"]["a" * 64]["runs"]) == 1, "the argument is left as it was"


@pytest.mark.parametrize("route", ("cubin", "driver-ptx"))
def test_one_failed_case_on_any_route_removes_the_kernel(route):
    old = ledger.merged(ledger.empty(), record(Recorder()).tallies, MACHINE)
    recorder = record(Recorder(), count=200)
    record(recorder, BAD, 1, route)
    assert ledger.merged(old, recorder.tallies, MACHINE)["entries"] == {}


def test_a_failed_named_test_removes_the_kernel_and_no_other():
    recorder = record(Recorder())
    record(recorder, which=subject("b" * 64, "fmha_v2_d128"))
    recorder.fail(subject(), "cubin", "test_repeats_are_bit_equal")
    assert list(ledger.merged(ledger.empty(), recorder.tallies, MACHINE)["entries"]) == ["b" * 64]


def test_written_sorted_and_read_back(tmp_path):
    path = tmp_path / "new" / "ledger.json"
    value = ledger.merged(ledger.empty(), record(Recorder()).tallies, MACHINE)
    ledger.write(path, value)
    assert ledger.read(path) == value
    assert path.read_text() == json.dumps(value, sort_keys=True, indent=1) + "\n"
    assert [entry.name for entry in path.parent.iterdir()] == ["ledger.json"]


def test_a_failed_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "ledger.json"
    ledger.write(path, ledger.empty())
    with pytest.raises(ValueError):
        ledger.write(path, {"schema_version": 1, "entries": {"a": math.nan}})
    assert ledger.read(path) == ledger.empty()
    assert [entry.name for entry in tmp_path.iterdir()] == ["ledger.json"]


@pytest.mark.parametrize("text, message", (("{", "cannot be read"), ("[]", "not a numerics ledger"), ('{"schema_version": 2}', "version 1")))
def test_what_is_no_ledger_is_refused(tmp_path, text, message):
    path = tmp_path / "ledger.json"
    path.write_text(text)
    with pytest.raises(LedgerError, match=message) as caught:
        ledger.read(path)
    assert "ledger.json" in str(caught.value)


def test_no_file_is_an_empty_ledger(tmp_path):
    assert ledger.read(tmp_path / "none.json") == ledger.empty()


# -- kernels that exist no more ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def rows(manifest):
    return manifest.rows(sms=[86, 90], checked=True)


@pytest.fixture
def metadata(manifest):
    whole = metadata_of(manifest)
    return {**whole, "rows": [row for row in whole["rows"] if row["sm"] in (86, 90)]}


def old_ledger(metadata):
    """An entry for every kernel of the bundle, and two of kernels that it does not have."""
    entries = {row["ptx_sha256"]: {"variant": row["variant"], "runs": []} for row in metadata["rows"]}
    return {"schema_version": 1, "entries": {**entries, "dead1": {"variant": "fmha_v2_old", "runs": []}, "dead2": {"variant": "fmha_v2_d64", "runs": []}}}


def test_a_whole_bundle_drops_dead_entries_and_no_other(metadata, rows):
    old = old_ledger(metadata)
    kept, note = ledger.without_dead(old, metadata, rows)
    assert set(old["entries"]) - set(kept["entries"]) == {"dead1", "dead2"} and len(kept["entries"]) == len(old["entries"]) - 2
    assert note == "2 entries of kernels that exist no more are dropped: fmha_v2_d64, fmha_v2_old"
    assert ledger.without_dead(kept, metadata, rows) == (kept, "no entry is of a kernel that the bundle does not have")


def lose(metadata, choose):
    return {**metadata, "rows": [row for row in metadata["rows"] if not choose(row)]}


@pytest.mark.parametrize("change, first", [
    (lambda m: lose(m, lambda row: row["checked"]), "fmha_v2_d64_paged_checked for SM 86"),
    (lambda m: lose(m, lambda row: row["sm"] == 90), "fmha_v2_d64 for SM 90"),
    (lambda m: lose(m, lambda row: row["variant"] == "fmha_v2_vit_d72"), "fmha_v2_vit_d72 for SM 86"),
    (lambda m: {**m, "rows": [{**m["rows"][0], "tile": {**m["rows"][0]["tile"], "m": 999}}, *m["rows"][1:]]}, "fmha_v2_d64 for SM 86"),
    (lambda m: {**m, "rows": [{**m["rows"][0], "family": "other"}, *m["rows"][1:]]}, "fmha_v2_d64 for SM 86")])
def test_a_bundle_that_is_not_the_whole_manifest_drops_nothing(metadata, rows, change, first):
    old = old_ledger(metadata)
    changed = change(metadata)
    assert ledger.lacking(metadata, rows) == () and ledger.lacking(changed, rows)[0] == first
    kept, note = ledger.without_dead(old, changed, rows)
    assert kept == old and f"such as {first}" in note and "checked=1" in note


def test_without_the_manifest_nothing_is_dropped(metadata):
    old = old_ledger(metadata)
    kept, note = ledger.without_dead(old, metadata, None)
    assert kept == old and note.startswith("2 entries") and "PyYAML" in note


def test_a_real_row_of_the_metadata_is_like_the_manifests(manifest):
    """`lacking` compares what the build writes."""
    rows = manifest.rows(sms=[90], variants=["fmha_v2_d128*"])
    built = {"rows": [json.loads(json.dumps(built_row(row, {}).to_json())) for row in rows]}
    assert ledger.lacking(built, rows) == ()
