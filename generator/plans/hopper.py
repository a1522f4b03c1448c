# SPDX-License-Identifier: Apache-2.0
"""Launch plan of the `hopper` family: tensor maps, kernel parameters and grid, as data.

The kernel (generator/kernels/hopper) takes its geometry and its parameter order from here, so the plan and the kernel
cannot drift apart unseen; the build compares both with the cubin.
"""
from __future__ import annotations

from ..manifest import KernelSpec
from ..operations import OPERATIONS, TOKENS_PER_PAGE
from ..plan import Count, LaunchPlan, Param, PlanError, TensorMap
from .hopper_geometry import BOX, ELEMENT_BYTES, ROWS, Geometry, geometry

#: Arguments that stand in no parameter: TMA needs them in the maps only, or nobody does.
_UNUSED = {"q", "k", "v", "kv_pool", "total_seqlen", "total_seqlen_q", "num_flat_pages"}
_STRIDES = ("o_stride", "page_list_stride", "block_stride")
#: Shared memory of an SM 90, and what the system takes of it for each block (CUDA C++ Programming Guide, compute capabilities).
SM_SHARED_BYTES = 228 << 10
BLOCK_RESERVED_BYTES = 1 << 10
#: The kernel numbers its query tiles in 32 bits, and adds a section of heads or a round of blocks to such a number.
MOST_TILES = 1 << 30
_ORDER = {"ptr": 0, "i64": 1, "i32": 2, "f32": 3}
_QUERY_EXTENT = {"vit": "max_seqlen", "paged_ragged": "max_seqlen_q"}


def _bytes(stride: str) -> str:
    return f"{stride} * {ELEMENT_BYTES}"


def _map(g: Geometry, base: str, extents: tuple[str, ...], strides: tuple[str, ...], rows: int) -> TensorMap:
    """A map over [.., token, column] of `base`, one box of `rows` tokens at a time. Extents of 0 become 1: they are never read."""
    dims = (str(g.head_dim), *(f"max({extent}, 1)" for extent in extents))
    box = (BOX, rows) + (1,) * (len(dims) - 2)
    return TensorMap(base, "float16", dims, tuple(_bytes(stride) for stride in strides), box, BOX * ELEMENT_BYTES)


def _dense(g: Geometry, base: str, seqlen: str, heads: str, rows: int) -> TensorMap:
    return _map(g, base, (seqlen, heads, "batch"), (f"{base}_stride_seq", str(g.head_dim), f"{base}_stride_batch"), rows)


def _packed(g: Geometry, base: str, total: str, heads: str, rows: int) -> TensorMap:
    return _map(g, base, (total, heads), (f"{base}_stride_seq", str(g.head_dim)), rows)


def _pool(g: Geometry) -> TensorMap:
    extents = (str(TOKENS_PER_PAGE), "num_kv_heads", "num_flat_pages")
    return _map(g, "kv_pool", extents, ("pool_stride_token", "pool_stride_head", "pool_stride_page"), g.n)


def tensor_maps(spec: KernelSpec) -> tuple[Param, ...]:
    """The tensor maps of a kernel, its first parameters: q, then k and v, or the pool."""
    g = geometry(spec)
    if spec.operation == "vit":
        maps = {"q": _packed(g, "q", "total_seqlen", "num_q_heads", ROWS)}
        maps.update({name: _packed(g, name, "total_seqlen", "num_kv_heads", g.n) for name in ("k", "v")})
    elif spec.operation == "paged_ragged":
        maps = {"q": _packed(g, "q", "total_seqlen_q", "num_q_heads", ROWS), "kv_pool": _pool(g)}
    else:
        maps = {"q": _dense(g, "q", "seqlen_q", "num_q_heads", ROWS)}
        if spec.operation == "paged":
            maps["kv_pool"] = _pool(g)
        else:
            maps.update({name: _dense(g, name, "seqlen_kv", "num_kv_heads", g.n) for name in ("k", "v")})
    return tuple(Param(f"{name}_map", "tensormap", map=tensor_map) for name, tensor_map in maps.items())


def scalar_parameters(spec: KernelSpec) -> tuple[Param, ...]:
    """The parameters after the maps: pointers, 64-bit, 32-bit integers, floats (so that no padding arises)."""
    windowed = spec.mask in ("sliding_causal", "vision_block")
    used = [
        argument
        for argument in OPERATIONS[spec.operation].arguments
        if argument.name not in _UNUSED
        and (argument.type != "i64" or argument.name.startswith(_STRIDES))
        and (argument.name != "window_size_left" or windowed)
    ]
    used.sort(key=lambda argument: _ORDER[argument.type])
    return tuple(Param(argument.name, argument.type, argument.name) for argument in used)


def plan(spec: KernelSpec) -> LaunchPlan:
    """The launch plan of a kernel: as many blocks as the SMs hold at once, each working through its share of the query tiles.

    :raises PlanError: when a step of a paged kernel would straddle two pages, or an SM can't hold the blocks that the tile asks for
    """
    g = geometry(spec)
    resident = g.blocks_per_sm * (g.shared_bytes + BLOCK_RESERVED_BYTES)
    if resident > SM_SHARED_BYTES:
        raise PlanError(f"{g.blocks_per_sm} blocks of {g.shared_bytes} bytes of shared memory take {resident} bytes with what the system reserves, and an "
                        f"SM has {SM_SHARED_BYTES}: lower blocks_per_sm, m, n or stages")
    if spec.kv_layout == "paged" and TOKENS_PER_PAGE % g.step:
        raise PlanError(f"a step of {g.step} keys straddles pages of {TOKENS_PER_PAGE}: n x columns must divide them")
    extent = _QUERY_EXTENT.get(spec.operation, "seqlen_q")
    tiles = f"ceil_div({extent}, {g.m}) * num_q_heads * batch"
    blocks = "sm_count" if g.blocks_per_sm == 1 else f"sm_count * {g.blocks_per_sm}"
    return LaunchPlan(
        grid=(f"min({tiles}, {blocks})", "1", "1"),
        block=(g.threads, 1, 1),
        cluster=(1, 1, 1),
        smem_bytes=g.shared_bytes,
        empty_if_zero=("batch", extent, "num_q_heads"),
        counts=(Count("query tiles", tiles, MOST_TILES),),
        params=(*tensor_maps(spec), *scalar_parameters(spec)),
    )
