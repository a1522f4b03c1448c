# SPDX-License-Identifier: Apache-2.0
"""Tests that launch the bundle's kernels on a device and compare them with float64.

`subjects`, `cases`, `reference`, `backends`, `problem` and `ledger` need neither a device nor torch, so that the unit tests prove
them in CI; the `test_*` modules skip where there is no device.
"""
