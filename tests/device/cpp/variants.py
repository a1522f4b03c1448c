# SPDX-License-Identifier: Apache-2.0
"""Writes variants.inc, the C++ program's table of what a bundle holds: VARIANT(name, ABI class, operation, mask, head_dim, seqlen_q).

Usage: python3 variants.py BUNDLE > variants.inc
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

SHORT, LONG = 150, 200
"""Queries of a case: more than one tile, and short enough for float64 on the host. SHORT is for head dimensions from 256."""


def seqlen_q(variant: dict, variants: list[dict]) -> int:
    """A seqlen_q for which the selection rules choose `variant`."""
    if variant["select"]:
        return min(SHORT, variant["select"]["seqlen_q_at_most"])
    fields = ("operation", "mask", "head_dim", "dtype")
    limits = [other["select"]["seqlen_q_at_most"] for other in variants if other["select"] and all(other[field] == variant[field] for field in fields)]
    return max(limits) + 8 if limits else SHORT if variant["head_dim"] >= 256 else LONG


def lines(document: dict) -> list[str]:
    """The table's lines, in the manifest's order, from the content of a bundle's metadata.json."""
    built = {row["variant"] for row in document["rows"] if not row["checked"]}
    variants = [variant for variant in document["variants"] if variant["name"] in built]
    return [f"VARIANT({v['name']}, {v['abi_class']}, {v['operation']}, {v['mask']}, {v['head_dim']}, {seqlen_q(v, variants)})" for v in variants]


if __name__ == "__main__":
    print("\n".join(lines(json.loads((Path(sys.argv[1]) / "metadata.json").read_text(encoding="utf-8")))))
