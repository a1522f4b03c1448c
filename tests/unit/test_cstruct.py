# SPDX-License-Identifier: Apache-2.0
"""Where Python's numbers meet C's: what a C type does not hold is refused when it is stored, never cut to size."""

import ctypes
import math
import struct
from types import SimpleNamespace

import pytest
from fmhaforge import ArgumentError, clib, scalars
from fmhaforge.clib import CLibrary, Problem, args_struct

LAYOUT = (("q", "ptr"), ("seqlen_q", "i32"), ("q_stride_batch", "i64"), ("scale_log2", "f32"))
LEAST32, MOST32, MOST64 = -(2**31), 2**31 - 1, 2**63 - 1


class Number:
    """An integer of another library."""

    def __index__(self):
        return 77


@pytest.fixture
def args():
    return args_struct(LAYOUT)(size=32, q=256, seqlen_q=5, q_stride_batch=8, scale_log2=0.5)


@pytest.mark.parametrize("field, value", [
    ("q", 0), ("q", 2**64 - 1), ("seqlen_q", LEAST32), ("seqlen_q", MOST32), ("q_stride_batch", -(2**63)), ("q_stride_batch", MOST64),
    ("size", 2**64 - 1), ("scale_log2", 0.0), ("scale_log2", -3.25), ("scale_log2", scalars.FLOAT32_MAX), ("scale_log2", 2**100)])
def test_what_fits_is_stored(args, field, value):
    setattr(args, field, value)
    assert (getattr(args, field) or 0) == value


def test_foreign_integers_and_the_null_pointer(args):
    args.seqlen_q = args.q = Number()
    assert (args.seqlen_q, args.q) == (77, 77)
    args.q = None
    assert args.q is None
    args.scale_log2 = 1 / 3
    assert args.scale_log2 == struct.unpack("f", struct.pack("f", 1 / 3))[0]


@pytest.mark.parametrize("field, value, reason", [
    ("seqlen_q", 2**40, f"{2**40} is not in {LEAST32} .. {MOST32}"), ("seqlen_q", 2**32, f"{2**32} is not in {LEAST32} .. {MOST32}"),
    ("seqlen_q", LEAST32 - 1, f"{LEAST32 - 1} is not in {LEAST32} .. {MOST32}"),
    ("q_stride_batch", 2**63, f"{2**63} is not in {-(2**63)} .. {MOST64}"), ("q", 2**64, f"{2**64} is not in 0 .. {2**64 - 1}"),
    ("q", -1, f"-1 is not in 0 .. {2**64 - 1}"), ("size", -1, f"-1 is not in 0 .. {2**64 - 1}"),
    ("seqlen_q", 1.0, "must be an integer, not 1.0"), ("seqlen_q", "5", "must be an integer, not '5'"), ("seqlen_q", True, "must be an integer, not True"),
    ("seqlen_q", None, "must be an integer, not None"), ("q", 256.0, "must be an integer, not 256.0"), ("q", b"bytes", "must be an integer, not b'bytes'"),
    ("scale_log2", 1e39, "1e+39 is not in -3.4028235e+38 .. 3.4028235e+38"), ("scale_log2", math.nan, "nan is not in"),
    ("scale_log2", -math.inf, "-inf is not in"), ("scale_log2", 1e-60, "1e-60 is 0 in float32"), ("scale_log2", "0.5", "must be a number"),
    ("scale_log2", 10**400, "must be a number that float holds"), ("seqlen", 5, "is no field; there are size, q, seqlen_q, q_stride_batch, scale_log2")])
def test_what_does_not_fit_is_refused_and_changes_nothing(args, field, value, reason):
    before = bytes(args)
    with pytest.raises(ArgumentError) as error:
        setattr(args, field, value)
    assert error.value.argument == field and str(error.value).startswith(f"{field}: {reason}")
    assert bytes(args) == before


def test_filling_a_struct_is_checked_too():
    with pytest.raises(ArgumentError, match="seqlen_q: 4294967301 is not in"):
        args_struct(LAYOUT)(size=32, q=256, seqlen_q=2**32 + 5)
    operation = SimpleNamespace(arguments={name: SimpleNamespace(name=name, type=type_) for name, type_ in LAYOUT})
    values = {"q": 256, "seqlen_q": 5, "q_stride_batch": 2**63, "scale_log2": 0.5}
    with pytest.raises(ArgumentError, match="q_stride_batch: 9223372036854775808 is not in"):
        clib.make_args(operation, values)
    made = clib.make_args(operation, {**values, "q_stride_batch": 8})
    assert (made.size, made.q, made.seqlen_q, made.q_stride_batch, made.scale_log2) == (ctypes.sizeof(made), 256, 5, 8, 0.5)


@pytest.mark.parametrize("field, values", [("head_dim", {"head_dim": 2**32 + 64}), ("sm", {"sm": 90.0}), ("num_q_heads", {"num_q_heads": -(2**31) - 8}),
                                           ("seqlen_q", {"seqlen_q": 2**40})])
def test_problems_are_checked(field, values):
    with pytest.raises(ArgumentError) as error:
        clib.problem(**{"operation": "llm", "mask": "causal", "head_dim": 64, "sm": 90, **values})
    assert error.value.argument == field


class Recording:
    """A library whose functions note what they get."""

    def __init__(self):
        self.calls = []

    def __getattr__(self, name):
        def called(*arguments):
            self.calls.append((name, *arguments))
            return 0
        return called


@pytest.mark.parametrize("call, field", [
    (lambda lib: lib.find_row("fmha_v2_d64", 2**32 + 90), "sm"), (lambda lib: lib.find_row("fmha_v2_d64\0junk", 90), "variant"),
    (lambda lib: lib.find_row(b"fmha_v2_d64", 90), "variant"), (lambda lib: lib.row(2**32), "index"),
    (lambda lib: lib.try_preload(None, 2**64 + 7), "stream"), (lambda lib: lib.preload(None, -1), "stream"),
    (lambda lib: lib.scale_log2(1e300), "attention_scale"), (lambda lib: lib.scale_log2("1"), "attention_scale")])
def test_arguments_of_the_library_are_checked(call, field):
    library = CLibrary.__new__(CLibrary)
    library._dll = Recording()
    with pytest.raises(ArgumentError) as error:
        call(library)
    assert error.value.argument == field and library._dll.calls == []


@pytest.mark.parametrize("scale", [2.0**127, 3e38])
def test_a_scale_without_a_limit_fits_in_float32(scale):
    if scale * math.log2(math.e) > scalars.FLOAT32_MAX:
        with pytest.raises(ArgumentError, match=r"attention_scale: 3e\+38 x log2\(e\) is above"):
            scalars.scale_log2(scale, None)
    else:
        assert scalars.scale_log2(scale, None) == pytest.approx(scale * math.log2(math.e), rel=1e-7)


@pytest.mark.parametrize("scale", ["0.125", b"1", True])
def test_a_scale_is_a_number(scale):
    with pytest.raises(ArgumentError, match="attention_scale: must be a number"):
        scalars.scale_log2(scale, 94549)
