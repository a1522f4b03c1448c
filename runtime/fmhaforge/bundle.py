# SPDX-License-Identifier: Apache-2.0
"""A bundle on disk: opened read-only, its metadata verified at once, its other files when they are needed."""

from __future__ import annotations

import hashlib
import io
import os
import platform
import stat
import threading
from collections.abc import Callable
from pathlib import Path

from . import driver as driver_module
from . import query as query_module
from . import request as requests
from .clib import CLibrary, library_file
from .driver import Driver
from .dtypes import MaskType
from .errors import ArgumentError, BundleError, BundleNotFoundError, IntegrityError
from .library_runner import LibraryRunner
from .loader import Loader
from .metadata import Metadata, parse
from .query import Query, Support, Verdict
from .runner import Runner

METADATA = "metadata.json"
CHECKSUMS = "SHA256SUMS"


class Bundle:
    """An opened bundle. Answers queries without a driver; makes runners that load its kernels. Thread-safe."""

    def __init__(self, path: Path, metadata: Metadata, checksums: dict[str, str], driver: Driver | None = None):
        self.path = path
        self.metadata = metadata
        self.checksums = checksums
        self._driver = driver
        self._loader: Loader | None = None
        self._library: CLibrary | None = None
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"<fmhaforge.Bundle {self.path} {self.metadata.name} {self.metadata.version}, {len(self.metadata.rows)} rows>"

    # -- queries ------------------------------------------------------------------------------------------------------------

    def can_implement(self, num_q_heads: int, num_kv_heads: int, head_size: int, sm: int, dtype: object,
                      mask: MaskType | str) -> Support:
        """Whether dense attention of this shape is served on SM `sm` (such as 87), and if not, why.

        `dtype` is a name or a numpy, torch or cupy dtype; `mask` a MaskType or its name. The answer is true exactly when load
        and launch would succeed. Raises ArgumentError when an argument has the wrong type.
        """
        dense = tuple(name for name, operation in self.metadata.operations.items() if operation.kv_layout == "dense")
        return self._can(dense, head_size, sm, dtype, mask, num_q_heads=num_q_heads, num_kv_heads=num_kv_heads)

    def can_implement_paged(self, num_q_heads: int, num_kv_heads: int, head_size: int, sm: int, dtype: object,
                            mask: MaskType | str) -> Support:
        """Like `can_implement`, for `Runner.run_paged`."""
        return self._can(("paged",), head_size, sm, dtype, mask, num_q_heads=num_q_heads, num_kv_heads=num_kv_heads)

    def can_implement_paged_ragged(self, num_q_heads: int, num_kv_heads: int, head_size: int, sm: int, dtype: object,
                                   mask: MaskType | str) -> Support:
        """Like `can_implement`, for `Runner.run_paged_ragged`."""
        return self._can(("paged_ragged",), head_size, sm, dtype, mask, num_q_heads=num_q_heads, num_kv_heads=num_kv_heads)

    def can_implement_vit(self, head_size: int, sm: int, dtype: object) -> Support:
        """Like `can_implement`, for `Runner.run_vit`. Head counts are examined when it runs."""
        return self._can(("vit",), head_size, sm, dtype, MaskType.BIDIRECTIONAL)

    def query(self, request: Query) -> Support:
        """The answer to any request. Raises ArgumentError for one that has values of wrong types, or names that do not exist."""
        return query_module.select(self.metadata, requests.checked(self.metadata, request))

    def explain(self, request: Query) -> tuple[Verdict, ...]:
        """What becomes of each variant for a request. Raises what `query` raises."""
        return query_module.explain(self.metadata, requests.checked(self.metadata, request))

    def _can(self, operations: tuple[str, ...], head_size: object, sm: object, dtype: object, mask: object, **heads: object) -> Support:
        for name, value in {"mask": mask, **heads}.items():
            if value is None:
                raise ArgumentError(name, "is None; it must be known here, `query` answers requests that leave it open")
        return self.query(requests.request(operations, head_size, sm, dtype, mask, heads))

    # -- running ------------------------------------------------------------------------------------------------------------

    @property
    def driver(self) -> Driver:
        """The driver that this bundle loads through."""
        return self._driver or driver_module.default()

    @property
    def loader(self) -> Loader:
        """The kernels of this bundle that are loaded."""
        with self._lock:
            if self._loader is None:
                self._loader = Loader(self.driver, self.read)
            return self._loader

    def runner(self, num_q_heads: int, num_kv_heads: int, head_dim: int, batch_size: int = 0, seqlen_q: int = 0, kv_seqlen: int = 0,
               use_small_d64: bool = True, device: int | None = None, *, library: bool = False, **options: object) -> Runner:
        """A runner for one attention shape; sizes of 0 are taken from the tensors.

        `device` is a CUDA ordinal; None means the device of the stream, or the current one. `library=True` gives a LibraryRunner,
        which launches through the bundle's C library and can prepare launches. Options for validation:
        `route="driver-ptx"` has the driver assemble the row's PTX instead of loading its cubin, `row_sm=80` and
        `family="ampere"` restrict the rows, `checked=True` takes the checked variants. Raises ArgumentError.
        """
        kind = LibraryRunner if library else Runner
        return kind(self, num_q_heads, num_kv_heads, head_dim, batch_size, seqlen_q, kv_seqlen, use_small_d64, device,
                    **options)  # type: ignore[arg-type]

    @property
    def library(self) -> CLibrary:
        """The bundle's C library for this machine, verified and opened once. Raises BundleError or CLibraryError."""
        with self._lock:
            if self._library is None:
                self._library = self._open_library()
            return self._library

    def _open_library(self) -> CLibrary:
        name = library_file()
        if name not in self.checksums:
            raise BundleError(self.path, f"has no {name}; build the bundle with hosts={platform.machine()}")
        self.read(name, self.checksums[name])
        try:
            return CLibrary(self.path / name)
        except OSError as error:
            raise BundleError(self.path / name, f"cannot be opened ({error}); fetch the bundle again") from error

    def unload(self) -> None:
        """Unloads the kernels loaded so far. No launch or graph may be using them; later calls load them again."""
        self.loader.unload()

    # -- files --------------------------------------------------------------------------------------------------------------

    def read(self, name: str, sha256: str) -> bytes:
        """The bytes of a file of the bundle, whose digest must be `sha256`. Raises IntegrityError."""
        return _verified(self.path, name, sha256)


