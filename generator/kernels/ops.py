# SPDX-License-Identifier: Apache-2.0
"""Small device operations that both kernel families use."""
from __future__ import annotations

import cutlass
from cutlass import Int32
from cutlass._mlir.dialects import llvm
from cutlass.cutlass_dsl import T


def select(condition, if_true, if_false):
    """`if_true` where the condition holds, else `if_false`, without a branch; both of the type of `if_true`."""
    return type(if_true)(cutlass.select_(condition, if_true, if_false))


class Fixed:
    """An object that crosses the branches and loops of a kernel unchanged.

    The DSL carries every object whose method is called in a region through that region. Objects that hold only addresses, register
    tensors (memory, not values) and Python data have nothing to carry.
    """

    def __extract_mlir_values__(self):
        return []

    def __new_from_mlir_values__(self, values):
        return self


def reread(register: str):
    """An index register (``tid.x``, ``ctaid.y``, ``nctaid.x``...) read anew, as a value that the compiler can't merge with an earlier one.

    What the epilogue derives from it is then computed in the epilogue, instead of occupying registers throughout the mainloop.
    """
    value = llvm.inline_asm(
        T.i32(), [], f"mov.u32 $0, %{register};", "=r", has_side_effects=True, is_align_stack=False, asm_dialect=llvm.AsmDialect.AD_ATT
    )
    return Int32(value)
