# SPDX-License-Identifier: Apache-2.0
"""Makes `generator` and `fmhaforge` of this source tree importable, however the tests are started."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

for folder in (ROOT / "runtime", ROOT):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


@pytest.fixture(scope="session")
def manifest():
    """The manifest of the project, loaded once."""
    from generator.manifest import load

    return load(ROOT / "variants.yaml")


@pytest.fixture(scope="session")
def sample_text():
    """The complete manifest that docs/manifest.md shows."""
    text = (ROOT / "docs" / "manifest.md").read_text(encoding="utf-8")
    return text.split("```yaml\n")[1].split("```")[0]
