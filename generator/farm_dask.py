# SPDX-License-Identifier: Apache-2.0
"""A farm on a Dask cluster: tasks go to its workers, lost workers' tasks go to others, outcomes are checked where they arrive."""

from __future__ import annotations

import threading
import uuid

from generator import farm_worker
from generator.tasks import AssembleTask, Outcome, TaskFailure, TraceTask

CONNECT_TIMEOUT_S = 10


class DaskFarm:
    """Runs tasks on the workers of the scheduler at `address`, such as tcp://scheduler:8786."""

    def __init__(self, address: str) -> None:
        try:
            from distributed import Client
        except ImportError as error:
            raise TaskFailure(f"farm={address} needs the package distributed ({error}): run `make setup`") from None
        try:
            self.client = Client(address, timeout=CONNECT_TIMEOUT_S, set_as_default=False)
        except (OSError, TimeoutError, ValueError) as error:
            raise TaskFailure(f"no Dask scheduler answers at {address} within {CONNECT_TIMEOUT_S} s ({error}); start one, or leave farm= out") from None
        self.address = address
        self.lock = threading.Lock()

    def run(self, task: TraceTask | AssembleTask) -> Outcome:
        """Runs one task on some worker. Raises TaskFailure, also when every worker that took it was lost."""
        from distributed import KilledWorker

        try:
            # A name of its own: an equal task of an earlier build must not hand back an old result.
            future = self.client.submit(farm_worker.run, task, key=f"{task.name}-{uuid.uuid4().hex}", pure=False)
            return future.result()
        except KilledWorker as error:
            raise TaskFailure(f"the workers that took it were lost one after the other: {error}") from None
        except TaskFailure:
            raise
        except Exception as error:  # whatever Dask raises (a closed scheduler, a cancelled future) fails this task only
            raise TaskFailure(f"the farm at {self.address} did not answer: {type(error).__name__}: {error}") from None

    def close(self) -> None:
        """Leaves the cluster; it goes on running."""
        with self.lock:
            self.client.close()
