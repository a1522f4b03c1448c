# SPDX-License-Identifier: Apache-2.0
"""What a request from the outside may hold: wrong types and names that do not exist are refused by the name of their field."""

from types import SimpleNamespace

import fmhaforge
import pytest
from fmhaforge import ArgumentError, BundleError, MaskType, Query, streams
from runtime_fixtures import bundle, bundle_path, cuda, loaded  # noqa: F401


def asked(**change):
    return Query(**{"operations": ("llm",), "head_dim": 128, "sm": 90, **change})


WRONG = {
    "text for names": (dict(operations="llm"), "operations"), "part of a name": (dict(operations="paged_ragged"), "operations"),
    "no names": (dict(operations=()), "operations"), "no name": (dict(operations=(1,)), "operations"),
    "head_dim": (dict(head_dim="128"), "head_dim"), "fraction": (dict(head_dim=128.0), "head_dim"), "sm": (dict(sm=None), "sm"),
    "list": (dict(sm=[90]), "sm"), "bool": (dict(sm=True), "sm"), "dtype": (dict(dtype=5), "dtype"), "mask": (dict(mask=5), "mask"),
    "route": (dict(route="ptx"), "route"), "family": (dict(family=5), "family"), "row_sm": (dict(row_sm="80"), "row_sm"),
    "checked": (dict(checked="no"), "checked"), "known": (dict(known=[("seqlen_q", 5)]), "known"),
    "misspelt": (dict(known={"seqlenq": 5}), "known"), "pointer": (dict(known={"q": 5}), "known"),
    "value": (dict(known={"seqlen_q": "5"}), "seqlen_q"), "none": (dict(known={"seqlen_q": None}), "seqlen_q"),
    "misspelt flag": (dict(flags={"small_d64": True}), "flags"), "flag": (dict(flags={"use_small_d64": "no"}), "use_small_d64"),
}


@pytest.mark.parametrize("change, field", WRONG.values(), ids=WRONG)
@pytest.mark.parametrize("function", ["query", "explain"])
def test_wrong_queries(bundle, change, field, function):
    with pytest.raises(ArgumentError) as error:
        getattr(bundle, function)(asked(**change))
    assert error.value.argument == field


def test_no_query(bundle):
    with pytest.raises(ArgumentError, match="query: must be a fmhaforge.Query, not 'llm'"):
        bundle.query("llm")


def test_other_spellings_mean_the_same(bundle):
    wanted = bundle.query(asked(mask="causal", known={"seqlen_q": 5}))
    half = SimpleNamespace(name="float16")
    for change in (dict(mask=MaskType.CAUSAL), dict(mask="CAUSAL"), dict(dtype="FP16"), dict(dtype=half), dict(operations=["llm"]), dict(checked=0)):
        assert bundle.query(asked(**{"mask": "causal", "known": {"seqlen_q": 5}, **change})) == wanted
    assert wanted.variants == ("fmha_v2_d128",)


def test_what_is_not_served_is_an_answer(bundle):
    for change, field in ((dict(operations=("conv",), known={"anything": 1}), "operation"), (dict(mask="nothing"), "mask"), (dict(dtype="float8"), "dtype"),
                          (dict(family="volta"), "family"), (dict(sm=75), "sm"), (dict(known={"seqlen_q": 2**40}), "seqlen_q")):
        assert bundle.query(asked(**change)).field == field


@pytest.mark.parametrize("function", ["can_implement", "can_implement_paged", "can_implement_paged_ragged"])
def test_none_is_no_value_of_a_named_question(bundle, function):
    good = (8, 2, 128, 90, "float16", "causal")
    assert getattr(bundle, function)(*good)
    for index, name in enumerate(("num_q_heads", "num_kv_heads", "head_size", "sm", "dtype", "mask")):
        with pytest.raises(ArgumentError) as error:
            getattr(bundle, function)(*good[:index], None, *good[index + 1:])
        assert error.value.argument == name


@pytest.mark.parametrize("options, field", [({"use_small_d64": "no"}, "use_small_d64"), ({"checked": "yes"}, "checked"), ({"checked": None}, "checked"),
                                            ({"family": 5}, "family"), ({"dtype": None}, "dtype")])
def test_wrong_options_of_a_runner(bundle, options, field):
    with pytest.raises(ArgumentError) as error:
        bundle.runner(8, 2, 64, **options)
    assert error.value.argument == field


def test_flags_of_numpy(bundle, loaded):
    numpy = pytest.importorskip("numpy")
    support = loaded.runner(8, 2, 64, use_small_d64=numpy.bool_(False)).preflight_llm(0)
    assert support.variants == ("fmha_v2_d64",)


@pytest.mark.parametrize("path", [None, 5, b"folder"])
def test_no_path(path):
    with pytest.raises(ArgumentError, match="path: must be the folder of a bundle"):
        fmhaforge.open(path)


def test_a_path_that_cannot_be_looked_at():
    with pytest.raises(BundleError, match="cannot be looked at: File name too long; check the path"):
        fmhaforge.open("x" * 5000)


class Raising:
    """A stream whose context is gone."""

    def __init__(self, name):
        self.name = name

    def __getattr__(self, name):
        if name == self.name:
            raise RuntimeError("it is gone")
        raise AttributeError(name)


@pytest.mark.parametrize("stream", [Raising("__cuda_stream__"), Raising("cuda_stream"), Raising("ptr"), SimpleNamespace(__cuda_stream__=lambda: 1 / 0)])
def test_streams_that_do_not_say(stream):
    with pytest.raises(ArgumentError, match="stream: a .* does not give its handle"):
        streams.stream_handle(stream)
