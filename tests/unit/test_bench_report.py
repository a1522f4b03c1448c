# SPDX-License-Identifier: Apache-2.0
"""The kernel benchmark's records, tables, goals and plot, on made-up timings: from the run to the files, and again from JSON."""

import json
import re
import xml.etree.ElementTree as ElementTree
from types import SimpleNamespace

import fmhaforge
import pytest
from fake_clock import FakeClock
from runtime_fixtures import bundle_path  # noqa: F401

from bench import goals, kernels, report, roofline
from bench import kernel_contenders as contenders
from bench.device_state import State, Watch
from bench.errors import BenchError
from bench.kernel_cases import CASES

DENSE, PAGED = "d128 causal 8x2048 32/8", "d128 causal 8x2048 32/8 paged"


def named(name):
    return next(case for case in CASES if case.name == name)


class Bench:
    """A benchmark whose contenders take the times that `speeds` says, in TFLOP/s: (case or shape's first case, label) -> speed."""

    def __init__(self, monkeypatch, speeds):
        self.clock, self.speeds = FakeClock(), speeds
        monkeypatch.setattr(contenders, "make_tensors", lambda torch, case: SimpleNamespace(sets=[None] * 4, output=None))
        monkeypatch.setattr(contenders, "ours", self.ours)
        monkeypatch.setattr(contenders, "rival", self.rival)
        monkeypatch.setattr(kernels, "_check_output", lambda *_: None)
        monkeypatch.setattr(kernels.time, "sleep", lambda seconds: None)

    def make(self, case, label):
        if (case.name, label) not in self.speeds:
            raise RuntimeError("no kernel\nand more of it")
        return self.clock.work(label, case.flops / self.speeds[case.name, label] / 1e6)

    def ours(self, torch, bundle, case, tensors, **options):
        return self.make(case, bundle), bundle.rstrip("2")

    def rival(self, torch, backend, case, tensors):
        return self.make(case, backend)

    def records(self, *labels, names=(DENSE, PAGED)):
        watch = Watch(lambda: State(1700, 3201, 600.0, 50, 4))
        return kernels.run_cases(self.clock, [named(name) for name in names], {label: label for label in labels}, 3, {}, watch=watch)


SPEEDS = {
    (DENSE, "hopper"): 600.0, (PAGED, "hopper"): 570.0, (DENSE, "ampere"): 300.0, (PAGED, "ampere"): 290.0,
    (DENSE, "flash"): 280.0, (DENSE, "cudnn"): 500.0,
}


@pytest.fixture
def records(monkeypatch):
    return Bench(monkeypatch, SPEEDS).records("hopper", "ampere")


@pytest.fixture
def document(records):
    return {
        "schema_version": kernels.SCHEMA_VERSION, "rounds": 3, "cases": records, "series": [{"label": "hopper"}, {"label": "ampere"}],
        "device": {"name": "NVIDIA H200", "driver": "580.1", "torch": "2.11", "cuda": "13.0", "cudnn": 91900},
    }


def test_a_run_records_speed_family_and_state(records):
    dense, paged = records
    assert [record["name"] for record in records] == [DENSE, PAGED]
    assert {label: (result["family"], result["tflops"]) for label, result in dense["results"].items()} == {
        "hopper": ("hopper", 600.0), "ampere": ("ampere", 300.0), "flash": (None, 280.0), "cudnn": (None, 500.0)}
    assert dense["results"]["hopper"]["median_us"] == pytest.approx(named(DENSE).flops / 600e6, abs=1e-3)
    assert dense["results"]["hopper"]["launches"] == 5 - 5 % 4 + 4
    assert dense["bytes"] == 2 * 8 * 2048 * 128 * 2 * (32 + 8)
    assert dense["state"] == paged["state"] and dense["state"]["sm_mhz"] == 1700 and dense["state"]["throttle"] == "0x4"


