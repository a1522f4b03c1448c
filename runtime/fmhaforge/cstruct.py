# SPDX-License-Identifier: Apache-2.0
"""C structs whose fields refuse a value that does not fit; ctypes would cut it to size without a word."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from . import scalars
from .errors import ArgumentError

INTEGERS = (ctypes.c_int32, ctypes.c_uint32, ctypes.c_int64, ctypes.c_size_t)

Convert = Callable[[str, Any], Any]


class CheckedStructure(ctypes.Structure):
    """A struct that can be filled and changed field by field. The checks are made when a value is stored, so using the struct costs nothing.

    Integers, addresses and floats that the C type does not hold raise ArgumentError naming the field, the value and the range; so do
    other types (an object with `__index__` is an integer, None the null pointer) and names that are no field.
    """

    _converters: Mapping[str, Convert] = {}

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls._converters = {name: _converter(type_) for name, type_ in cls.__dict__["_fields_"]}

    def __setattr__(self, name: str, value: Any) -> None:
        convert = self._converters.get(name)
        if convert is None:
            raise ArgumentError(name, f"is no field; there are {', '.join(self._converters)}")
        super().__setattr__(name, convert(name, value))


def integer(type_: type, name: str, value: object) -> int:
    """`value` as an integer of a ctypes type of INTEGERS. Raises ArgumentError about `name`."""
    bits = 8 * ctypes.sizeof(type_)
    signed = type_(-1).value < 0
    return scalars.integer(name, value, -(1 << bits - 1) if signed else 0, (1 << bits - signed) - 1)


def address(name: str, value: object) -> int:
    """`value` as an address, 0 for None. Raises ArgumentError about `name`."""
    return 0 if value is None else integer(ctypes.c_size_t, name, value)


def _converter(type_: type) -> Convert:
    if type_ is ctypes.c_void_p:
        return address
    if type_ is ctypes.c_float:
        return scalars.float32
    return partial(integer, type_) if type_ in INTEGERS else _as_it_is


def _as_it_is(name: str, value: object) -> object:
    return value
