# SPDX-License-Identifier: Apache-2.0
"""Everything the runtime raises on purpose. Each message names the place and the remedy.

::

    FmhaForgeError
    |-- BundleError              the files of a bundle
    |   |-- BundleNotFoundError
    |   |-- SchemaError          metadata that this runtime cannot read
    |   `-- IntegrityError       a file differs from its recorded digest or content
    |-- UnsupportedError         no row serves the request; `.support` says why
    |-- ArgumentError            an argument breaks a precondition; `.argument` names it (also a ValueError)
    |   |-- DtypeError
    |   |-- ShapeError
    |   |-- StrideError
    |   |-- AlignmentError
    |   |-- DeviceError          memory or stream of another device
    |   `-- ReadOnlyError
    |-- DriverMissingError       cuda.bindings or libcuda cannot be loaded
    |-- DriverError              a driver call failed; `.call`, `.code`, `.status`
    |-- ForkedError              the driver was initialised before fork(), and is used in the child
    |-- CLibraryError            a call into the bundle's C library failed; `.call`, `.status`, `.reason`
    |-- FaultReported            a checked kernel met a wrong page id or length; `.kind`, `.batch`, `.entry`, `.value`
    `-- LoadError                a cubin cannot be made ready
        |-- EmptyLibraryError    it loaded, but holds no kernel
        `-- CaptureError         a first load, or a checked launch, during stream capture

All of them survive pickling, so that a process pool can hand them on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .query import Support


class FmhaForgeError(Exception):
    """Base of everything this package raises on purpose."""

    def __reduce__(self) -> tuple:
        return _remade, (type(self), self.args, self.__dict__)


def _remade(kind: type[FmhaForgeError], arguments: tuple, attributes: dict) -> FmhaForgeError:
    """An error as it was pickled: its message and attributes, without another call of its constructor."""
    error = kind.__new__(kind)
    error.args = arguments
    error.__dict__.update(attributes)
    return error


class BundleError(FmhaForgeError):
    """Something is wrong with the files of a bundle. `path` is the file, `reason` what and the remedy."""

    def __init__(self, path: object, reason: str):
        super().__init__(f"{path}: {reason}")
        self.path = str(path)
        self.reason = reason


class BundleNotFoundError(BundleError):
    """There is no bundle at the path."""


class SchemaError(BundleError):
    """`metadata.json` cannot be read by this runtime; `reason` names the field."""


class IntegrityError(BundleError):
    """A file of the bundle is missing or is not what the metadata says."""


class UnsupportedError(FmhaForgeError):
    """No row of the bundle serves the request. `support` is the falsy answer with its reason and nearest rows."""

    def __init__(self, support: Support):
        super().__init__(support.reason)
        self.support = support
        self.reason = support.reason


class ArgumentError(FmhaForgeError, ValueError):
    """The argument `argument` breaks a precondition; `reason` says which and what to do."""

    def __init__(self, argument: str, reason: str):
        super().__init__(f"{argument}: {reason}")
        self.argument = argument
        self.reason = reason


class DtypeError(ArgumentError):
    """A tensor has another element type than the row."""


class ShapeError(ArgumentError):
    """A tensor has the wrong rank or extents."""


class StrideError(ArgumentError):
    """A tensor is laid out in a way that the kernels cannot address."""


class AlignmentError(ArgumentError):
    """A base address or a stride is not a multiple of 16 bytes."""


class DeviceError(ArgumentError):
    """Memory or a stream belongs to another device than the runner, or to none."""


class ReadOnlyError(ArgumentError):
    """The output cannot be written."""


class DriverMissingError(FmhaForgeError):
    """The CUDA driver or its Python bindings cannot be loaded."""


class DriverError(FmhaForgeError):
    """The driver call `call` failed with `status` (such as CUDA_ERROR_INVALID_VALUE, number `code`)."""

    def __init__(self, call: str, code: int, status: str, detail: str = ""):
        super().__init__(f"{call} failed: {status} ({code})" + (f"; {detail}" if detail else ""))
        self.call = call
        self.code = code
        self.status = status


class CLibraryError(FmhaForgeError):
    """A call into the C library failed. `status` is a word of `clib.STATUSES`, `reason` the library's sentence."""

    def __init__(self, call: str, status: str, reason: str):
        super().__init__(f"{call}: {reason}")
        self.call = call
        self.status = status
        self.reason = reason


class ForkedError(FmhaForgeError):
    """The process forked after the driver had been initialised; a CUDA context does not survive fork()."""


class LoadError(FmhaForgeError):
    """The row `row` cannot be made ready on a device; `reason` says why and what to do."""

    def __init__(self, row: str, reason: str):
        super().__init__(f"{row}: {reason}")
        self.row = row
        self.reason = reason


class EmptyLibraryError(LoadError):
    """The driver accepted the cubin but found no kernel in it: it was built for another device."""


class CaptureError(LoadError):
    """A first load, or a launch that has to be waited for, was asked for while the stream captures a graph."""


class FaultReported(FmhaForgeError):
    """A checked kernel met a page id or a length on the device that would have led it astray; nothing wild was read or written.

    `kind` is `k-page`, `v-page`, `kv-length` or `q-length`, `argument` the tensor that holds the fault, `batch` the batch entry,
    `entry` the place in its page list (0 for lengths) and `value` the id or length found there. `row` is the row that ran,
    `reason` says all that in words, with the limits.
    """

    def __init__(self, row: str, kind: str, argument: str | None, batch: int, entry: int, value: int, reason: str):
        super().__init__(f"{row}: {reason}")
        self.row = row
        self.kind = kind
        self.argument = argument
        self.batch = batch
        self.entry = entry
        self.value = value
        self.reason = reason
