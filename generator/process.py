# SPDX-License-Identifier: Apache-2.0
"""Runs a tool: in a clean environment, with a time limit, its output kept and its cost measured."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from dataclasses import dataclass
from typing import Mapping, Sequence


@dataclass(frozen=True)
class ToolRun:
    """How a tool ended: exit status (negative: the signal), its output, wall and CPU seconds, peak resident bytes."""

    status: int
    log: str
    timed_out: bool
    seconds: float
    cpu_seconds: float
    peak_bytes: int


def run(command: Sequence[str], folder: str, environment: Mapping[str, str], time_limit_s: float) -> ToolRun:
    """Runs `command` in `folder` with exactly `environment`. Over the limit, it is killed with all that it started.

    Raises OSError when the tool cannot be started. Leaves the output in the file `log` of the folder.
    """
    started = time.monotonic()
    log_path = os.path.join(folder, "log")
    with open(log_path, "wb") as log:
        process = subprocess.Popen(command, cwd=folder, env=dict(environment), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                   start_new_session=True)
    expired = threading.Event()

    def expire() -> None:
        expired.set()
        os.killpg(process.pid, signal.SIGKILL)

    timer = threading.Timer(time_limit_s, expire)
    timer.daemon = True
    timer.start()
    try:
        _, status, usage = os.wait4(process.pid, 0)
    finally:
        timer.cancel()
    process.returncode = os.waitstatus_to_exitcode(status)
    with open(log_path, "rb") as log:
        text = log.read().decode("utf-8", "replace")
    return ToolRun(process.returncode, text, expired.is_set() and process.returncode == -signal.SIGKILL, time.monotonic() - started,
                   usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024)
