# SPDX-License-Identifier: Apache-2.0
"""What a checked kernel tells the host: the first index that would have led it astray.

The form of the report and its codes: fmhaforge.fault_codes; in words for users: fmhaforge.checked_report. The first block that finds a
fault claims the report with an atomic compare-and-swap of the code; the others leave it alone. The kernel goes on with the fault
taken for "no keys" or "no rows", so nothing wild is read or written.
"""
from __future__ import annotations

import cutlass.cute as cute
from cutlass import Int32
from cutlass._mlir.dialects import llvm
from cutlass.cutlass_dsl import T

from fmhaforge.fault_codes import REPORT_WORDS

from .ops import Fixed


def _claim(pointer, code):
    """Atomic: write `code` where there is 0; returns what was there."""
    return Int32(
        llvm.inline_asm(
            T.i32(),
            [pointer.toint().ir_value(), Int32(code).ir_value()],
            "atom.global.cas.b32 $0, [$1], 0, $2;",
            "=r,l,r",
            has_side_effects=True,
            is_align_stack=False,
            asm_dialect=llvm.AsmDialect.AD_ATT,
        )
    )


class FaultReport(Fixed):
    """Checks of one block; `batch` is its batch entry, `thread` the calling thread."""

    def __init__(self, pointer, batch, thread):
        self.pointer = pointer
        self.batch = batch
        self.thread = thread

    @cute.jit
    def require(self, holds, code: int, entry, value):
        """Report (code, batch, entry, value) unless the condition holds."""
        if (self.thread == 0) & (holds == False):  # noqa: E712 - a device value
            if _claim(self.pointer, code) == 0:
                report = cute.make_tensor(self.pointer, cute.make_layout(REPORT_WORDS))
                report[1] = self.batch
                report[2] = entry
                report[3] = value
