# SPDX-License-Identifier: Apache-2.0
"""What a build consists of, as data: kernels to trace, cubins to assemble, rows of the bundle. Neither SCons nor cutlass is imported.

    rows of the manifest -> kernels (equal specs share one) -> cubins (kernel x SM) -> rows of the bundle

Each kernel and cubin has a fingerprint: everything that its bytes depend on, field by field, so that a rebuild can be explained.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from generator import sources, toolchain
from generator.kernels import registry
from generator.model import KernelSpec, Manifest, Row
from generator.plan import LaunchPlan, plan_for
from generator.trace import ROOT, kernel_sources

#: The modules whose code stands between a kernel and its bytes, besides the kernel's own.
TRACE_MODULES = ("generator.trace_server",)
ASSEMBLE_MODULES = ("generator.assemble", "generator.cubin", "generator.rowcheck")
REGISTRY = "generator.kernels.registry"


class BuildPlanError(Exception):
    """The rows cannot be built as asked; the message names the variant or the field."""


@dataclass(frozen=True)
class Kernel:
    """What is traced once. `name` is the first variant of the manifest that uses it; `roots` start its source closure."""

    name: str
    spec: KernelSpec
    plan: LaunchPlan
    roots: tuple[str, ...]
    fingerprint: dict[str, Any]

    @property
    def ptx_path(self) -> str:
        """Path of the PTX relative to the build folder and to the bundle."""
        return ptx_path(self.spec, self.name)

    @property
    def key(self) -> str:
        """The fingerprint's digest (SHA-256, hex)."""
        return toolchain.digest_of(self.fingerprint)


@dataclass(frozen=True)
class Cubin:
    """A kernel assembled for one SM; rows with equal kernels share it."""

    kernel: Kernel
    row: Row
    fingerprint: dict[str, Any]

    @property
    def name(self) -> str:
        """`fmha_v2_d64 sm_90`."""
        return f"{self.kernel.name} {self.row.cubin_arch}"

    @property
    def path(self) -> str:
        """Path of the cubin relative to the build folder."""
        return cubin_path(self.row.sm, self.kernel.name)

    @property
    def report_path(self) -> str:
        """Path of the assembler's report relative to the build folder."""
        return report_path(self.row.sm, self.kernel.name)

    @property
    def key(self) -> str:
        """The fingerprint's digest (SHA-256, hex), without the PTX, which is a file of its own."""
        return toolchain.digest_of(self.fingerprint)


@dataclass(frozen=True)
class BuildPlan:
    """A whole build: kernels and cubins in the manifest's order, and for each row (variant, SM) its cubin."""

    manifest: Manifest
    rows: tuple[Row, ...]
    kernels: tuple[Kernel, ...]
    cubins: tuple[Cubin, ...]
    cubin_of: dict[tuple[str, int], Cubin]

    def shard(self, index: int, count: int) -> "BuildPlan":
        """The share `index` (from 1) of `count`: every count-th kernel with all its cubins; the shares are disjoint and complete."""
        kept = self.kernels[index - 1 :: count]
        names = {kernel.name for kernel in kept}
        cubins = tuple(cubin for cubin in self.cubins if cubin.kernel.name in names)
        rows = tuple(row for row in self.rows if self.cubin_of[row.variant.name, row.sm].kernel.name in names)
        return BuildPlan(self.manifest, rows, kept, cubins, {(row.variant.name, row.sm): self.cubin_of[row.variant.name, row.sm] for row in rows})


def kernel_names(manifest: Manifest) -> dict[KernelSpec, str]:
    """A name for every kernel of the whole manifest: the first variant that uses it, with the first SM where that is ambiguous.

    Made from all rows, so that a kernel keeps its name whatever part of the matrix is built.
    """
    names: dict[KernelSpec, str] = {}
    for variant in manifest.variants:
        for row in (Row(variant, manifest.target(sm)) for sm in variant.sms):
            if row.spec not in names:
                default = row.build == variant.build
                names[row.spec] = variant.name if default else f"{variant.name}-sm_{row.sm}"
    return names


