# SPDX-License-Identifier: Apache-2.0
"""The process that traces kernels: imports the toolchain once, then forks a child for every kernel.

    CUTE_DSL_ARCH=sm_80 CUDA_VISIBLE_DEVICES= python -m generator.trace_server

It reads one JSON request a line and writes one JSON reply a line. A child serves one kernel and ends, so no kernel sees another's modules,
and what a trace leaks ends with it. `generator.trace` is the other side. Requests: {id, spec, plan, folder, limit_s}. The child writes
`kernel.ptx` and `sources.json` into `folder`, and everything that it prints into `log`. Replies: {id, status, seconds, cpu_seconds,
peak_bytes} with status `done`, `failed` or `timeout`; the first line is {"ready": true} or {"failed": reason}.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import sys
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from generator import sources

#: How often the server looks for children that ended or ran out of time.
POLL_S = 0.01

#: Modules that only carry the spec and the plan to the kernel (their content is in the fingerprint by value), and what evaluates the
#: plan's expressions at launch.
CARRIERS = frozenset({"generator.manifest", "generator.model", "generator.plan", "generator.canonical", "generator.sources", "generator.trace_server",
                      "fmhaforge", "fmhaforge.checks", "fmhaforge.expr"})


@dataclass
class Child:
    """One kernel being traced."""

    request: int
    pid: int
    started: float
    deadline: float
    timed_out: bool = False


def imported_sources(root: Path) -> dict[str, str]:
    """The tree's files among the modules that this process has imported: path relative to the root -> SHA-256 (hex).

    Only the tree's own packages: an environment inside the tree holds packages that the fingerprint names by their distributions.
    """
    found = {}
    packages = tuple(root / folder for folder in sources.PACKAGES.values())
    for module in list(sys.modules.values()):
        name = getattr(module, "__file__", None)
        if name:
            path = Path(name)
            if any(path.is_relative_to(package) for package in packages):
                found[path.relative_to(root).as_posix()] = sources.file_digest(path)
    return found


def trace_here(request: dict[str, Any], root: Path) -> None:
    """Traces one kernel in this process and writes `kernel.ptx` and `sources.json` into the request's folder."""
    from generator.kernels import registry
    from generator.manifest import KernelSpec
    from generator.plan import LaunchPlan

    ptx = registry.trace(KernelSpec.from_json(request["spec"]), LaunchPlan.from_json(request["plan"]))
    Path("kernel.ptx").write_bytes(ptx.encode() if isinstance(ptx, str) else ptx)
    Path("sources.json").write_text(json.dumps(imported_sources(root)), encoding="utf-8")


def _in_child(request: dict[str, Any], root: Path) -> None:
    """The life of a child: never returns."""
    status = 1
    try:
        os.setpgid(0, 0)
        os.chdir(request["folder"])
        log = os.open("log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.close(log)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        trace_here(request, root)
        status = 0
    except BaseException:  # The child's only way to speak is its log; it ends here whatever was raised.
        traceback.print_exc()
    finally:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(status)


class Server:
    """Forks a child for each request and reports how it ended."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.children: dict[int, Child] = {}

    def say(self, message: dict[str, Any]) -> None:
        """Writes one line to the client."""
        os.write(self.output, (json.dumps(message) + "\n").encode())

    def start(self, request: dict[str, Any]) -> None:
        """Forks the child that serves one request."""
        now = time.monotonic()
        pid = os.fork()
        if pid == 0:
            _in_child(request, self.root)
        self.children[pid] = Child(request["id"], pid, now, now + request["limit_s"])

    def kill(self, child: Child) -> None:
        """Ends a child and what it started."""
        for end in (os.killpg, os.kill):
            try:
                end(child.pid, signal.SIGKILL)
            except ProcessLookupError:
                continue

    def reap(self) -> None:
        """Reports the children that ended, ends those that ran out of time."""
        now = time.monotonic()
        for child in list(self.children.values()):
            pid, status, usage = os.wait4(child.pid, os.WNOHANG)
            if pid == 0:
                if now > child.deadline and not child.timed_out:
                    child.timed_out = True
                    self.kill(child)
                continue
            del self.children[pid]
            code = os.waitstatus_to_exitcode(status)
            outcome = "timeout" if child.timed_out else "done" if code == 0 else "failed"
            self.say({"id": child.request, "status": outcome, "code": code, "seconds": round(now - child.started, 4),
                      "cpu_seconds": round(usage.ru_utime + usage.ru_stime, 4), "peak_bytes": usage.ru_maxrss * 1024})

    def serve(self) -> None:
        """Serves until the client closes the input."""
        # What a kernel prints must not reach the client: the replies get a descriptor of their own.
        self.output = os.dup(1)
        os.set_inheritable(self.output, False)
        os.dup2(2, 1)
        try:
            import cutlass  # noqa: F401
        except BaseException as error:  # whatever importing a broken toolchain raises, the client must learn it
            self.say({"failed": f"{type(error).__name__}: {error}"})
            return
        self.say({"ready": True})
        pending = b""
        with selectors.DefaultSelector() as selector:
            selector.register(0, selectors.EVENT_READ)
            while True:
                if selector.select(POLL_S if self.children else None):
                    block = os.read(0, 1 << 16)
                    if not block:
                        break
                    *lines, pending = (pending + block).split(b"\n")
                    for line in lines:
                        self.start(json.loads(line))
                self.reap()
        for child in self.children.values():
            self.kill(child)


def main() -> NoReturn:
    """Runs the server on standard input and output."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the client's to handle; it closes our input.
    Server(Path(sources.__file__).resolve().parent.parent).serve()
    sys.stderr.flush()
    os._exit(0)  # taking the toolchain apart would keep the client waiting


if __name__ == "__main__":
    main()
