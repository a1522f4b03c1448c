# SPDX-License-Identifier: Apache-2.0
"""From tensors and sizes to the argument values of an operation, with every precondition checked that the host can see.

Shapes, element types, alignments and limits come from the operation's argument list in the metadata. What is added here is how
a tensor's strides reach the arguments, and the names under which the runner's functions know the arguments.
"""

from __future__ import annotations

import math
import operator
import struct
from collections.abc import Iterable, Mapping
from dataclasses import replace

from . import expr
from .dtypes import INT_MAX, ITEM_BYTES
from .errors import AlignmentError, ArgumentError, DtypeError, ReadOnlyError, ShapeError, StrideError
from .metadata import Argument, Operation
from .names import public_name
from .query import request_problem
from .tensors import TensorView, contiguous_strides

PAGE_TOKENS = 128
"""Tokens in a page of the KV pool."""

NO_WINDOW = 1 << 30
"""The `window_size_left` that hides nothing."""

MAX_ATTENTION_SCALE = 2.0**80
"""Above this, finite float16 inputs could overflow the float32 scores."""

_STRIDES = {
    ("kv_pool", 4): ("pool_stride_page", "pool_stride_token", "pool_stride_head", None),
    ("page_list", 3): ("page_list_stride_batch", "page_list_stride_plane", None),
    ("block_begin", 2): ("block_stride_batch", None),
    ("block_end", 2): ("block_stride_batch", None),
}


def stride_arguments(tensor: str, rank: int) -> tuple[str | None, ...]:
    """The argument that each stride of a tensor is passed in; None where the stride must be that of a packed tensor."""
    if (tensor, rank) in _STRIDES:
        return _STRIDES[tensor, rank]
    if rank == 4:
        return f"{tensor}_stride_batch", f"{tensor}_stride_seq", None, None
    if rank == 3:
        return f"{tensor}_stride_seq", None, None
    return (None,) * rank


def bind(operation: Operation, views: Mapping[str, TensorView], sizes: Mapping[str, int], fixed: Mapping[str, int]) -> dict[str, int]:
    """The integer and pointer arguments of a call.

    `views` holds one view per pointer argument, `sizes` the sizes that the caller stated, by ABI name (they must agree with the
    tensors' shapes, and must be complete for bare addresses), `fixed` the values that shapes may name but that are no arguments
    (head_dim). Raises an ArgumentError that names the argument.
    """
    views = {name: _merge_planes(view) if name == "kv_pool" else view for name, view in views.items()}
    pointers = [argument for argument in operation.arguments.values() if argument.type == "ptr"]
    values = {**sizes, **fixed}
    for argument in pointers:
        _check_form(argument, views[argument.name])
        _learn(argument, views[argument.name], values)
    for argument in pointers:
        view = _shaped(argument, views[argument.name], values)
        _take_strides(argument, view, values)
        values[argument.name] = _pointer(argument, view, views["o"].pointer)
    _check_output(views["o"])
    return {name: value for name, value in values.items() if name not in fixed}


def check_limits(operation: Operation, values: Mapping[str, int]) -> None:
    """Raises ArgumentError for the first integer that the operation's own limits or checks refuse."""
    for name, argument in operation.arguments.items():
        if argument.type in ("i32", "i64") and name not in values:
            raise ArgumentError(public_name(name), "is needed; give it to the call or to bundle.runner(...)")
    problem = request_problem(operation, values)
    if problem:
        raise ArgumentError(public_name(problem[0]), problem[1])


def extent(name: str, value: object, minimum: int = 0) -> int:
    """`value` as an int of at least `minimum` that fits in 32 bits. Raises ArgumentError."""
    if isinstance(value, bool):
        raise ArgumentError(name, f"must be an integer, not {value!r}")
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise ArgumentError(name, f"must be an integer, not {value!r}") from None
    if not minimum <= number <= INT_MAX:
        raise ArgumentError(name, f"{number} is not in {minimum} .. {INT_MAX}")
    return number


