# SPDX-License-Identifier: Apache-2.0
"""FMHA Forge's runtime: opens a bundle of attention kernels, says what it can do, and runs it.

::

    bundle = fmhaforge.open("dist/fmhaforge-0.1.0")
    bundle.can_implement(32, 8, 128, sm=87, dtype="float16", mask="causal")     # truthy, or falsy with a .reason
    runner = bundle.runner(32, 8, 128)
    runner.preflight_llm(stream)
    runner.run(q, k, v, o, cu_kv_seqlens, stream, attention_scale)

Queries need no driver. Running needs cuda-python and a GPU; tensors come from any library that speaks
`__cuda_array_interface__` or DLPack.
"""

from .bundle import Bundle, open
from .dtypes import INT_MAX, MaskType
from .errors import (AlignmentError, ArgumentError, BundleError, BundleNotFoundError, CaptureError, CLibraryError, DeviceError, DriverError,
                     DriverMissingError, DtypeError, EmptyLibraryError, FaultReported, FmhaForgeError, ForkedError, IntegrityError,
                     LoadError, ReadOnlyError, SchemaError, ShapeError, StrideError, UnsupportedError)
from .query import Query, Support
from .runner import Runner

__all__ = ["INT_MAX", "AlignmentError", "ArgumentError", "Bundle", "BundleError", "BundleNotFoundError", "CLibraryError", "CaptureError",
           "DeviceError", "DriverError", "DriverMissingError", "DtypeError", "EmptyLibraryError", "FaultReported", "FmhaForgeError",
           "ForkedError", "IntegrityError", "LoadError", "MaskType", "Query", "ReadOnlyError", "Runner", "SchemaError", "ShapeError",
           "StrideError", "Support", "UnsupportedError", "open"]
