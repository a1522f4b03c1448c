# SPDX-License-Identifier: Apache-2.0
"""The names under which people know the arguments of the ABI."""

from __future__ import annotations

_PUBLIC = {"batch": "batch_size", "seqlen_kv": "kv_seqlen", "kv_pool": "paged_kv_pool", "page_list": "kv_cache_page_list",
           "max_pages": "max_pages_per_seq", "total_seqlen_q": "total_q_seqlen", "max_seqlen_q": "max_q_seqlen"}


def public_name(name: str) -> str:
    """The name under which the runner's functions know the ABI argument `name`."""
    return _PUBLIC.get(name, name)
