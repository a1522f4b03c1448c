# SPDX-License-Identifier: Apache-2.0
"""Options, the bundle under test, and the ledger. Without a device every test here is skipped, with one reason."""

from __future__ import annotations

import datetime
import sys
from dataclasses import replace
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
for folder in (ROOT / "runtime", ROOT):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

from tests.device import ledger  # noqa: E402
from tests.device.choose import wanted  # noqa: E402
from tests.device.lab import Lab  # noqa: E402
from tests.device.subjects import ROUTE_PTX, ROUTES, read_metadata, subjects  # noqa: E402

HERE = Path(__file__).resolve().parent
LEDGER = HERE / "ledger.json"
LOADERS = 8  # kernels that the driver assembles at the same time, a second each


def pytest_addoption(parser):
    group = parser.getgroup("device tests")
    group.addoption("--bundle", help="bundle folder to test (default: the one in dist/)")
    group.addoption("--family", default="*", help="test only kernels of families that match this pattern")
    group.addoption("--variant", default="*", help="test only variants that match this pattern")
    group.addoption("--route", choices=ROUTES, help="test only this way to the device (default: all)")
    group.addoption("--cases", type=int, help="random cases per variant (default: what the ledger asks for)")
    group.addoption("--case", type=int, help="run only the random case of this number")
    group.addoption("--sm", type=int, help="test the rows of this SM (default: the device's)")
    group.addoption("--ledger-out", type=Path, help="write the ledger, this run's results merged in, to this file")
    group.addoption("--keep-old", action="store_true", help="with --ledger-out: keep entries of kernels that are in no row of the whole manifest")


class Setting:
    """What can be tested here: `reason` says why nothing can, or is None."""

    def __init__(self, config):
        self.reason = None
        self.subjects = ()
        self.sm = None
        self.metadata = None
        self.bundle = self._bundle(config.getoption("--bundle", None))
        self.reason = self._missing()
        if self.reason is None:
            import torch

            self.metadata = read_metadata(self.bundle)
            self.sm = int("{}{}".format(*torch.cuda.get_device_capability()))
            patterns = config.getoption("--variant", "*"), config.getoption("--family", "*")
            self.subjects = self._subjects(config.getoption("--sm", None) or self.sm, patterns)

    def _subjects(self, sm, patterns):
        """Rows of another SM than the device's can be tested by way of the driver only."""
        found = subjects(self.metadata, sm, *patterns)
        if sm != self.sm:
            found = tuple(replace(one, routes=(ROUTE_PTX,)) for one in found if one.sm == sm and ROUTE_PTX in one.routes)
        if not found:
            raise pytest.UsageError(f"{self.bundle} has no kernel for SM {sm} that matches --variant and --family and can run here")
        return found

    @staticmethod
    def _bundle(given):
        if given:
            if not (Path(given) / "metadata.json").is_file():
                raise pytest.UsageError(f"--bundle {given}: no metadata.json there; give the folder of a built bundle")
            return Path(given)
        built = sorted((ROOT / "dist").glob("fmhaforge-*/metadata.json"), key=lambda path: path.stat().st_mtime)
        return built[-1].parent if built else None

    def _missing(self):
        try:
            import torch
        except ImportError:
            return "needs a device: torch is not installed here"
        if not torch.cuda.is_available():
            return "needs a device: torch sees no CUDA device here"
        if self.bundle is None:
            return "needs a bundle: run `make bundle` or give --bundle"
        return None


SETTING = pytest.StashKey[Setting]()
LAB = pytest.StashKey[Lab]()
NOTE = pytest.StashKey[str]()
ROWS = pytest.StashKey[object]()


def pytest_configure(config):
    config.stash[SETTING] = setting = Setting(config)
    if config.getoption("--ledger-out", None):
        if setting.reason:
            raise pytest.UsageError(f"--ledger-out: nothing can be tested here: {setting.reason}")
        if hasattr(config, "workerinput"):
            raise pytest.UsageError("--ledger-out needs one process; run without -n")
        config.stash[ROWS] = _manifest_rows()
    config.stash[LAB] = None if setting.reason else _lab(config, setting)


def _manifest_rows():
    """Every row of the manifest, checked ones too; None where PyYAML is missing, which nothing else here needs."""
    try:
        from generator.manifest import load
    except ImportError:
        return None
    return load(ROOT / "variants.yaml").rows(checked=True)


