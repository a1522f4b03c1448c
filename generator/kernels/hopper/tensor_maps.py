# SPDX-License-Identifier: Apache-2.0
"""A stand-in for a tensor map, so that a kernel which takes one can be traced; the real ones are made at launch from the plan."""
from __future__ import annotations

from cutlass import Float16
from cutlass.experimental.cuda.tensor_map import create_tensor_map_tiled


def placeholder():
    """A tensor map of nothing in particular, to be made inside a traced host function."""
    return create_tensor_map_tiled(0, Float16, [64, 1], [8], [64, 1])
