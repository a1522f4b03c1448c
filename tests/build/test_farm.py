# SPDX-License-Identifier: Apache-2.0
"""The build farm: a Dask scheduler and two workers on this machine."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.build.fake_tree import FakeTree

pytest.importorskip("distributed", reason="the package distributed is not installed: run `make setup`")

SLOW = '''

def trace(spec, plan, quick=trace):
    import time
    time.sleep(3)
    return quick(spec, plan)
'''


class Cluster:
    """A scheduler and workers started from a tree."""

    def __init__(self, tree, folder) -> None:
        self.folder = folder
        self.processes = []
        self.start("scheduler", tree, "--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--scheduler-file", str(folder / "scheduler.json"))
        described = folder / "scheduler.json"
        self.wait(lambda: described.exists() and described.read_text().rstrip().endswith("}"))
        self.address = json.loads(described.read_text())["address"]

    def start(self, kind, tree, *arguments):
        """Starts a process of the cluster in a group of its own."""
        log = open(self.folder / f"{kind}-{len(self.processes)}.log", "wb")
        environment = tree.environment(PYTHONPATH=str(tree.folder), DASK_DISTRIBUTED__WORKER__MEMORY__TERMINATE="False")
        process = subprocess.Popen([sys.executable, "-m", f"distributed.cli.dask_{kind}", *arguments], cwd=tree.folder, env=environment, stdout=log,
                                   stderr=log, start_new_session=True)
        self.processes.append(process)
        return process

    def worker(self, tree):
        """Starts one worker of one thread."""
        return self.start("worker", tree, self.address, "--host", "127.0.0.1", "--nthreads", "1", "--no-nanny", "--no-dashboard",
                          "--local-directory", str(self.folder / f"worker-{len(self.processes)}"))

    def wait(self, done, seconds=60):
        """Waits until `done()` holds."""
        deadline = time.monotonic() + seconds
        while not done():
            assert time.monotonic() < deadline, self.logs()
            time.sleep(0.05)

    def logs(self):
        """What the cluster printed."""
        return "\n".join(path.read_text("utf-8", "replace") for path in sorted(self.folder.glob("*.log")))

    def stop(self):
        """Ends everything that was started."""
        for process in self.processes:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()


@pytest.fixture
def cluster(tree, tmp_path):
    """A scheduler without workers."""
    found = Cluster(tree, tmp_path)
    yield found
    found.stop()


def has_children(pid: int) -> bool:
    """Whether a process has started others."""
    return any(path.read_text().strip() for path in Path(f"/proc/{pid}/task").glob("*/children"))


def test_a_worker_killed_in_mid_build_and_the_same_bytes(tree, cluster):
    for name in ("a", "b"):
        tree.append(f"generator/kernels/fake_{name}.py", SLOW)
    tree.good("cubins", "build_dir=local")
    doomed, _ = cluster.worker(tree), cluster.worker(tree)
    build = subprocess.Popen(tree.command("cubins", f"farm={cluster.address}"), cwd=tree.folder, env=tree.environment(), stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT, text=True)
    cluster.wait(lambda: has_children(doomed.pid) or build.poll() is not None)  # its trace server: it is tracing now
    assert build.poll() is None
    os.killpg(doomed.pid, signal.SIGKILL)
    out, _ = build.communicate(timeout=180)
    assert build.returncode == 0, out + cluster.logs()
    assert tree.products() == tree.products("local")
    assert len(tree.products()) == 15


def test_a_worker_with_other_sources_is_refused(tree, cluster):
    cluster.worker(tree)
    tree.append("generator/kernels/fake_shared.py", "# changed after the worker's start\n")
    other = object.__new__(FakeTree)
    other.folder = cluster.folder / "another tree"
    shutil.copytree(tree.folder, other.folder)
    other.append("generator/kernels/fake_shared.py", "# and differently here\n")
    run = other.build("cubins", "-k", f"farm={cluster.address}")
    assert run.status == 2 and "has other sources, packages or Python than this build" in run.out, run.text
    assert other.products() == {}


def test_failures_come_back_with_their_log(tree, cluster):
    cluster.worker(tree)
    tree.append("generator/kernels/fake_b.py", "\n\ndef trace(spec, plan):\n    print('on the worker')\n    raise ValueError('no such tile')\n")
    run = tree.build("cubins", "-k", f"farm={cluster.address}")
    assert run.status == 2 and "ValueError: no such tile" in run.out, run.text
    assert (tree.folder / "build/log/ptx/sm_80/fake_d64_sw.ptx.log").read_text().startswith("on the worker\n")
    assert len(run.tasks("assemble")) == 4


def test_no_scheduler_is_one_clear_error(tree):
    run = tree.build("cubins", "-k", "farm=tcp://127.0.0.1:9")
    assert run.status == 2 and "no Dask scheduler answers at tcp://127.0.0.1:9 within" in run.out, run.text