def _lab(config, setting):
    import fmhaforge
    from tests.device.backends import TorchBackend

    route = config.getoption("--route", None)
    return Lab([fmhaforge.open(setting.bundle) for _ in range(LOADERS)], TorchBackend("cuda"), (route,) if route else ROUTES)


def pytest_generate_tests(metafunc):
    if "subject" not in metafunc.fixturenames:
        return
    setting = metafunc.config.stash[SETTING]
    chosen = [one for one in setting.subjects if wanted(metafunc.function, one)]
    metafunc.parametrize("subject", chosen or [None], ids=[one.name for one in chosen] or ["none"])


def pytest_collection_modifyitems(config, items):
    reason = config.stash[SETTING].reason
    for item in items:
        if HERE not in item.path.parents:
            continue
        item.add_marker(pytest.mark.gpu)
        if reason:
            item.add_marker(pytest.mark.skip(reason=reason))
        elif "subject" in getattr(item, "fixturenames", ()) and item.callspec.params["subject"] is None:
            item.add_marker(pytest.mark.skip(reason="no kernel under test is of this kind"))


@pytest.fixture(scope="session")
def _loaded(request):
    lab = request.config.stash[LAB]
    lab.preload(request.config.stash[SETTING].subjects)
    return lab


@pytest.fixture
def lab(_loaded):
    """The open bundle, with every kernel under test loaded."""
    _loaded.touched.clear()
    return _loaded


@pytest.fixture(scope="session")
def bundle(request):
    """The bundle under test."""
    import fmhaforge

    return fmhaforge.open(request.config.stash[SETTING].bundle)


@pytest.fixture(scope="session")
def everyone(request):
    """All subjects of this run."""
    return request.config.stash[SETTING].subjects


@pytest.fixture(scope="session")
def device_sm(request):
    """The SM of the device."""
    return request.config.stash[SETTING].sm


@pytest.fixture(scope="session")
def wanted_cases(request):
    """The numbers of the random cases that --cases or --case ask for, or None."""
    one, count = (request.config.getoption(name, None) for name in ("--case", "--cases"))
    if one is not None:
        return [one]
    return None if count is None else range(count)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    report = (yield).get_result()
    lab = item.config.stash.get(LAB, None)
    if lab is None or not report.failed:
        return
    for subject, route in lab.touched:
        lab.recorder.fail(subject, route, item.name)
    if not lab.alive():
        item.session.shouldstop = f"the device is lost since {item.name}: {call.excinfo.value}"


def pytest_sessionfinish(session):
    lab, out = session.config.stash.get(LAB, None), session.config.getoption("--ledger-out", None)
    if lab is None or out is None:
        return
    setting = session.config.stash[SETTING]
    merged = ledger.merged(ledger.read(LEDGER), lab.recorder.tallies, _machine(setting.sm))
    if not session.config.getoption("--keep-old", False):
        merged, session.config.stash[NOTE] = ledger.without_dead(merged, setting.metadata, session.config.stash[ROWS])
    ledger.write(out, merged)


def _machine(sm):
    import torch
    from cuda.bindings import driver

    version = driver.cuDriverGetVersion()[1]
    try:
        name = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8").split("  ")[1].strip()
    except (OSError, IndexError):
        name = ""
    text = f"{name} (CUDA {version // 1000}.{version % 1000 // 10})".strip()
    return ledger.Machine(sm, torch.cuda.get_device_name(), text, datetime.datetime.now(datetime.timezone.utc).date().isoformat())


def pytest_terminal_summary(terminalreporter, config):
    lab = config.stash.get(LAB, None)
    if lab is None or not lab.recorder.tallies:
        return
    terminalreporter.section("numerics against float64")
    terminalreporter.line(f"{'variant':34} {'family':8} {'route':11} {'cases':>6} {'rel. error':>11} {'violation':>10}  failed")
    for tally in lab.recorder.tallies:
        failed = ", ".join(dict.fromkeys(tally.failed[:3])) + (" ..." if len(tally.failed) > 3 else "")
        terminalreporter.line(
            f"{tally.subject.name:34} {tally.subject.family:8} {tally.route:11} {tally.cases:6} "
            f"{tally.worst_relative_error:11.3e} {tally.worst_violation:10.3f}  {failed or '-'}"
        )
    if NOTE in config.stash:
        terminalreporter.line(f"ledger: {config.stash[NOTE]}")