def scale_log2(attention_scale: object) -> float:
    """The argument `scale_log2`: attention_scale x log2(e), rounded to float32. Raises ArgumentError unless finite and > 0."""
    name = "attention_scale"
    if attention_scale is None:
        raise ArgumentError(name, "is needed; give the factor on Q K^T, often 1 / sqrt(head_dim)")
    try:
        scale = float(attention_scale)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise ArgumentError(name, f"must be a number, not {attention_scale!r}") from None
    if not math.isfinite(scale) or scale <= 0:
        raise ArgumentError(name, f"{scale} must be finite and > 0")
    if scale > MAX_ATTENTION_SCALE:
        raise ArgumentError(name, f"{scale} is above 2^80, where scores of finite inputs overflow float32; use a smaller scale")
    rounded, = struct.unpack("<f", struct.pack("<f", scale * math.log2(math.e)))
    if rounded == 0:
        raise ArgumentError(name, f"{scale} is 0 in float32; use a larger scale")
    return rounded


def window_size_left(sliding_window_size: object, negative: bool = True) -> int:
    """The argument `window_size_left` for a window as the runner takes it: INT_MAX is none, negative sees no key.

    Raises ArgumentError when it is no int32, or is negative where `negative` is false.
    """
    name = "sliding_window_size"
    window = extent(name, sliding_window_size, -(2**31))
    if window < 0 and not negative:
        raise ArgumentError(name, f"{window} is negative; give the keys left of the diagonal, or INT_MAX for no window")
    return max(-1, min(window, NO_WINDOW))


# -- shapes -----------------------------------------------------------------------------------------------------------------


def _check_form(argument: Argument, view: TensorView) -> None:
    if view.shape is None:
        return
    name = public_name(argument.name)
    if view.dtype != argument.dtype:
        raise DtypeError(name, f"has element type {view.dtype}; convert it to {argument.dtype}")
    if len(view.shape) != len(argument.shape):
        raise ShapeError(name, f"has shape {list(view.shape)}; its shape is [{', '.join(argument.shape)}]")
    if argument.access == "out" and view.read_only:
        raise ReadOnlyError(name, "is read-only; give an output that can be written")


def _learn(argument: Argument, view: TensorView, values: dict[str, int]) -> None:
    """Takes the sizes that no one has stated yet from a tensor's shape."""
    for text, extent_ in zip(argument.shape, view.shape or ()):
        name, offset = _unknown(text)
        if name is not None and name not in values:
            values[name] = extent_ - offset


def _unknown(text: str) -> tuple[str | None, int]:
    """(name, n) for the extents `name` and `name + n`, which tell the name's value; (None, 0) for others."""
    node = expr.parse(text)
    if isinstance(node, expr.Name):
        return node.name, 0
    if isinstance(node, expr.Binary) and node.op == "+" and isinstance(node.left, expr.Name) and isinstance(node.right, expr.Number):
        return node.left.name, node.right.value
    return None, 0


def _shaped(argument: Argument, view: TensorView, values: Mapping[str, int]) -> TensorView:
    """The view with a shape: checked if it has one, made from the sizes for a bare address."""
    shape = tuple(_extent(argument, text, values) for text in argument.shape)
    if view.shape is None:
        return replace(view, shape=shape, strides=contiguous_strides(shape))
    if view.shape != shape:
        wanted = ", ".join(f"{public_name(text)}" for text in argument.shape)
        raise ShapeError(public_name(argument.name), f"has shape {list(view.shape)}, but [{wanted}] is {list(shape)} here; "
                         "the sizes come from the runner and from the tensors before this one")
    return view


def _extent(argument: Argument, text: str, values: Mapping[str, int]) -> int:
    for name in expr.names(text):
        if name not in values:
            raise ArgumentError(public_name(name), f"is needed, since {public_name(argument.name)} is a bare address; give it to "
                                                   "bundle.runner(...) or to the call")
    return expr.compile(text)(values)