def all_products(manifest: Manifest) -> frozenset[str]:
    """Every path relative to the build folder that some build of this manifest makes for a kernel or a cubin."""
    names = kernel_names(manifest)
    paths = set()
    for variant in manifest.variants:
        for sm in variant.sms:
            spec = Row(variant, manifest.target(sm)).spec
            paths |= {ptx_path(spec, names[spec]), cubin_path(sm, names[spec]), report_path(sm, names[spec])}
    return frozenset(paths)


def ptx_path(spec: KernelSpec, name: str) -> str:
    """Path of a kernel's PTX relative to the build folder and to the bundle."""
    return f"ptx/{spec.ptx_target}/{name}.ptx"


def cubin_path(sm: int, name: str) -> str:
    """Path of a kernel's cubin relative to the build folder."""
    return f"cubins/sm_{sm}/{name}.cubin"


def report_path(sm: int, name: str) -> str:
    """Path of the assembler's report relative to the build folder."""
    return f"cubins/sm_{sm}/{name}.json"


def trace_fingerprint(spec: KernelSpec, plan: LaunchPlan, roots: tuple[str, ...]) -> dict[str, Any]:
    """Everything that a kernel's PTX depends on."""
    return {
        "spec": spec.to_json(),
        "plan": plan.to_json(),
        "sources": {**sources.digests(kernel_sources(roots)), **module_digests(TRACE_MODULES)},
        "tools": _trace_tools(),
        "python": toolchain.python_minor(),
    }


def assemble_fingerprint(arch: str, assembler: str, plan: LaunchPlan, smem_limit: int, allow_spills: bool) -> dict[str, Any]:
    """Everything besides the PTX that a cubin and its acceptance depend on."""
    found = toolchain.assembler_distribution(assembler)
    return {
        "arch": arch,
        "assembler": {found.name: f"{found.version} {found.digest}"},
        "params": [[param.type, param.size] for param in plan.params],
        "block": list(plan.block),
        "smem_bytes": plan.smem_bytes,
        "smem_limit": smem_limit,
        "allow_spills": allow_spills,
        "sources": module_digests(ASSEMBLE_MODULES),
    }


@lru_cache(maxsize=None)
def module_digests(modules: tuple[str, ...]) -> dict[str, str]:
    """Path -> digest of the named modules' own files."""
    return sources.digests(source for source in sources.closure(ROOT, modules) if source.module in modules)


@lru_cache(maxsize=None)
def _trace_tools() -> dict[str, str]:
    return {found.name: f"{found.version} {found.digest}" for found in toolchain.trace_distributions()}


def make(manifest: Manifest, rows: tuple[Row, ...], allow_spills: bool = False) -> BuildPlan:
    """The build of `rows`. Raises BuildPlanError, ManifestError, PlanError or ToolchainError."""
    names = kernel_names(manifest)
    kernels: dict[KernelSpec, Kernel] = {}
    cubins: dict[tuple[str, int], Cubin] = {}
    cubin_of: dict[tuple[str, int], Cubin] = {}
    for row in rows:
        plan = plan_for(row)
        kernel = kernels.get(row.spec)
        if kernel is None:
            roots = (REGISTRY, *registry.source_modules(row.spec))
            kernel = kernels[row.spec] = Kernel(names[row.spec], row.spec, plan, roots, trace_fingerprint(row.spec, plan, roots))
        elif kernel.plan != plan:
            raise BuildPlanError(f"{row.variant.name} on SM {row.sm} has another launch plan than {kernel.name}, though both are the kernel "
                                 f"{row.spec.key()}: a plan may depend on nothing but the kernel's fields")
        place = (kernel.name, row.sm)
        if place not in cubins:
            fingerprint = assemble_fingerprint(row.cubin_arch, row.target.assembler, plan, row.target.smem_limit, allow_spills)
            cubins[place] = Cubin(kernel, row, fingerprint)
        cubin_of[row.variant.name, row.sm] = cubins[place]
    return BuildPlan(manifest, rows, tuple(kernels.values()), tuple(cubins.values()), cubin_of)
