# SPDX-License-Identifier: Apache-2.0
"""Which subjects a test takes."""

from __future__ import annotations

from collections.abc import Callable

from tests.device.subjects import Subject


def only(**fields: tuple) -> Callable:
    """Marks a test so that its `subject` runs over the subjects whose fields have one of the given values."""
    def mark(function: Callable) -> Callable:
        function.subject_fields = fields
        return function
    return mark


def wanted(function: Callable, subject: Subject) -> bool:
    """Whether the test takes `subject`."""
    return all(getattr(subject, name) in values for name, values in getattr(function, "subject_fields", {}).items())
