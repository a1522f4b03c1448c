# SPDX-License-Identifier: Apache-2.0
"""Random cases of every variant, by every route, against float64: values, zero rows, poison, guards."""

import pytest

from tests.device.cases import random_case
from tests.device.subjects import case_count

MOST_SHOWN = 20


def test_random_cases(lab, subject, everyone, wanted_cases):
    """Case `fmha_v2_d128/17` is repeated by `--variant fmha_v2_d128 --case 17`: its id is all that made it."""
    numbers = range(case_count(subject, everyone)) if wanted_cases is None else wanted_cases
    faults = []
    for number in numbers:
        faults += lab.faults(random_case(subject, number))
    if faults:
        rest = f"\n... and {len(faults) - MOST_SHOWN} more" if len(faults) > MOST_SHOWN else ""
        pytest.fail("\n".join(faults[:MOST_SHOWN]) + rest, pytrace=False)
