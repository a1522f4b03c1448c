# SPDX-License-Identifier: Apache-2.0
"""The sentences that the Python runtime and the C library share: the build renders them into C, so that both say the same.

`%s` is a word, `%d` a 64-bit integer; `c_text` turns a sentence into a format of printf.
"""

from __future__ import annotations

BELOW = "%d is below %d; give at least %d"
ABOVE = "%d is above %d; give at most %d"
NOT_A_MULTIPLE = "%d is not a multiple of %d"
"""A value, and the limit of its argument (twice, where a remedy names it)."""

RELATION = "%s (%s is %d, %s is %d)"
RELATION_OVERFLOW = "%s (%s or %s does not fit in 64 bits)"
"""What must hold between two values, and what they are."""

TOO_LARGE = "is too large: %s would be %d, at most %d is possible; split the work"
TOO_SMALL = "is too small: %s would be %d, at least %d is needed"
OVERFLOW = "is too large: %s does not fit in 64 bits; split the work"
"""What is said of arguments when a value of the launch that is computed from them does not fit."""

NO_RULE = "no selection rule holds for %s %d: "
NO_RULE_UNKNOWN = "no selection rule holds for an unknown %s: "
RULE = "%s takes %s up to %d"
RULE_FLAG = " with %s"
RULE_FLAG_OFF = " with %s, which is off"
NO_RULE_REMEDY = "; build the variant without a rule"
"""A request that fits none of the variants with a selection rule, each of which is named between the first and the last."""

SMEM = "%s for SM %d needs %d bytes of shared memory a block; SM %d gives at most %d; build a smaller tile for this SM"

NAMES = ("BELOW", "ABOVE", "NOT_A_MULTIPLE", "RELATION", "RELATION_OVERFLOW", "TOO_LARGE", "TOO_SMALL", "OVERFLOW", "NO_RULE",
         "NO_RULE_UNKNOWN", "RULE", "RULE_FLAG", "RULE_FLAG_OFF", "NO_RULE_REMEDY", "SMEM")
"""Every sentence, by its name here."""


def c_text(sentence: str) -> str:
    """A sentence as a format of printf for `const char*` and `long long`."""
    return sentence.replace("%d", "%lld")
