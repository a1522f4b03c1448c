# SPDX-License-Identifier: Apache-2.0
"""What a checked kernel and its host agree on: the codes of faults and the form of the report. Imports nothing, for kernels import it.

The report is `REPORT_WORDS` int32 in device memory, zero before the launch: code, batch entry, entry, value, and two spare.
"""

FAULT_REPORT = "fault_report"
"""The pointer that plans of checked variants use besides the operation's arguments: where the report lies."""

REPORT_WORDS = 6

K_PAGE, V_PAGE, KV_LENGTH, Q_LENGTH = 1, 2, 3, 4
"""Codes. Of a page, `entry` is its place in the page list and `value` its id; of a length, `entry` is 0 and `value` the length."""
