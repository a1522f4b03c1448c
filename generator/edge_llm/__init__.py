# SPDX-License-Identifier: Apache-2.0
"""Artifacts that TensorRT Edge-LLM's own build consumes: its headers, archive, metadata and tarballs, on top of our C ABI.

`abi` holds the wrappers' argument lists as data, `matrix` which artifacts exist, `headers` and `objects` make the parts, `artifact`
puts them together.
"""

from generator.edge_llm.artifact import Artifact, Builder
from generator.edge_llm.matrix import MULTI_SM, Combination, combinations

__all__ = ["MULTI_SM", "Artifact", "Builder", "Combination", "combinations"]