def test_cases_of_one_shape_share_the_rivals_and_the_rounds(monkeypatch):
    bench = Bench(monkeypatch, SPEEDS)
    dense, paged = bench.records("hopper", "ampere")
    assert dense["results"]["cudnn"] == paged["results"]["cudnn"]
    names = [name for name, _, _ in bench.clock.log]
    runs = [name for place, name in enumerate(names) if not place or names[place - 1] != name]
    assert len(runs) > 6 * 3 and {"hopper", "ampere", "flash", "cudnn"} <= set(runs[-6:])


def test_what_cannot_run_is_told_with_its_reason(monkeypatch):
    dense, paged = Bench(monkeypatch, {(DENSE, "hopper"): 600.0, (DENSE, "cudnn"): 500.0}).records("hopper")
    assert dense["results"]["flash"] == paged["results"]["hopper"] == {"refused": "RuntimeError: no kernel"}
    assert report.refusals([dense, paged], ["hopper"]) == [f"* {PAGED}: hopper refused: RuntimeError: no kernel"]


def test_table_gives_ratios_within_the_run(records):
    rows = report.case_table(records, ["hopper", "ampere"])
    assert rows == [
        ["case", "hopper", "ampere", "flash", "cuDNN", "hopper / ampere", "hopper / flash", "hopper / cuDNN", "/ dense", "floor"],
        [DENSE, "600.0", "300.0", "280.0", "500.0", "2.00", "2.14", "1.20", "-", "484"],
        [PAGED, "570.0", "290.0", "280.0", "500.0", "1.97", "2.04", "1.14", "0.950", "480"],
    ]
    lines = report.lines_of(rows).splitlines()
    assert len({len(line) for line in lines}) == 1
    assert lines[1].startswith("|---") and lines[1].count("-:|") == 9


def test_goals_are_judged_by_what_was_measured(records):
    found = {(outcome.goal.family, outcome.goal.measure, outcome.goal.case): outcome for outcome in goals.outcomes(records)}
    assert {key: (outcome.value, outcome.met) for key, outcome in found.items()} == {
        ("hopper", "cudnn", DENSE): (pytest.approx(1.2), True), ("hopper", "dense", PAGED): (pytest.approx(0.95), False),
        ("hopper", "ampere", DENSE): (pytest.approx(2.0), True), ("hopper", "ampere", PAGED): (pytest.approx(570 / 290), True),
        ("ampere", "flash", DENSE): (pytest.approx(300 / 280), True), ("ampere", "dense", PAGED): (pytest.approx(290 / 300), True),
    }
    assert found["ampere", "flash", DENSE].goal.at_least == round(281 / 296, 3)
    assert report.verdict(list(found.values())) == "5 of 6 goals met, 1 missed."
    row = next(row for row in report.goal_table(found.values()) if row[0] == "hopper / dense")
    assert row == ["hopper / dense", PAGED, "0.950", "0.970", "**missed**", "SM 90 goals"]


def test_a_goal_without_its_rival_is_not_measured(monkeypatch):
    records = Bench(monkeypatch, {(DENSE, "hopper"): 600.0}).records("hopper", names=[DENSE])
    outcomes = goals.outcomes(records)
    assert [(outcome.goal.measure, outcome.met) for outcome in outcomes] == [("cudnn", None), ("ampere", None)]
    assert report.verdict(outcomes) == "0 of 2 goals met, 0 missed, 2 not measured."


def test_a_family_counts_under_any_label(monkeypatch):
    speeds = {(DENSE, "hopper"): 600.0, (DENSE, "hopper2"): 500.0, (DENSE, "cudnn"): 500.0}
    first, = Bench(monkeypatch, speeds).records("hopper2", "hopper", names=[DENSE])
    assert goals.speed_of(first, "hopper") == 600.0 and goals.speed_of_family(first, "hopper") == 500.0


