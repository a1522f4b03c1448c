# SPDX-License-Identifier: Apache-2.0
"""Random cases of every variant, by every route, against float64: values, zero rows, poison, guards."""

import pytest

from tests.device.cases import random_case
from tests.device.subjects import case_count

MOST_SHOWN = 20


def test_random_cases(lab, subject, everyone, wanted_cases):
    """Repeat one with `-k` and its number: the id printed with a fault is all that made the case."""
    count = case_count(subject, everyone) if wanted_cases is None else wanted_cases
    faults = []
    for number in range(count):
        faults += lab.faults(random_case(subject, number))
    if faults:
        rest = f"\n... and {len(faults) - MOST_SHOWN} more" if len(faults) > MOST_SHOWN else ""
        pytest.fail("\n".join(faults[:MOST_SHOWN]) + rest, pytrace=False)
