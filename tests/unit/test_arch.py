# SPDX-License-Identifier: Apache-2.0
"""The architecture rules as a table: which device is served by rows of which SMs, best first."""

import itertools

import pytest

from generator.arch import resolution_table, split_sm

FULL = {
    80: (80,),
    86: (86, 80),
    87: (87,),
    89: (89, 86, 80),
    90: (90,),
    100: (100,),
    101: (101, 110),
    110: (110, 101),
    120: (120,),
    121: (121, 120),
}


def test_every_sm(manifest):
    table = resolution_table(manifest.targets)
    assert table == FULL
    assert list(table) == sorted(table)


@pytest.mark.parametrize("built, table", [
    ([80], {80: (80,), 86: (80,), 89: (80,)}),
    ([86], {86: (86,), 89: (86,)}),
    ([87], {87: (87,)}),
    ([89], {89: (89,)}),
    ([90], {90: (90,)}),
    ([100], {100: (100,)}),
    ([101], {101: (101,), 110: (101,)}),
    ([110], {101: (110,), 110: (110,)}),
    ([120], {120: (120,), 121: (120,)}),
    ([121], {121: (121,)}),
    ([80, 90], {80: (80,), 86: (80,), 89: (80,), 90: (90,)}),
    ([80, 86], {80: (80,), 86: (86, 80), 89: (86, 80)}),
    ([87, 101, 121], {87: (87,), 101: (101,), 110: (101,), 121: (121,)}),
    ([], {}),
])
def test_a_part_of_the_sms(manifest, built, table):
    assert resolution_table(manifest.targets, built) == table


def test_a_part_is_the_full_table_without_the_rest(manifest):
    sms = [target.sm for target in manifest.targets]
    for size in (2, 3, 9):
        for built in itertools.combinations(sms, size):
            wanted = {sm: tuple(row for row in rows if row in built) for sm, rows in FULL.items()}
            assert resolution_table(manifest.targets, built) == {sm: rows for sm, rows in wanted.items() if rows}


def test_only_targets_of_the_manifest_are_served(manifest):
    targets = [target for target in manifest.targets if target.sm in (80, 89)]
    assert resolution_table(targets) == {80: (80,), 89: (89, 80)}
    with pytest.raises(ValueError, match="SM 75 is no target of the manifest; targets are 80, 89"):
        resolution_table(targets, [75, 80])


def test_the_order_of_targets_does_not_matter(manifest):
    assert resolution_table(tuple(reversed(manifest.targets))) == FULL


@pytest.mark.parametrize("sm, parts", [(80, (8, 0)), (89, (8, 9)), (100, (10, 0)), (121, (12, 1))])
def test_split_sm(sm, parts):
    assert split_sm(sm) == parts