def test_the_small_tile_is_compared_with_the_dense_small_tile(monkeypatch):
    names = [f"d64 causal 8x512 32/8 {note}" for note in ("large tile", "small tile", "paged small tile")]
    records = Bench(monkeypatch, {(name, "hopper"): 100.0 for name in names}).records("hopper", names=names)
    assert goals.dense_twin(records[2], records)["name"] == names[1]
    assert goals.dense_twin(records[0], records) is None


def test_every_goal_has_its_case():
    assert {goal.case for goal in goals.GOALS} <= {case.name for case in CASES}
    assert len({(goal.case, goal.family, goal.measure) for goal in goals.GOALS}) == len(goals.GOALS)
    assert all(0.9 <= goal.at_least <= 1.3 or goal.measure == goals.TFLOPS or goal.measure == "flash" for goal in goals.GOALS)


SVG = "{http://www.w3.org/2000/svg}"


def marks(drawing):
    """Label -> places of its marks outside the legend."""
    found = {}
    for path in ElementTree.fromstring(drawing).iter(f"{SVG}path"):
        title = path.find(f"{SVG}title")
        if title is not None:
            x, y = map(float, re.match(r"M([\d.]+) ([\d.]+)", path.get("d")).groups())
            if y > roofline.TOP:
                found.setdefault(title.text, []).append((x, y))
    return found


def test_marks_stand_at_their_speed(document):
    found = marks(roofline.svg(document))
    assert {label: len(places) for label, places in found.items()} == {"hopper": 2, "ampere": 2, "flash": 2, "cudnn": 2}
    (x, y), (x_paged, _) = found["hopper"]
    assert x_paged - x == pytest.approx(roofline.COLUMN, abs=0.1)
    decades = (found["ampere"][0][1] - y) / roofline.HEIGHT
    assert decades == pytest.approx(0.30103 / 1.38021, rel=2e-3)  # a factor of 2 on an axis from 50 to 1200
    middle = roofline.LEFT + roofline.PLOT * 0.91358 / 2.30103  # 819.2 FLOP per byte on an axis from 100 to 20,000
    assert (x + x_paged) / 2 == pytest.approx(middle, abs=0.2)


def test_plot_has_roofs_legend_and_the_names_of_all_cases(document):
    words = [text.text for text in ElementTree.fromstring(roofline.svg(document)).iter(f"{SVG}text")]
    assert {"hopper", "ampere", "flash", "cuDNN", "roofs of the datasheet", "head_dim 128", f"a   {DENSE}", f"b   {PAGED}"} <= set(words)
    assert "989 TFLOP/s dense fp16, 4.8 TB/s" in words and "600 / 300 / 280 / 500" in words
    document["device"]["name"] = "another GPU"
    assert "roofs of the datasheet" not in roofline.svg(document) and len(marks(roofline.svg(document))) == 4


def test_columns_never_overlap():
    places = roofline.spread([100.0, 100.0, 100.0, 104.0, 300.0])
    assert all(later - earlier >= roofline.COLUMN - 1e-9 for earlier, later in zip(places, places[1:]))
    assert places[4] == 300.0 and sum(places[:4]) / 4 == pytest.approx(101.0)
    assert [roofline.letter(number) for number in (0, 25, 26, 27)] == ["a", "z", "aa", "ab"]


def test_files_are_made_again_from_the_json(document, tmp_path, capsys):
    source, table, plot = tmp_path / "results.json", tmp_path / "new" / "t.md", tmp_path / "p.svg"
    source.write_text(json.dumps(document), encoding="utf-8")
    assert kernels.main(["--from", str(source), "--table", str(table), "--plot", str(plot)]) == 0
    assert table.read_text(encoding="utf-8") == capsys.readouterr().out == report.markdown(document)
    assert plot.read_text(encoding="utf-8") == roofline.svg(document)
    assert table.read_text(encoding="utf-8").startswith("NVIDIA H200, driver 580.1, torch 2.11, CUDA 13.0, cuDNN 91900; one run, medians of 3 rounds")


