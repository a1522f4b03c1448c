# SPDX-License-Identifier: Apache-2.0
"""Texts from templates, and how they are written."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import jinja2

TEMPLATES = Path(__file__).resolve().parent.parent / "templates"


def from_template(template: str, values: Mapping[str, Any]) -> str:
    """The text of a template of `generator/templates`; a name without a value is an error."""
    return _environment().get_template(template).render(values)


def write_source(path: Path, text: str) -> None:
    """Write an ASCII text with its folders."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="ascii", newline="\n")


@lru_cache(maxsize=None)
def _environment() -> jinja2.Environment:
    return jinja2.Environment(loader=jinja2.FileSystemLoader(TEMPLATES), undefined=jinja2.StrictUndefined, trim_blocks=True,
                              lstrip_blocks=True, keep_trailing_newline=True, autoescape=False)
