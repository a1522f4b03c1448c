# SPDX-License-Identifier: Apache-2.0
"""A bundle for tests, made from the real manifest in a second: all metadata is real, the cubins are not.

A fake cubin has a real CUDA ELF header (machine, ABI version, SM), followed by JSON that tells `fake_cuda` what is in it.
"""

import hashlib
import json
import struct
from pathlib import Path

from generator.arch import resolution_table
from generator.operations import OPERATIONS
from generator.plan import plan_for

FAKE_MARK = b"FAKE"


def elf_header(sm):
    """The 64 bytes that begin a cubin for `sm`, as ptxas writes them."""
    abi, flags = (7, 0x500500 | sm) if sm <= 90 else (8, 0x6000002 | sm << 8)
    ident = b"\x7fELF\x02\x01\x01\x41" + bytes([abi]) + bytes(7)
    return ident + struct.pack("<HHIQQQIHHHHHH", 2, 190, 1, 0, 0, 64, flags, 64, 56, 0, 64, 0, 0)


def fake_cubin(sm, exact, kernels):
    """`kernels`: {symbol: [size of each parameter]}."""
    return elf_header(sm) + FAKE_MARK + json.dumps({"sm": sm, "exact": exact, "kernels": kernels}, sort_keys=True).encode()


def fake_ptx(target, kernels):
    return f".version 8.8\n.target {target}\n// {json.dumps(kernels, sort_keys=True)}\n".encode()


def ptx_kernels(ptx):
    """What `fake_ptx` was given."""
    return json.loads(ptx.split(b"// ")[1].split(b"\n")[0])


def make_bundle(folder, manifest, sms=None, variants=None, change=None, checked=False):
    """Writes a bundle and returns its path. `change(document)` may alter the metadata before it is written."""
    folder = Path(folder)
    files, rows = {}, []
    for row in manifest.rows(sms=sms, variants=variants, checked=checked):
        rows.append(_row(row, files))
    document = {
        "schema_version": 1, "name": "fmhaforge", "version": "0.1.0", "validated": False,
        "operations": {name: operation.to_json() for name, operation in OPERATIONS.items()},
        "targets": [target.to_json() for target in manifest.targets],
        "families": {family.name: family.to_json() for family in manifest.families},
        "arch_table": {str(sm): list(served) for sm, served in
                       resolution_table(manifest.targets, {row["sm"] for row in rows}).items()},
        "variants": [variant.to_json() for variant in manifest.variants], "rows": rows,
        "provenance": {"commit": "0" * 40, "dirty": False, "tools": {"ptxas": "12.9.86"}},
    }
    if change:
        change(document)
    files["metadata.json"] = (json.dumps(document, sort_keys=True, indent=1) + "\n").encode()
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    write_checksums(folder, files)
    return folder


def write_checksums(folder, names):
    lines = [f"{hashlib.sha256((folder / name).read_bytes()).hexdigest()}  {name}\n" for name in sorted(names)]
    (folder / "SHA256SUMS").write_text("".join(lines))


def rewrite_metadata(folder, change):
    """Changes the metadata of a bundle and puts its digest right."""
    path = folder / "metadata.json"
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))
    names = [line.split("  ", 1)[1] for line in (folder / "SHA256SUMS").read_text().splitlines()]
    write_checksums(folder, names)


def _row(row, files):
    variant, plan = row.variant, plan_for(row)
    cubin, ptx = f"cubins/sm_{row.sm}/{variant.name}.cubin", f"ptx/{row.family.ptx_target}/{row.spec.key()}.ptx"
    files.setdefault(ptx, fake_ptx(row.family.ptx_target, {f"{variant.name}_0": [param.size for param in plan.params]}))
    kernels = ptx_kernels(files[ptx])
    files[cubin] = fake_cubin(row.sm, row.family.exact, kernels)
    return {
        "variant": variant.name, "sm": row.sm, "operation": variant.operation, "mask": variant.mask, "head_dim": variant.head_dim,
        "kv_layout": variant.kv_layout, "dtype": variant.dtype, "family": row.family.name, "abi_class": variant.abi_class,
        "tile": dict(row.tile), "checked": variant.checked, "select": variant.select.to_json() if variant.select else None,
        "cubin": cubin, "cubin_sha256": hashlib.sha256(files[cubin]).hexdigest(), "cubin_bytes": len(files[cubin]),
        "ptx": ptx, "ptx_sha256": hashlib.sha256(files[ptx]).hexdigest(), "ptx_target": row.family.ptx_target,
        "arch": row.cubin_arch, "assembler": row.target.assembler, "symbol": next(iter(kernels)), "registers": 128,
        "spill_bytes": 0, "smem_bytes": plan.smem_bytes, "static_smem_bytes": 0, "threads": plan.threads,
        "plan": plan.to_json(), "validated": False,
    }