@pytest.mark.parametrize("content, message", (("{", "cannot be read"), ('{"schema_version": 1}', "schema_version is 1"), ("[]", "is None")))
def test_other_files_are_refused(tmp_path, capsys, content, message):
    source = tmp_path / "results.json"
    source.write_text(content, encoding="utf-8")
    assert kernels.main(["--from", str(source)]) == 2
    assert message in capsys.readouterr().err


def test_a_case_that_does_not_exist_is_refused(capsys):
    assert kernels.main(["--cases", "d999*"]) == 2
    assert "no case matches 'd999*'" in capsys.readouterr().err


def test_labels_come_from_the_families():
    assert kernels.label_of(["hopper", "hopper"], {}) == "hopper"
    assert kernels.label_of(["ampere", "hopper"], {}) == "mixed"
    assert kernels.label_of(["hopper"], {"hopper": 1, "hopper2": 2}) == "hopper3"


def test_a_whole_run_writes_its_files(monkeypatch, tmp_path, bundle_path, capsys):
    """Only the contenders and the device are made up: a real bundle is opened, and is named by the family of its kernels."""
    sm = fmhaforge.open(bundle_path).metadata.rows[0].sm
    family = {row.family for row in fmhaforge.open(bundle_path).metadata.rows if row.sm == sm}.pop()
    bench = Bench(monkeypatch, {(DENSE, label): speed for label, speed in ((family, 600.0), ("old", 400.0), ("cudnn", 500.0))})
    monkeypatch.setattr(contenders, "ours", lambda torch, bundle, case, tensors, **options: (bench.make(case, labels.pop(0)), family))
    labels = [family, "old"]
    bench.clock.__version__, bench.clock.version = "2.11", SimpleNamespace(cuda="13.0")
    bench.clock.backends = SimpleNamespace(cudnn=SimpleNamespace(version=lambda: 91900))
    bench.clock.cuda.current_device = lambda: 0
    bench.clock.cuda.get_device_properties = lambda device: SimpleNamespace(name="a GPU", major=sm // 10, minor=sm % 10, multi_processor_count=132)
    monkeypatch.setattr(kernels, "torch_with_device", lambda: bench.clock)
    out = tmp_path / "new" / "results.json"
    arguments = ["--bundle", str(bundle_path), "--against", f"old={bundle_path}", "--cases", DENSE, "--rounds", "4", "--out", str(out),
                 "--plot", str(tmp_path / "p.svg")]
    assert kernels.main(arguments) == 0
    document = json.loads(out.read_text(encoding="utf-8"))
    assert capsys.readouterr().out == report.markdown(document) and (tmp_path / "p.svg").read_text(encoding="utf-8") == roofline.svg(document)
    assert [series["label"] for series in document["series"]] == [family, "old"] and document["rounds"] == 4
    assert document["device"] | {"driver": None} == {
        "name": "a GPU", "sm": sm, "sm_count": 132, "driver": None, "torch": "2.11", "cuda": "13.0", "cudnn": 91900}
    assert {name: result.get("tflops") for name, result in document["cases"][0]["results"].items()} == {
        family: 600.0, "old": 400.0, "flash": None, "cudnn": 500.0}


def test_a_label_is_taken_once(bundle_path):
    with pytest.raises(BenchError, match="the label 'mine' is taken"):
        kernels.open_bundles([f"mine={bundle_path}", f"mine={bundle_path}"], 80)
    with pytest.raises(BenchError, match="the label 'flash' is taken"):
        kernels.open_bundles([f"flash={bundle_path}"], 80)


def test_a_bundle_that_cannot_be_opened_is_one_line(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(kernels, "torch_with_device", lambda: None)
    monkeypatch.setattr(kernels, "device_of", lambda torch: ({"sm": 90}, Watch(None)))
    assert kernels.main(["--bundle", str(tmp_path / "none")]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