def _merge_planes(view: TensorView) -> TensorView:
    """A pool [2, P, 128, Hkv, D] as the flat pages [2 P, 128, Hkv, D] that the kernels see."""
    if view.shape is None or len(view.shape) != 5:
        return view
    assert view.strides is not None
    planes, pages = view.shape[:2]
    if planes != 2:
        raise ShapeError(public_name("kv_pool"), f"has shape {list(view.shape)}; its shape is [2, pages, 128, num_kv_heads, head_dim]")
    if view.strides[0] != pages * view.strides[1]:
        raise StrideError(public_name("kv_pool"), f"its planes are {view.strides[0]} elements apart, but {pages} pages of "
                                                  f"{view.strides[1]} are wanted; make it contiguous")
    return replace(view, shape=(planes * pages, *view.shape[2:]), strides=view.strides[1:])


# -- strides and pointers ---------------------------------------------------------------------------------------------------


def _take_strides(argument: Argument, view: TensorView, values: dict[str, int]) -> None:
    assert view.shape is not None and view.strides is not None
    name = public_name(argument.name)
    packed = contiguous_strides(view.shape)
    unit = argument.alignment // ITEM_BYTES[argument.dtype or "float16"]
    for axis, target in enumerate(stride_arguments(argument.name, len(view.shape))):
        stride = view.strides[axis] if view.shape[axis] > 1 else packed[axis]
        place = f"stride {stride} of axis {axis} ({public_name(argument.shape[axis])})"
        if target is None:
            if stride != packed[axis]:
                raise StrideError(name, f"{place} must be {packed[axis]}; make the inner axes contiguous")
            continue
        if stride < 0:
            raise StrideError(name, f"{place} is negative; make it contiguous")
        if stride % unit:
            raise AlignmentError(name, f"{place} must be a multiple of {unit} elements, so that rows begin at {argument.alignment} bytes")
        if values.setdefault(target, stride) != stride:
            raise StrideError(name, f"{place} differs from the other tensor's {values[target]}; give both the same layout")


def _pointer(argument: Argument, view: TensorView, stand_in: int) -> int:
    name = public_name(argument.name)
    if view.pointer % argument.alignment:
        raise AlignmentError(name, f"begins at {view.pointer:#x}, which is not a multiple of {argument.alignment} bytes")
    if view.pointer == 0:
        if view.shape is not None and math.prod(view.shape) == 0:
            return stand_in  # an empty tensor has no address; this one is valid and never read
        raise ArgumentError(name, "is a null pointer; give the address of device memory")
    return view.pointer


def _check_output(output: TensorView) -> None:
    if output.shape is None:
        return
    assert output.strides is not None
    axes = sorted((stride, extent_) for stride, extent_ in zip(output.strides, output.shape) if extent_ > 1)
    reach = 1
    for stride, extent_ in axes:
        if stride < reach:
            raise StrideError("o", f"strides {list(output.strides)} of shape {list(output.shape)} make elements overlap; "
                                   "give an output of its own")
        reach += stride * (extent_ - 1)


def check_overlap(operation: Operation, values: Mapping[str, int], spans: Mapping[str, int]) -> None:
    """Raises ArgumentError when the output lies in the memory of an input. `spans` holds bytes of packed tensors by name."""
    if "o" not in spans:
        return
    begin, end = values["o"], values["o"] + spans["o"]
    for name, span in _inputs(operation, spans):
        if values[name] < end and begin < values[name] + span:
            raise ArgumentError("o", f"overlaps {public_name(name)} in memory; give an output of its own")


def packed_spans(operation: Operation, views: Mapping[str, TensorView], values: Mapping[str, int],
                 fixed: Mapping[str, int]) -> dict[str, int]:
    """Bytes that each densely packed tensor occupies; tensors with gaps are left out."""
    known = {**values, **fixed}
    spans = {}
    for name, argument in operation.arguments.items():
        if argument.type != "ptr":
            continue
        view = views[name]
        if view.shape is not None and view.strides != contiguous_strides(view.shape):
            continue
        shape = view.shape or tuple(expr.compile(text)(known) for text in argument.shape)
        spans[name] = math.prod(shape) * ITEM_BYTES[argument.dtype or "float16"]
    return spans


def _inputs(operation: Operation, spans: Mapping[str, int]) -> Iterable[tuple[str, int]]:
    for name, span in spans.items():
        if operation.arguments[name].access != "out" and span:
            yield name, span