def open(path: str | os.PathLike, driver: Driver | None = None) -> Bundle:  # noqa: A001 - the word of the domain
    """Opens the bundle in the folder `path` and verifies its metadata. Needs no driver and writes nothing.

    `driver` replaces the CUDA driver, for tests. Raises BundleNotFoundError, SchemaError or IntegrityError naming the file, and ArgumentError
    when `path` is no path.
    """
    if isinstance(path, bytes) or not isinstance(path, (str, os.PathLike)):
        raise ArgumentError("path", f"must be the folder of a bundle, not {path!r}")
    folder = Path(path)
    if not _is(folder, stat.S_ISDIR):
        remedy = "unpack the archive first" if _is(folder, stat.S_ISREG) else "build one with `make bundle`, or give the folder of a bundle"
        raise BundleNotFoundError(folder, f"is no folder; {remedy}")
    if not _is(folder / METADATA, stat.S_ISREG):
        raise BundleNotFoundError(folder, f"holds no {METADATA}; give the folder fmhaforge-<version> of a bundle")
    checksums = read_checksums(folder)
    if METADATA not in checksums:
        raise IntegrityError(folder / CHECKSUMS, f"does not list {METADATA}; fetch the bundle again")
    data = _verified(folder, METADATA, checksums[METADATA])
    return Bundle(folder, parse(data, folder / METADATA), checksums, driver)


def _is(path: Path, kind: Callable[[int], bool]) -> bool:
    """Whether a path leads to something of a kind. Raises BundleNotFoundError when that cannot be found out."""
    try:
        return kind(path.stat().st_mode)
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return False
    except OSError as error:
        raise BundleNotFoundError(path, f"cannot be looked at: {error.strerror}; check the path and its permissions") from error


def read_checksums(folder: Path) -> dict[str, str]:
    """The digests of SHA256SUMS by file name, in the form that `sha256sum` writes. Raises IntegrityError."""
    path = folder / CHECKSUMS
    checksums: dict[str, str] = {}
    for number, line in enumerate(read_file(path).decode("utf-8", "replace").splitlines(), 1):
        digest, separator, name = line.partition("  ")
        if not separator or len(digest) != 64 or set(digest) - set("0123456789abcdef"):
            raise IntegrityError(path, f"line {number} is not '<sha256>  <file>'; fetch the bundle again")
        if name in checksums:
            raise IntegrityError(path, f"line {number} lists {name} twice; fetch the bundle again")
        checksums[name] = digest
    return checksums


def _verified(folder: Path, name: str, sha256: str) -> bytes:
    path = folder / name
    data = read_file(path)
    found = hashlib.sha256(data).hexdigest()
    if found != sha256:
        raise IntegrityError(path, f"has SHA-256 {found}, recorded is {sha256}; fetch the bundle again")
    return data


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)  # a named pipe that nobody writes to would be waited for


def read_file(path: Path) -> bytes:
    """The bytes of a file. Raises IntegrityError or BundleError."""
    try:
        with io.open(path, "rb", opener=_without_waiting) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise IntegrityError(path, "is no regular file; fetch the bundle again")
            return file.read()
    except FileNotFoundError:
        raise IntegrityError(path, "is missing; fetch the bundle again") from None
    except IsADirectoryError:
        raise IntegrityError(path, "is a folder; fetch the bundle again") from None
    except OSError as error:
        raise BundleError(path, f"cannot be read: {error.strerror}; check the path and its permissions") from error
