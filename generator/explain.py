# SPDX-License-Identifier: Apache-2.0
"""Says why a product is built again: compares the fingerprint it was built with, field by field, with the present one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Iterator, Mapping

from generator.canonical import canonical_json, write_whole


def _flat(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping) and value:
        for key in value:
            yield from _flat(value[key], f"{path}, {key}" if path else str(key))
    else:
        yield path, value


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True)
    return text if len(text) <= 60 else f"{text[:57]}..."


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What differs between two fingerprints, one line a field: `spec, tile, m: 64 -> 128`."""
    old, new = dict(_flat(before)), dict(_flat(now))
    lines = []
    for field in sorted(old.keys() | new.keys()):
        if field not in old:
            lines.append(f"{field}: new ({_short(new[field])})")
        elif field not in new:
            lines.append(f"{field}: gone (was {_short(old[field])})")
        elif old[field] != new[field]:
            lines.append(f"{field}: {_short(old[field])} -> {_short(new[field])}")
    return lines


class Records:
    """The fingerprints that products were built with, and the digests of their files, kept as files in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def _path(self, product: str) -> Path:
        return self.folder / f"{product}.json"

    def write(self, product: str, fingerprint: Mapping[str, Any], digests: Mapping[str, str]) -> None:
        """Keeps the fingerprint that `product` (a path relative to the build folder) was just built with, and the digests of its files."""
        write_whole(self._path(product), canonical_json({"fingerprint": fingerprint, "files": digests}))

    def digests(self, product: str, fingerprint: Mapping[str, Any]) -> Mapping[str, str]:
        """The digests of the files of `product` when it was built with this fingerprint, by path; empty when it was not."""
        record = self._read(product)
        return record["files"] if record is not None and record["fingerprint"] == json.loads(json.dumps(fingerprint)) else {}

    def _read(self, product: str) -> dict[str, Any] | None:
        try:
            record = json.loads(self._path(product).read_bytes())
            return record if isinstance(record, dict) and isinstance(record["files"], dict) and isinstance(record["fingerprint"], dict) else None
        except (OSError, ValueError, KeyError):
            return None

    def why(self, product: str, exists: bool, fingerprint: Mapping[str, Any]) -> list[str]:
        """The reasons why `product` is built now."""
        record = self._read(product)
        if record is None:
            return ["it was not built here before"]
        found = changes(record["fingerprint"], fingerprint)
        if not exists:
            found.insert(0, "its file is missing")
        return found or ["its file is not the one that the last build left"]
