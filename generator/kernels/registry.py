# SPDX-License-Identifier: Apache-2.0
"""From a kernel spec to PTX.

`trace` imports cutlass: call it only in a worker process that sees no GPU and has `CUTE_DSL_ARCH` set to the spec's PTX target.
"""
from __future__ import annotations

import importlib

from ..manifest import KernelSpec
from ..operations import FAULT_REPORT, OPERATIONS
from ..plan import LaunchPlan

#: Where a family's kernels are: module with `build(spec) -> object with .kernel` (a cute.kernel taking the plan's parameters as a tuple).
_FAMILIES = {"ampere": "generator.kernels.ampere.attention", "hopper": "generator.kernels.hopper.attention"}
SYMBOL_PREFIX = "fmhaforge"


def source_modules(spec: KernelSpec) -> tuple[str, ...]:
    """The module to import for a spec's family; its imports are the kernel's sources."""
    return (_FAMILIES[spec.family],)


def trace(spec: KernelSpec, plan: LaunchPlan) -> str:
    """PTX of the kernel, with one entry whose parameters are the plan's, in order.

    The current folder must be this process's own: the toolchain leaves files there.

    :raises KeyError: for a family without kernels
    :raises RuntimeError: when the PTX is not that of the kernel asked for
    """
    import cutlass
    import cutlass.cute as cute

    kernel = importlib.import_module(_FAMILIES[spec.family]).build(spec)
    maps = sum(parameter.type == "tensormap" for parameter in plan.params)
    options = getattr(kernel, "launch_options", {})

    @cute.jit
    def host(arguments, stream):
        kernel.kernel(*(kernel.map_placeholder() for _ in range(maps)), arguments).launch(
            grid=[1, 1, 1], block=list(plan.block), cluster=list(plan.cluster), smem=plan.smem_bytes, stream=stream, **options
        )

    symbol = f"{SYMBOL_PREFIX}_{spec.key().replace('-', '_')}"
    type(kernel).kernel.set_name_prefix(symbol, remove_cutlass_symbol=True, keep_mangled_name=False)
    arguments = tuple(_placeholder(spec, parameter, cutlass, cute) for parameter in plan.params[maps:])
    # The toolchain writes its files under a name that all kernels share, by default into the folder that was current when it was
    # imported: processes forked from one parent would read one another's PTX.
    compile_options = f"--gpu-arch {spec.ptx_target} --keep-ptx --dump-dir ."
    compiled = cute.compile(host, arguments, cute.runtime.make_fake_stream(), options=compile_options)
    ptx = compiled.__ptx__
    ptx = ptx.decode() if isinstance(ptx, bytes) else ptx
    if f".entry {symbol}_0(" not in ptx:
        raise RuntimeError(f"the PTX that came back for {spec.key()} holds another kernel; does another process write to the same folder?")
    return ptx


def _placeholder(spec: KernelSpec, parameter, cutlass, cute):
    """A fake argument of a parameter's type; no memory stands behind it."""
    if parameter.value == FAULT_REPORT:
        return cute.runtime.make_ptr(cutlass.Int32, 0, cute.AddressSpace.gmem, assumed_align=4)
    if parameter.type == "ptr":
        argument = OPERATIONS[spec.operation].argument(parameter.value)
        element = {"float16": cutlass.Float16, "int32": cutlass.Int32}[argument.dtype]
        return cute.runtime.make_ptr(element, 0, cute.AddressSpace.gmem, assumed_align=argument.alignment)
    return {"i32": cutlass.Int32, "i64": cutlass.Int64, "f32": cutlass.Float32}[parameter.type](1)
