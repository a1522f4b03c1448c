# SPDX-License-Identifier: Apache-2.0
"""From the shapes and strides of tensors to the integer arguments of an operation, with every check that the host can make.

Shapes, element types, alignments and limits come from the operation's argument list in the metadata. What is added here is how
a tensor's strides reach the arguments. A layout does not depend on addresses, so it is made once and used for many launches.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from . import expr
from .dtypes import ITEM_BYTES
from .errors import AlignmentError, ArgumentError, DtypeError, ReadOnlyError, ShapeError, StrideError
from .launch import BoundPlan, CompiledPlan
from .metadata import Argument, Operation
from .names import public_name
from .query import request_problem
from .tensors import TensorView, contiguous_strides

PAGE_TOKENS = 128
"""Tokens in a page of the KV pool."""

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


@dataclass(frozen=True)
class Tensor:
    """One pointer argument of a layout. `span` is its size in bytes if it is densely packed, else 0."""

    argument: Argument
    empty: bool
    span: int


@dataclass(frozen=True)
class Layout:
    """The integer arguments of a call, checked. `bound` keeps the plans that were bound to them."""

    values: Mapping[str, int]
    tensors: tuple[Tensor, ...]
    bound: dict[tuple[CompiledPlan, int], BoundPlan | None] = field(default_factory=dict)

    def addresses(self, views: Mapping[str, TensorView]) -> dict[str, int]:
        """The pointer arguments. Raises AlignmentError or ArgumentError for addresses that cannot be used."""
        output = views["o"].pointer
        return {tensor.argument.name: _address(tensor, views[tensor.argument.name].pointer, output) for tensor in self.tensors}

    def check_overlap(self, addresses: Mapping[str, int]) -> None:
        """Raises ArgumentError when the output lies in the memory of an input, as far as both are densely packed."""
        for output in self.tensors:
            if output.argument.access != "out":
                continue
            begin = addresses[output.argument.name]
            for other in self.tensors:
                address = addresses[other.argument.name]
                if other is not output and address < begin + output.span and begin < address + other.span:
                    raise ArgumentError(public_name(output.argument.name), f"overlaps {public_name(other.argument.name)} in memory; "
                                                                           "give an output of its own")

    def bound_plan(self, plan: CompiledPlan, sm_count: int) -> BoundPlan | None:
        """The plan bound to these arguments, or None when there is nothing to launch. Raises ArgumentError."""
        key = (plan, sm_count)
        if key not in self.bound:
            self.bound[key] = None if plan.is_empty(self.values) else plan.bind({**self.values, "sm_count": sm_count})
        return self.bound[key]


def bind(operation: Operation, views: Mapping[str, TensorView], sizes: Mapping[str, int], fixed: Mapping[str, int],
         bounds: Mapping[str, str]) -> Layout:
    """The layout of a call.

    `views` holds one view per pointer argument, `sizes` the sizes that the caller stated, by ABI name (they must agree with the
    tensors' shapes, and must be complete for bare addresses), `fixed` the values that shapes may name but that are no arguments
    (head_dim), `bounds` maps a size that may be left out to the size that bounds it. Raises an ArgumentError that names the
    argument.
    """
    views = {name: _merge_planes(view) if name == "kv_pool" else view for name, view in views.items()}
    pointers = [argument for argument in operation.arguments.values() if argument.type == "ptr"]
    values = {**sizes, **fixed}
    for argument in pointers:
        _check_form(argument, views[argument.name])
        _learn(argument, views[argument.name], values)
    tensors = []
    for argument in pointers:
        view = _shaped(argument, views[argument.name], values)
        _take_strides(argument, view, values)
        tensors.append(_tensor(argument, view))
        if argument.access == "out":
            _check_own_elements(argument, view)
    for name, bound in bounds.items():
        values.setdefault(name, values[bound])
    values = {name: value for name, value in values.items() if name not in fixed}
    _check_limits(operation, values)
    return Layout(values, tuple(tensors))


def _tensor(argument: Argument, view: TensorView) -> Tensor:
    assert view.shape is not None
    count = math.prod(view.shape)
    packed = view.strides == contiguous_strides(view.shape)
    return Tensor(argument, count == 0, count * ITEM_BYTES[argument.dtype or ""] if packed else 0)


def _address(tensor: Tensor, address: int, stand_in: int) -> int:
    argument = tensor.argument
    if address % argument.alignment:
        raise AlignmentError(public_name(argument.name), f"begins at {address:#x}, which is not a multiple of {argument.alignment} bytes")
    if address == 0 and not tensor.empty:
        raise ArgumentError(public_name(argument.name), "is a null pointer; give the address of device memory")
    return address or stand_in  # an empty tensor has no address; the output's is valid, and nothing is read there


def _check_limits(operation: Operation, values: Mapping[str, int]) -> None:
    for name, argument in operation.arguments.items():
        if argument.type in ("i32", "i64") and name not in values:
            raise ArgumentError(public_name(name), "is needed; give it to the call or to bundle.runner(...)")
    problem = request_problem(operation, values)
    if problem:
        raise ArgumentError(public_name(problem[0]), problem[1])


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
    for text, extent in zip(argument.shape, view.shape or ()):
        name, offset = _unknown(text)
        if name is not None and name not in values:
            values[name] = extent - offset


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
    try:
        return expr.compile(text)(values)
    except expr.RangeError:
        given = " and ".join(f"{public_name(name)} {values[name]}" for name in sorted(expr.names(text)))
        raise ShapeError(public_name(argument.name), f"its extent {text} does not fit in 64 bits ({given})") from None


def _merge_planes(view: TensorView) -> TensorView:
    """A pool [2, P, 128, Hkv, D] as the flat pages [2 P, 128, Hkv, D] that the kernels see."""
    if view.shape is None or len(view.shape) != 5:
        return view
    assert view.strides is not None
    planes, pages = view.shape[:2]
    between_planes, between_pages = view.strides[:2]
    if planes != 2:
        raise ShapeError(public_name("kv_pool"), f"has shape {list(view.shape)}; its shape is [2, pages, 128, num_kv_heads, head_dim]")
    if pages == 1:
        between_pages = between_planes
    if pages and between_planes != pages * between_pages:
        raise StrideError(public_name("kv_pool"), f"its planes are {between_planes} elements apart, but {pages} pages of "
                                                  f"{between_pages} are wanted; make it contiguous")
    return replace(view, shape=(planes * pages, *view.shape[2:]), strides=(between_pages, *view.strides[2:]))


# -- strides ----------------------------------------------------------------------------------------------------------------


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


def _check_own_elements(argument: Argument, output: TensorView) -> None:
    """Every element of an output has a place of its own."""
    assert output.shape is not None and output.strides is not None
    reach = 1
    for stride, extent in sorted((stride, extent) for stride, extent in zip(output.strides, output.shape) if extent > 1):
        if stride < reach:
            raise StrideError(public_name(argument.name), f"strides {list(output.strides)} of shape {list(output.shape)} make elements "
                                                          "overlap; give an output of its own")
        reach += stride * (extent - 1)
