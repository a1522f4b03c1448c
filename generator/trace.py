# SPDX-License-Identifier: Apache-2.0
"""Traces kernels in worker processes: the client's side of `generator.trace_server`.

One server a PTX target, started when the first kernel asks for it. The server sees no GPU and nothing of the caller's settings: its
environment is made here. Safe to call from several threads.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from generator import sources
from generator.assemble import first_useful_line
from generator.tasks import Outcome, TaskFailure, TraceTask, output_digest
from generator.trace_server import CARRIERS

ROOT = Path(__file__).resolve().parent.parent

#: Settings of the caller that Python itself may need; all others stay outside.
INHERITED_SETTINGS = ("PATH", "HOME", "LD_LIBRARY_PATH", "SYSTEMROOT")


def server_environment(ptx_target: str, scratch: str) -> dict[str, str]:
    """The whole environment of a trace server: no GPU, the architecture pinned, no caches, nothing that varies between machines."""
    inherited = {name: os.environ[name] for name in INHERITED_SETTINGS if name in os.environ}
    return {**inherited, "CUDA_VISIBLE_DEVICES": "", "CUTE_DSL_ARCH": ptx_target, "CUTE_DSL_DISABLE_FILE_CACHING": "1", "LC_ALL": "C.UTF-8",
            "PYTHONHASHSEED": "0", "PYTHONNOUSERSITE": "1", "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", "TMPDIR": scratch, "TZ": "UTC"}


class TraceServer:
    """A running trace server for one PTX target."""

    def __init__(self, ptx_target: str, scratch: str, command: tuple[str, ...] = ("-m", "generator.trace_server")) -> None:
        self.ptx_target = ptx_target
        self.scratch = tempfile.mkdtemp(prefix=f"trace-{ptx_target}-", dir=scratch)
        self.lock = threading.Lock()
        self.waiting: dict[int, Future] = {}
        self.count = 0
        self.broken: str | None = None
        self.log_path = os.path.join(self.scratch, "server.log")
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen([sys.executable, *command], cwd=self.scratch, env=server_environment(ptx_target, self.scratch),
                                            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, start_new_session=True)
        first = self.process.stdout.readline()
        message = json.loads(first) if first else {"failed": first_useful_line(self.log())}
        if "failed" in message:
            reason = message["failed"]
            self.close()
            raise TaskFailure(f"the toolchain cannot be imported without a GPU or driver: {reason}. Remove .venv and run `make setup`", self.log())
        self.reader = threading.Thread(target=self._read, name=f"trace-{ptx_target}", daemon=True)
        self.reader.start()

    def log(self) -> str:
        """What the server itself printed."""
        try:
            return Path(self.log_path).read_text("utf-8", "replace")
        except OSError:
            return ""

    def _read(self) -> None:
        for line in self.process.stdout:
            reply = json.loads(line)
            with self.lock:
                future = self.waiting.pop(reply["id"], None)
            if future is not None:
                future.set_result(reply)
        with self.lock:
            self.broken = f"the trace server for {self.ptx_target} ended unexpectedly: {first_useful_line(self.log())}"
            left, self.waiting = self.waiting, {}
        for future in left.values():
            future.set_exception(TaskFailure(self.broken, self.log()))

    def request(self, spec: dict[str, Any], plan: dict[str, Any], folder: str, limit_s: float) -> dict[str, Any]:
        """Traces one kernel into `folder` and returns the server's reply. Raises TaskFailure when the server is gone."""
        future: Future = Future()
        with self.lock:
            if self.broken:
                raise TaskFailure(self.broken, self.log())
            self.count += 1
            number = self.count
            self.waiting[number] = future
            line = json.dumps({"id": number, "spec": spec, "plan": plan, "folder": folder, "limit_s": limit_s}) + "\n"
            try:
                self.process.stdin.write(line.encode())
                self.process.stdin.flush()
            except OSError:
                pass  # The reader sees the end of the server and answers for it.
        return future.result()

    def close(self) -> None:
        """Ends the server and what it is tracing, and removes its folder."""
        for pipe in (self.process.stdin, self.process.stdout):
            try:
                pipe.close() if pipe is self.process.stdin else None
            except OSError:
                pass
        try:
            self.process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        shutil.rmtree(self.scratch, ignore_errors=True)


class Tracer:
    """Traces kernels of any PTX target, each in a server for that target."""

    def __init__(self, scratch: str, command: tuple[str, ...] = ("-m", "generator.trace_server")) -> None:
        self.scratch = scratch
        self.command = command
        self.lock = threading.Lock()
        self.servers: dict[str, TraceServer] = {}

    def server(self, ptx_target: str) -> TraceServer:
        """The server for a PTX target, started if there is none or the last one broke."""
        with self.lock:
            found = self.servers.get(ptx_target)
            if found is not None and found.broken:
                found.close()
                found = None
            if found is None:
                os.makedirs(self.scratch, exist_ok=True)
                found = self.servers[ptx_target] = TraceServer(ptx_target, self.scratch, self.command)
            return found

    def run(self, task: TraceTask) -> Outcome:
        """The kernel's PTX as the output `ptx`. Raises TaskFailure with what the kernel printed."""
        server = self.server(task.ptx_target)
        folder = tempfile.mkdtemp(prefix="kernel-", dir=server.scratch)
        try:
            reply = server.request(task.spec, task.plan, folder, task.time_limit_s)
            log = _read_text(folder, "log")
            if reply["status"] == "timeout":
                raise TaskFailure(f"tracing took longer than {task.time_limit_s:g} s (time_limit=SECONDS raises the limit)", log)
            if reply["status"] != "done":
                raise TaskFailure(_failure_line(log, reply), log)
            ptx = Path(folder, "kernel.ptx").read_bytes()
            check_sources(task.roots, json.loads(_read_text(folder, "sources.json")))
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        outputs = {"ptx": ptx}
        return Outcome(outputs, output_digest(outputs), log, reply["seconds"], reply["cpu_seconds"], reply["peak_bytes"])

    def close(self) -> None:
        """Ends all servers."""
        with self.lock:
            for server in self.servers.values():
                server.close()
            self.servers.clear()


def _read_text(folder: str, name: str) -> str:
    try:
        return Path(folder, name).read_text("utf-8", "replace")
    except OSError:
        return ""


def _failure_line(log: str, reply: dict[str, Any]) -> str:
    code = reply["code"]
    if code < 0:
        return f"the tracing process was ended by signal {-code}: {first_useful_line(log)}"
    return first_useful_line(log)


def kernel_sources(roots: tuple[str, ...], root: Path = ROOT) -> tuple[sources.Source, ...]:
    """The sources that a kernel's fingerprint covers, from the modules that trace it."""
    return sources.closure(root, roots, CARRIERS)


def check_sources(roots: tuple[str, ...], imported: dict[str, str], root: Path = ROOT) -> None:
    """Raises TaskFailure unless a kernel's fingerprint covers every file of the tree that it imported (path -> SHA-256), as it was."""
    covered = {source.path: source.digest for source in kernel_sources(roots, root)}
    known = {source.path for source in sources.closure(root, tuple(sorted(CARRIERS)))}
    missed = sorted(path for path in imported if path not in covered and path not in known)
    if missed:
        raise TaskFailure(f"the kernel imported {', '.join(missed)}, which its fingerprint does not cover: import it at the top of a module that "
                          f"{' or '.join(roots)} imports")
    changed = sorted(path for path, digest in imported.items() if covered.get(path, digest) != digest)
    if changed:
        raise TaskFailure(f"{', '.join(changed)} changed while the build ran: build again")
