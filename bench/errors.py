# SPDX-License-Identifier: Apache-2.0
"""What ends a benchmark early."""


class BenchError(Exception):
    """A benchmark cannot be run, or its records cannot be read: the message says why and what to do."""
