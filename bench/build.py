# SPDX-License-Identifier: Apache-2.0
"""What a build costs: cold, with nothing to do, restored from the cache, after editing one variant, with one SM more.

    .venv/bin/python bench/build.py [--arguments "variants=fmha_v2_d64*"] [--out bench/results/build.json]

Works on a copy of the tree, so neither the tree nor its build folder is touched. Prints a table, writes JSON, and exits 1 when a limit for
two cores is passed (limits hold for the full matrix; with --arguments they are shown only).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from generator.tables import table  # noqa: E402 - the tree is put on the path first

COPIED = ("SConstruct", "LICENSE", "requirements.lock", "variants.yaml", "generator", "runtime", "tests/device/ledger.json")
EDITED_VARIANT = "fmha_v2_d64_small"
ADDED_SM = 121
EDITS = 3
"""How often the variant is edited, and edited back: other work on the machine disturbs a build of seconds. The least of them counts."""


@dataclass(frozen=True)
class Cost:
    """One build: wall and CPU seconds of the whole process tree, most resident bytes at a time, tasks by action."""

    name: str
    wall_seconds: float
    cpu_seconds: float
    peak_bytes: int
    tasks: dict[str, int]
    limit: str
    within: bool


class PeakMemory(threading.Thread):
    """Samples how much memory a process and everything it started hold."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.pid = pid
        self.peak = 0
        self.done = threading.Event()

    def run(self) -> None:
        """Samples until `done` is set."""
        while not self.done.wait(0.1):
            self.peak = max(self.peak, resident_bytes(self.pid))


def resident_bytes(pid: int) -> int:
    """Resident bytes of a process and its descendants; shared pages count once a process."""
    page = os.sysconf("SC_PAGE_SIZE")
    parents: dict[int, list[tuple[int, int]]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # it ended meanwhile
            parents.setdefault(int(fields[1]), []).append((int(entry.name), int(fields[21]) * page))
    total, waiting = 0, [pid]
    while waiting:
        for child, size in parents.get(waiting.pop(), ()):
            total += size
            waiting.append(child)
    return total


class Bench:
    """A copy of the tree and the builds that are made in it."""

    def __init__(self, folder: Path, arguments: list[str]) -> None:
        self.folder = folder
        self.arguments = arguments
        self.costs: list[Cost] = []
        for name in COPIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
            elif source.exists():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, folder / name)

    def scons(self, *arguments: str) -> tuple[float, float, int]:
        """Runs the build: wall seconds, CPU seconds, peak bytes. Raises SystemExit with its output when it fails."""
        command = [sys.executable, "-m", "SCons", "-Q", "allow_unvalidated=1", *self.arguments, *arguments]  # of two values for an option, the last holds
        report = self.folder / "build/report.json"
        report.unlink(missing_ok=True)
        started = time.monotonic()
        with tempfile.TemporaryFile() as output:
            process = subprocess.Popen(command, cwd=self.folder, stdout=output, stderr=output, stdin=subprocess.DEVNULL)
            memory = PeakMemory(os.getpid())
            memory.start()
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            wall = time.monotonic() - started
            memory.done.set()
            memory.join()
            if process.returncode:
                output.seek(0)
                raise SystemExit(f"{shlex.join(command)} failed with status {process.returncode}:\n{output.read().decode('utf-8', 'replace')[-4000:]}")
        return wall, usage.ru_utime + usage.ru_stime, memory.peak

    def sms(self) -> list[int]:
        """The SMs that the bundle was built for."""
        document = next((self.folder / "dist").glob("*/metadata.json")).read_bytes()
        return sorted({row["sm"] for row in json.loads(document)["rows"]})

    def report(self) -> dict:
        """The build's own report; empty when it did nothing."""
        try:
            return json.loads((self.folder / "build/report.json").read_bytes())
        except FileNotFoundError:
            return {"actions": {}, "tasks": []}

    def measure(self, name: str, arguments: tuple[str, ...], limit: str, quantity: str, most: float) -> None:
        """Runs a build and keeps its cost; it is within its limit when `quantity` (wall or cpu) is at most `most` seconds."""
        wall, cpu, peak = self.scons(*arguments)
        report = self.report()
        if quantity == "own":  # wall time less that of the longest chain of tasks that the edit itself asks for
            own = own_compile_seconds(report)
            limit, value = f"{limit} (own {own:.1f} s)", wall - own
        else:
            value = wall if quantity == "wall" else cpu
        tasks = {action: int(sums["tasks"]) for action, sums in sorted(report["actions"].items())}
        self.costs.append(Cost(name, round(wall, 2), round(cpu, 2), peak, tasks, limit, value <= most))
        print(f"{name}: {wall:.1f} s wall, {cpu:.1f} s CPU", file=sys.stderr, flush=True)


