# SPDX-License-Identifier: Apache-2.0
"""Fake bundles with their C side, compiled; for the fixtures and for tests that want a bundle of their own."""

import json
from dataclasses import dataclass
from pathlib import Path

from fake_bundle import make_bundle
from fmhaforge import metadata as bundle_metadata
from generator import cabi

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
HOST = cabi.HOSTS["x86_64"]


@dataclass(frozen=True)
class Built:
    """A fake bundle with its C side: `metadata` as the runtime reads it."""

    bundle: Path
    document: dict
    metadata: bundle_metadata.Metadata
    sources: cabi.Sources
    libraries: cabi.Libraries


def build(folder, manifest, zig, **options):
    """A Built of the manifest's rows in `folder`; `options` go to make_bundle."""
    bundle = make_bundle(folder / "bundle", manifest, **options)
    content = (bundle / "metadata.json").read_bytes()
    document = json.loads(content)
    sources = cabi.render(document, bundle, folder / "c")
    libraries = cabi.compile_libraries(sources, HOST, folder / "lib", zig)
    return Built(bundle, document, bundle_metadata.parse(content, "metadata.json"), sources, libraries)
