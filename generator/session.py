# SPDX-License-Identifier: Apache-2.0
"""One run of the build: does the work that SCons asks for, and remembers what happened. SCons itself is not imported here.

Everything that is written goes below the build folder (`ptx/`, `cubins/`, `log/`, `state/`, `tmp/`) and the dist folder.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import threading
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Callable, Iterator

from generator import buildplan, sources
from generator.buildplan import BuildPlan, Cubin, Kernel
from generator.cache import Store
from generator.canonical import write_whole
from generator.explain import Records
from generator.farm import Farm
from generator.options import Options
from generator.progress import Failure, Progress
from generator.tasks import AssembleTask, Outcome, TaskFailure, TraceTask


class Session:
    """The state of one build. Its methods may be called from several threads."""

    def __init__(self, options: Options, plan: BuildPlan, progress: Progress, make_farm: Callable[[str], Farm]) -> None:
        self.options = options
        self.plan = plan
        self.progress = progress
        self.build_dir = Path(options.build_dir).absolute()
        self.scratch = self.build_dir / "tmp"
        self.records = Records(self.build_dir / "state")
        self.store = Store(options.cache) if options.cache else None
        self.parts = tuple(Store(folder) for folder in options.merge or ())
        self.lock = threading.Lock()
        self._make_farm = make_farm
        self._farm: Farm | None = None
        self._farm_failure: TaskFailure | None = None
        self._lock_file = None
        self.products: dict[str, tuple[str, Kernel | Cubin]] = {}
        self._restored: set[str] = set()
        #: Further files that a cache keeps: path relative to the build folder -> what makes its key, or None as long as it has none.
        self.other_keys: dict[str, Callable[[], str | None]] = {}
        for kernel in plan.kernels:
            self.products[kernel.ptx_path] = ("ptx", kernel)
        for cubin in plan.cubins:
            self.products[cubin.path] = ("cubin", cubin)
            self.products[cubin.report_path] = ("report", cubin)

    # --- begin and end -------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Takes the build folder for this process, waiting for another build to end, and removes what a killed build left."""
        self.build_dir.mkdir(parents=True, exist_ok=True)
        self._lock_file = open(self.build_dir / "lock", "ab")
        try:
            fcntl.flock(self._lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.progress.say(f"waiting for another build that uses {self.build_dir} (build_dir=DIR builds beside it)")
            fcntl.flock(self._lock_file, fcntl.LOCK_EX)
        shutil.rmtree(self.scratch, ignore_errors=True)
        shutil.rmtree(self.build_dir / "log", ignore_errors=True)
        self._sweep()

    def _sweep(self) -> None:
        """Removes what variants left behind that are no longer in the manifest."""
        wanted = buildplan.all_products(self.plan.manifest)
        for folder, suffix in (("", ""), ("state", ".json")):
            top = str(self.build_dir / folder)
            for part in ("ptx", "cubins"):
                for place, _, names in os.walk(os.path.join(top, part)):
                    inside = place[len(top) :].lstrip(os.sep)
                    for name in names:
                        if f"{inside}/{name.removesuffix(suffix)}" not in wanted:
                            os.unlink(os.path.join(place, name))

    def end(self) -> None:
        """Ends the farm, trims the cache, removes temporary files and gives the build folder free. May be called twice."""
        with self.lock:
            farm, self._farm = self._farm, None
        if farm is not None:
            farm.close()
        if self.store is not None and self._lock_file is not None:
            self.store.trim(self.options.cache_limit)
        if self._lock_file is not None:
            with suppress(OSError):  # it only saves time
                sources.memory.save(self.build_dir / sources.MEMORY_NAME)
            shutil.rmtree(self.scratch, ignore_errors=True)
            self._lock_file.close()
            self._lock_file = None
        self.progress.end()

    @property
    def farm(self) -> Farm:
        """Where the tasks run; started by the first task. Raises TaskFailure when it cannot be reached."""
        with self.lock:
            if self._farm_failure is not None:
                raise self._farm_failure
            if self._farm is None:
                try:
                    self._farm = self._make_farm(str(self.scratch))
                except TaskFailure as failure:
                    self._farm_failure = failure
                    raise
            return self._farm

    # --- work ----------------------------------------------------------------------------------------------------------

    def trace(self, kernel: Kernel) -> None:
        """Traces a kernel into the build folder. Raises TaskFailure."""
        self._remove(kernel.ptx_path)
        task = TraceTask(f"{kernel.name} {kernel.spec.ptx_target}", kernel.spec.to_json(), kernel.plan.to_json(), kernel.roots, kernel.key,
                         self.options.time_limit)
        outcome = self._run("trace", task, kernel.ptx_path)
        write_whole(self.build_dir / kernel.ptx_path, outcome.outputs["ptx"])
        self._record(kernel.ptx_path)

    def assemble(self, cubin: Cubin) -> None:
        """Assembles a traced kernel for one SM, checks it, and writes cubin and report. Raises TaskFailure."""
        self._remove(cubin.path, cubin.report_path)
        target = cubin.row.target
        task = AssembleTask(cubin.name, self.ptx_of(cubin.kernel), cubin.row.cubin_arch, target.assembler, cubin.kernel.plan.to_json(),
                            target.smem_limit, self.options.allow_spills, cubin.key, self.options.time_limit)
        outcome = self._run("assemble", task, cubin.path)
        write_whole(self.build_dir / cubin.path, outcome.outputs["cubin"])
        write_whole(self.build_dir / cubin.report_path, outcome.outputs["report"])
        self._record(cubin.path)

    def _remove(self, *products: str) -> None:
        """Removes products that are built again, so that a failure leaves none."""
        for product in products:
            (self.build_dir / product).unlink(missing_ok=True)

    def ptx_of(self, kernel: Kernel) -> bytes:
        """The traced PTX in the build folder."""
        return (self.build_dir / kernel.ptx_path).read_bytes()

    def cubin_fingerprint(self, cubin: Cubin) -> dict:
        """The cubin's fingerprint with the hash of its PTX."""
        return {**cubin.fingerprint, "ptx": hashlib.sha256(self.ptx_of(cubin.kernel)).hexdigest()}

    def _run(self, action: str, task: TraceTask | AssembleTask, product: str) -> Outcome:
        if self.options.merge:
            raise self._failed(action, task.name, product, TaskFailure(f"none of the merged parts ({', '.join(self.options.merge)}) holds it: "
                                                                       "build the missing shard from the same commit and tools"))
        ticket = self.progress.start(action, task.name)
        try:
            outcome = self.farm.run(task)
            outcome.check(task.name)
        except TaskFailure as failure:
            self.progress.finish(ticket, "failed")
            raise self._failed(action, task.name, product, failure) from None
        except BaseException:
            self.progress.finish(ticket, "failed")
            raise
        self.progress.finish(ticket, "built", outcome.cpu_seconds, outcome.peak_bytes)
        if outcome.log.strip() and action == "trace":
            self._keep_log(product, outcome.log)
        return outcome

    def _keep_log(self, product: str, text: str) -> str:
        path = self.build_dir / "log" / f"{product}.log"
        write_whole(path, text.encode())
        return str(path)

    def _failed(self, action: str, name: str, product: str, failure: TaskFailure) -> TaskFailure:
        """Enters a failure in the table and keeps its log; returns it for raising."""
        try:
            log_path = self._keep_log(product, failure.log or failure.reason + "\n")
        except OSError as error:
            log_path = f"(no log: {error})"
        self.progress.fail(Failure(action, name, failure.reason, log_path))
        return failure

    @contextmanager
    def step(self, action: str, name: str) -> Iterator[None]:
        """Follows a piece of work that is not a task of the farm."""
        ticket = self.progress.start(action, name)
        status = "failed"
        try:
            yield
            status = "built"
        finally:
            self.progress.finish(ticket, status)

    def broken(self, action: str, name: str, error: Exception) -> None:
        """Enters what stopped the build outside a task (a full disk, a bundle that cannot be written)."""
        self.progress.fail(Failure(action, name, str(error) or type(error).__name__, "-"))

    # --- cache ---------------------------------------------------------------------------------------------------------

    def cache_key(self, product: str) -> str | None:
        """The key of a product (a path relative to the build folder) in a cache, or None for what is not cached."""
        if product in self.other_keys:
            return self.other_keys[product]()
        if product not in self.products:
            return None
        role, made_from = self.products[product]
        parts = [role, made_from.key]
        if isinstance(made_from, Cubin):
            try:
                parts.append(hashlib.sha256(self.ptx_of(made_from.kernel)).hexdigest())
            except OSError:
                return None
        return hashlib.sha256(" ".join(parts).encode()).hexdigest()

    def is_whole(self, product: str) -> bool:
        """Whether a kernel's or cubin's file is in the build folder as it was built from what it would be built from now.

        So a build that was killed, of which SCons remembers nothing, is taken up with everything that it finished.
        """
        if product not in self.products:
            return False
        _, made_from = self.products[product]
        try:
            recorded, fingerprint = self._recorded(made_from)
            digest = self.records.digests(recorded, fingerprint).get(product)
            return digest is not None and hashlib.sha256((self.build_dir / product).read_bytes()).hexdigest() == digest
        except OSError:
            return False

    def _recorded(self, made_from: Kernel | Cubin) -> tuple[str, dict]:
        """Under which product the record of a kernel or cubin is kept, and its fingerprint. Raises OSError when a cubin's PTX is not there."""
        if isinstance(made_from, Kernel):
            return made_from.ptx_path, made_from.fingerprint
        return made_from.path, self.cubin_fingerprint(made_from)

    def restore(self, product: str) -> bool:
        """Takes a product from the merged parts or the cache, if one of them has it whole."""
        key = self.cache_key(product)
        if key is None:
            return False
        for store in (*self.parts, *((self.store,) if self.store else ())):
            content = store.get(key)
            if content is not None:
                ticket = self.progress.start("restore", product)
                write_whole(self.build_dir / product, content)
                self._restored.add(product)
                # What else lies there from an earlier build is not vouched for: the record waits for all files.
                if self._restored.issuperset(self._files_of(product)):
                    self._record(product)
                self.progress.finish(ticket, "restored")
                return True
        return False

    def _record(self, product: str) -> None:
        """Notes what a product is made from, once all of its files are there, for --explain and for a build that takes up a killed one."""
        if product not in self.products:
            return
        _, made_from = self.products[product]
        with suppress(FileNotFoundError):  # the other file of a cubin is still to come
            digests = {path: hashlib.sha256((self.build_dir / path).read_bytes()).hexdigest() for path in self._files_of(product)}
            self.records.write(*self._recorded(made_from), digests)

    def _files_of(self, product: str) -> tuple[str, ...]:
        """A product and what is made together with it: a cubin and its report are."""
        role, made_from = self.products.get(product, ("", None))
        return (made_from.path, made_from.report_path) if role in ("cubin", "report") else (product,)

    def keep(self, product: str) -> None:
        """Puts a product that was just built into the cache."""
        key = self.cache_key(product)
        if key is not None and self.store is not None:
            self.store.put(key, (self.build_dir / product).read_bytes())

    def cached(self, product: str) -> bytes | None:
        """What a cache holds for a product, without restoring it."""
        key = self.cache_key(product)
        for store in (*self.parts, *((self.store,) if self.store else ())):
            content = store.get(key) if key else None
            if content is not None:
                return content
        return None

    # --- explain -------------------------------------------------------------------------------------------------------

    def why(self, product: str) -> list[str]:
        """Why a product is built now, for --explain."""
        _, made_from = self.products[product]
        try:
            recorded, fingerprint = self._recorded(made_from)
            return self.records.why(recorded, os.path.exists(self.build_dir / product), fingerprint)
        except OSError:
            return ["its PTX is built again"]
