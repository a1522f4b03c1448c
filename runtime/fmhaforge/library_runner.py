# SPDX-License-Identifier: Apache-2.0
"""A runner that launches through the bundle's C library, and launches prepared once and made many times."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Mapping

from . import layout
from .clib import CLibrary, make_args, pointer_argument
from .cstruct import CheckedStructure
from .driver import Place
from .errors import ArgumentError, CaptureError, CLibraryError, ForkedError, LoadError
from .metadata import Row
from .query import ROUTE_CUBIN
from .runner import Runner
from .streams import stream_handle

_RAISED = {"STREAM_CAPTURING": CaptureError, "LOAD": LoadError, "WRONG_DEVICE": LoadError, "FORKED": ForkedError}


class PreparedLaunch:
    """A checked launch of one row with its arguments; made by `LibraryRunner.prepare`. Calling it enqueues the work.

    `args` is the C argument struct: its fields, such as `args.q` (an address) or `args.seqlen_q`, may be changed between calls. A value that
    the field's C type does not hold raises ArgumentError when it is stored; the library checks all of them again at each call. `stream` may
    be changed as well. The device of the runner must be the current one, and the memory must live until the work is done.
    """

    __slots__ = ("row", "_stream", "_args", "_library", "_preflight", "_launch", "_row_argument", "_args_argument", "_stream_argument")

    def __init__(self, library: CLibrary, row: Row, handle: ctypes._Pointer, args: CheckedStructure, stream: int, preflight: str):
        self.row = row
        self._stream = stream
        self._stream_argument = pointer_argument(stream)
        self._args = args
        self._args_argument = pointer_argument(ctypes.addressof(args))
        self._library = library
        self._preflight = preflight
        self._launch = library.launcher(row.operation)
        self._row_argument = pointer_argument(ctypes.addressof(handle.contents))

    @property
    def stream(self) -> int:
        """The stream that the work goes to, a handle. Stored values are those that `Runner.run` takes. Raises ArgumentError for others."""
        return self._stream

    @stream.setter
    def stream(self, stream: object) -> None:
        self._stream = stream_handle(stream)
        self._stream_argument = pointer_argument(self._stream)

    @property
    def args(self) -> CheckedStructure:
        """The C argument struct. It stays the same one, because its address is what is launched."""
        return self._args

    def __call__(self) -> None:
        """Enqueues the work. Raises CLibraryError (a value that the library refuses, a launch that fails), or LoadError when the row cannot be loaded."""
        status = self._launch(self._row_argument, self._args_argument, self._stream_argument)
        if status:
            _check(self._library, self.row, f"fmhaforge_launch_{self.row.operation}", status, self._preflight)


class LibraryRunner(Runner):
    """A Runner whose loads and launches go through the C library of the bundle; made by `Bundle.runner(..., library=True)`.

    Same functions, checks, rows and results as Runner.
    """

    def __init__(self, bundle, *sizes: object, **options: object):
        super().__init__(bundle, *sizes, **options)  # type: ignore[arg-type]
        if self._route != ROUTE_CUBIN:
            raise ArgumentError("route", f"{self._route!r} does not go through the C library; leave library=True out")
        if self._options["checked"]:
            raise ArgumentError("checked", "the C library holds no checked kernels; leave library=True out")
        self._library: CLibrary = bundle.library
        rows = (row for row in bundle.metadata.rows if not row.checked)
        self._indices = {(row.variant, row.sm): index for index, row in enumerate(rows)}
        self._preparing = threading.local()
        self._handles: dict[tuple[str, int], ctypes._Pointer] = {}

    def prepare(self, function: str, *arguments: object, **named: object) -> PreparedLaunch | None:
        """Checks and loads what `function` ("run", "run_paged", ...) would launch with these arguments, and launches nothing.

        Returns None when there is nothing to launch. Raises what the function raises.
        """
        if not isinstance(function, str) or not function.startswith("run") or not hasattr(Runner, function):
            raise ArgumentError("function", f"{function!r} is no function that launches; use run, run_paged, run_paged_ragged, run_padding, "
                                            "run_vision_block or run_vit")
        self._preparing.launches = []
        try:
            getattr(self, function)(*arguments, **named)
            return self._preparing.launches.pop() if self._preparing.launches else None
        finally:
            del self._preparing.launches

    def _handle(self, row: Row) -> ctypes._Pointer:
        key = row.variant, row.sm
        if key not in self._handles:
            self._handles[key] = self._find(row)
        return self._handles[key]

    def _find(self, row: Row) -> ctypes._Pointer:
        handle = self._library.row(self._indices[row.variant, row.sm])
        if not handle or handle.contents.cubin_sha256.decode() != row.cubin_sha256:
            raise LoadError(row.label, "the C library holds another cubin than the metadata says; fetch the bundle again")
        return handle

    def _ready(self, row: Row, place: Place, stream: int, preflight: str) -> None:
        status = self._library.try_preload(self._handle(row), stream)
        _check(self._library, row, "fmhaforge_preload", status, preflight)

    def _submit(self, row: Row, place: Place, shape: layout.Layout, values: Mapping[str, int | float], stream: int, preflight: str) -> None:
        operation = self._bundle.metadata.operations[row.operation]
        if any(shape.values[name] == 0 for name in row.plan.empty_if_zero):
            return
        launch = PreparedLaunch(self._library, row, self._handle(row), make_args(operation, {**shape.values, **values}), stream, preflight)
        pending = getattr(self._preparing, "launches", None)
        if pending is None:
            launch()  # loads the row if need be
        else:
            self._ready(row, place, stream, preflight)
            pending.append(launch)


def _check(library: CLibrary, row: Row, call: str, status: int, preflight: str) -> None:
    """Raises the runtime's error for the status of a call of the library; `preflight` is the runner's function that loads the row."""
    try:
        library.check(call, status)
    except CLibraryError as error:
        kind = _RAISED.get(error.status)
        if kind is None:
            raise
        hint = f"; call {preflight}(stream) before the capture begins" if kind is CaptureError else ""
        raise kind(row.label, error.reason + hint) from error
