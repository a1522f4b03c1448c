# SPDX-License-Identifier: Apache-2.0
"""Values that do not fit, in the words of the caller; which of them the C code has to look at; sentences that C and Python share."""

import random

import pytest

from expr_cases import random_expression
from fmhaforge import expr, sentences
from fmhaforge.checks import Check
from fmhaforge.fit import Fitted, Misfit
from fmhaforge.names import public_name
from generator.cabi import intervals


def refused(text, values, least=1, most=65535, rename=str):
    with pytest.raises(Misfit) as error:
        Fitted(text, "the grid", least, most)(values)
    return f"{rename(error.value.argument)}: {error.value.reason(rename)}"


def test_a_value_that_fits():
    assert Fitted("ceil_div(seqlen_q, 128)", "the grid", 1, 65535)({"seqlen_q": 65535 * 128}) == 65535


@pytest.mark.parametrize("text, values, message", [
    ("batch", {"batch": 70000}, "batch: 70000 is too large: the grid would be 70000, at most 65535 is possible; split the work"),
    ("2 * batch * seqlen_q", {"batch": 5, "seqlen_q": 40000},
     "seqlen_q: 40000 with batch 5 is too large: the grid would be 400000, at most 65535 is possible; split the work"),
    ("a * b * c * d", {"a": 1, "b": 9, "c": 999, "d": 100},
     "c: 999 with a 1, b 9 and d 100 is too large: the grid would be 899100, at most 65535 is possible; split the work"),
    ("a * a * a", {"a": 1 << 40}, "a: 1099511627776 is too large: the grid does not fit in 64 bits; split the work"),
    ("min(a * a, sm_count)", {"a": 1 << 40, "sm_count": 1 << 50}, "a: 1099511627776 is too large: the grid does not fit in 64 bits; split the work"),
    ("sm_count - 200", {"sm_count": 132}, "sm_count: 132 is too small: the grid would be -68, at least 1 is needed"),
    ("a - b", {"a": 3, "b": 3}, "a: 3 with b 3 is too small: the grid would be 0, at least 1 is needed"),
])
def test_the_largest_argument_is_named_first(text, values, message):
    assert refused(text, values) == message


def test_a_number_is_nobody_s_argument():
    assert Fitted("70000", "the grid", 1, 65535)({}) == 70000


def test_the_caller_s_names():
    message = refused("max_pages * batch", {"max_pages": 300, "batch": 400}, rename=public_name)
    assert message.startswith("batch_size: 400 with max_pages_per_seq 300 is too large: ")


def test_a_missing_value_is_no_misfit():
    with pytest.raises(expr.ExprError, match="no value for batch"):
        Fitted("batch", "the grid", 1, 2)({})


def test_names_in_the_order_of_appearance():
    assert expr.appearing("min(c * (a + b), max(a, 3)) - d") == ("c", "a", "b", "d")
    assert expr.appearing("1 + 2") == ()


@pytest.mark.parametrize("text, low, high, may_overflow", [
    ("7", 7, 7, False),
    ("a", -3, 5, False),
    ("a * a", -15, 25, False),
    ("a - b", -13, 4, False),
    ("max(a, 1)", 1, 5, False),
    ("min(big, b)", 0, 10, False),
    ("ceil_div(b, 4)", 1, 3, False),
    ("ceil_div(a, b)", -3, 5, False),
    ("ceil_div(b, a)", 1, 10, True),
    ("big + 1", 1, expr.INT64_MAX, True),
    ("min(big * b, 9)", 0, 9, True),
])
def test_intervals(text, low, high, may_overflow):
    limits = {"a": (-3, 5), "b": (1, 10), "big": (0, expr.INT64_MAX)}
    assert intervals.of(text, limits) == intervals.Interval(low, high, may_overflow)


def test_no_value_lies_outside_its_interval():
    rng = random.Random(11)
    overflows = 0
    for _ in range(2000):
        text, _ = random_expression(rng, 3)
        limits = {name: tuple(sorted(rng.choice((0, 1, -1, 77, -5000, 1 << 31, 1 << 62, expr.INT64_MIN)) for _ in range(2)))
                  for name in expr.names(text)}
        found = intervals.of(text, limits)
        for _ in range(5):
            values = {name: rng.choice((low, high, rng.randint(low, high))) for name, (low, high) in limits.items()}
            try:
                assert found.low <= expr.compile(text)(values) <= found.high, (text, values)
            except expr.RangeError:
                overflows += 1
                assert found.may_overflow, (text, values)
    assert 100 < overflows < 9000


def test_a_relation_that_overflows_is_said_in_words():
    check = Check("x", "at_most", "a * a", "b", "a must be small")
    assert check.failure({"a": 1 << 40, "b": 1}) == "a must be small (a * a or b does not fit in 64 bits)"
    assert check.failure({"a": 2, "b": 1}) == "a must be small (a * a is 4, b is 1)"


def test_every_sentence_is_rendered_for_c():
    assert set(sentences.NAMES) == {name for name in vars(sentences) if name.isupper() and name != "NAMES"}
    assert sentences.c_text(sentences.TOO_LARGE) == "is too large: %s would be %lld, at most %lld is possible; split the work"