def own_compile_seconds(report: dict) -> float:
    """From the start of the first to the end of the last task that traces or assembles."""
    tasks = [task for task in report["tasks"] if task["action"] in ("trace", "assemble")]
    return max((task["start"] + task["seconds"] for task in tasks), default=0.0) - min((task["start"] for task in tasks), default=0.0)


def edit_variant(path: Path, name: str, back: bool) -> None:
    """Doubles the query tile of a variant, and its warps, in a copy of the manifest, or takes that back: what a warp does stays."""
    text = path.read_text(encoding="utf-8")
    start = text.index(f"name: {name},")
    before, after = "tile: {m: 64, n: 64, warps: 4}", "tile: {m: 128, n: 64, warps: 8}"
    if back:
        before, after = after, before
    place = text.index(before, start)
    path.write_text(text[:place] + after + text[place + len(before):], encoding="utf-8")


def run(arguments: list[str]) -> list[Cost]:
    """All measurements, in a temporary copy of the tree."""
    with tempfile.TemporaryDirectory(prefix="bench-build-") as folder:
        bench = Bench(Path(folder) / "tree", arguments)
        cache = f"cache={folder}/cache"
        bench.measure("full matrix, cold", (cache,), "CPU <= 400 s", "cpu", 400)
        bench.measure("nothing to do", (cache,), "wall <= 1.5 s", "wall", 1.5)
        bench.scons("-c", cache)
        bench.measure("restored after scons -c", (cache,), "wall <= 10 s", "wall", 10)
        bench.scons("sm=" + ",".join(str(sm) for sm in bench.sms() if sm != ADDED_SM))
        shutil.rmtree(bench.folder / f"build/cubins/sm_{ADDED_SM}", ignore_errors=True)
        bench.measure("one SM more", (), "CPU <= 45 s", "cpu", 45)
        for turn in range(EDITS):
            edit_variant(bench.folder / "variants.yaml", EDITED_VARIANT, back=turn % 2 == 1)
            bench.measure(f"{EDITED_VARIANT} edited, {turn + 1} of {EDITS}", (), "wall <= own compile + 2 s", "own", 2)
        return bench.costs


def main() -> int:
    """Measures, prints and writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arguments", default="", help="options of the build, such as \"sm=90 variants=fmha_v2_d64*\"")
    parser.add_argument("--out", default=str(ROOT / "bench/results/build.json"), help="where the JSON goes")
    options = parser.parse_args()
    arguments = shlex.split(options.arguments)
    costs = run(arguments)
    print(table(("build", "wall s", "CPU s", "peak MB", "tasks", "limit", "within"),
                [(cost.name, f"{cost.wall_seconds:.2f}", f"{cost.cpu_seconds:.2f}", cost.peak_bytes >> 20,
                  ", ".join(f"{count} {action}" for action, count in cost.tasks.items()) or "none", cost.limit, "yes" if cost.within else "NO") for cost in costs]))
    out = Path(options.out)
    out.parent.mkdir(parents=True, exist_ok=True)
    document = {"machine": {"cores": len(os.sched_getaffinity(0)), "python": platform.python_version(), "processor": processor()},
                "arguments": arguments, "builds": [asdict(cost) for cost in costs]}
    out.write_text(json.dumps(document, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    edits = [cost for cost in costs if cost.name.startswith(EDITED_VARIANT)]
    return 0 if arguments or all(cost.within for cost in costs if cost not in edits) and any(cost.within for cost in edits) else 1


def processor() -> str:
    """The processor's name."""
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


if __name__ == "__main__":
    sys.exit(main())
