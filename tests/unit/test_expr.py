# SPDX-License-Identifier: Apache-2.0
"""The expression language: values, 64-bit limits, errors, and its rendering to C."""

import pickle
import random

import pytest

from fmhaforge import expr
from fmhaforge.expr import INT64_MAX, INT64_MIN, ExprError
from generator import expr_c

from expr_cases import VALUES, random_expression

ENV = {"a": 7, "b": -3, "seqlen_q": 130, "big": INT64_MAX, "small": INT64_MIN}


@pytest.mark.parametrize("text, value", [
    ("1", 1),
    ("  42 ", 42),
    ("007", 7),
    ("a", 7),
    ("a + b * 2", 1),
    ("(a + b) * 2", 8),
    ("a - b - 1", 9),
    ("a - (b - 1)", 11),
    ("2*3*a", 42),
    ("ceil_div(seqlen_q, 128)", 2),
    ("ceil_div(128, 128)", 1),
    ("ceil_div(0, 128)", 0),
    ("ceil_div(b, 2)", -1),
    ("ceil_div(small, 1)", INT64_MIN),
    ("min(a, b)", -3),
    ("max(a,b)", 7),
    ("max(min(a, 5), ceil_div(a + 1, 2)) * 3 - 0", 15),
    (str(INT64_MAX), INT64_MAX),
    ("big - 1 + 1", INT64_MAX),
    ("0 - big - 1", INT64_MIN),
    ("\ta\n", 7),
])
def test_values(text, value):
    found = expr.compile(text)(ENV)
    assert found == value and type(found) is int


@pytest.mark.parametrize("text, reason", [
    ("", "expected a name, an integer or '(' at column 1, found the end"),
    ("a +", "expected a name, an integer or '(' at column 4, found the end"),
    ("a b", "expected an operator or the end at column 3, found b"),
    ("(a", "expected ')' at column 3, found the end"),
    ("a)", "expected an operator or the end at column 2, found )"),
    ("a / 2", "character '/' at column 3 is not part of the language"),
    ("a ** 2", "expected a name, an integer or '(' at column 4, found *"),
    ("-a", "expected a name, an integer or '(' at column 1, found -"),
    ("1.5", "character '.' at column 2"),
    ("0x10", "expected an operator or the end at column 2, found x10"),
    ("a.b", "character '.' at column 2"),
    ("a[0]", "character '[' at column 2"),
    ("__import__('os')", "unknown function __import__ at column 1; there are ceil_div, max, min"),
    ("é", "character 'é' at column 1"),
    ("١", "character '١' at column 1"),
    ("floor(a, 2)", "unknown function floor at column 1"),
    ("ceil_div(a)", "ceil_div at column 1 takes 2 arguments, found 1"),
    ("1 + min(a, 2, 3)", "min at column 5 takes 2 arguments, found 3"),
    ("min()", "expected a name, an integer or '(' at column 5, found )"),
    ("min(a, )", "expected a name, an integer or '(' at column 8, found )"),
    ("max", "function max at column 1 needs its arguments in parentheses"),
    ("9223372036854775808", "integer at column 1 does not fit in 64 bits"),
    ("1" * 400, "integer at column 1 does not fit in 64 bits"),
    ("(" * 40 + "a" + ")" * 40, "nested deeper than 32 levels"),
    ("a+" * 300 + "a", "longer than 512 characters"),
])
def test_unreadable(text, reason):
    with pytest.raises(ExprError) as caught:
        expr.compile(text)
    assert reason in caught.value.reason
    with pytest.raises(ExprError):
        expr.names(text)


def test_not_a_string():
    with pytest.raises(ExprError, match="must be a string, not int"):
        expr.compile(7)


@pytest.mark.parametrize("text, reason", [
    ("big + 1", "the value of + does not fit in 64 bits"),
    ("small - 1", "the value of - does not fit in 64 bits"),
    ("0 - small", "the value of - does not fit in 64 bits"),
    ("big * 2", "the value of * does not fit in 64 bits"),
    ("big * 2 - big", "the value of * does not fit in 64 bits"),
    ("ceil_div(a, 0)", "ceil_div by 0; the divisor must be > 0"),
    ("ceil_div(a, b)", "ceil_div by -3"),
    ("a + c", "no value for c; known are a, b, big, seqlen_q, small"),
])
def test_errors_of_values(text, reason):
    function = expr.compile(text)
    with pytest.raises(ExprError) as caught:
        function(ENV)
    assert reason in caught.value.reason and caught.value.text == text
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


@pytest.mark.parametrize("value", [1.0, "1", None, True, 1 << 63])
def test_bad_inputs(value):
    with pytest.raises(ExprError, match="a"):
        expr.compile("a")({"a": value})


def test_names():
    assert expr.names("ceil_div(a, 2) * (b - min(a, c))") == {"a", "b", "c"}
    assert expr.names("1 + 2") == frozenset()


def test_random_expressions():
    rng = random.Random(7)
    refused = 0
    for _ in range(2000):
        text, function = random_expression(rng, 3)
        env = {name: rng.choice(VALUES) for name in "abc"}
        try:
            wanted = function(env)
        except OverflowError:
            refused += 1
            with pytest.raises(ExprError):
                expr.compile(text)(env)
        else:
            assert expr.compile(text)(env) == wanted
    assert 200 < refused < 1800


@pytest.mark.parametrize("text, c", [
    ("128", "INT64_C(128)"),
    ("seqlen_q", "(int64_t)args->seqlen_q"),
    ("a + 1", "fmhaforge_expr_add(s, (int64_t)args->a, INT64_C(1))"),
    ("a - b * 2", "fmhaforge_expr_sub(s, (int64_t)args->a, fmhaforge_expr_mul(s, (int64_t)args->b, INT64_C(2)))"),
    ("(a - b) * 2", "fmhaforge_expr_mul(s, fmhaforge_expr_sub(s, (int64_t)args->a, (int64_t)args->b), INT64_C(2))"),
    ("ceil_div(seqlen_q, 128)", "fmhaforge_expr_ceil_div(s, (int64_t)args->seqlen_q, INT64_C(128))"),
    ("min(a, 3)", "fmhaforge_expr_min(s, (int64_t)args->a, INT64_C(3))"),
])
def test_rendering_to_c(text, c):
    assert expr_c.render(text, "args->{}".format, "s") == c


def test_rendering_refuses_what_can_not_be_read():
    with pytest.raises(ExprError):
        expr_c.render("system(1, 2)")
