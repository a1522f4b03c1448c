# SPDX-License-Identifier: Apache-2.0
"""A bundle for tests, made from the real manifest in a second: all metadata is real, the cubins are not.

A fake cubin has a real CUDA ELF header (machine, ABI version, SM), followed by JSON that tells `fake_cuda` what is in it.
"""

import copy
import hashlib
import json
import struct
from pathlib import Path
from types import SimpleNamespace

from generator import archive, metadata
from generator.assemble import AssembleReport
from generator.canonical import canonical_json
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
    files = {}
    rows = [built_row(row, files) for row in manifest.rows(sms=sms, variants=variants, checked=checked)]
    document = metadata.document(SimpleNamespace(manifest=manifest), rows, "0.1.0", {"commit": "0" * 40, "dirty": False, "tools": {}})
    if change:
        document = copy.deepcopy(document)  # equal plans share their JSON
        change(document)
    files["metadata.json"] = canonical_json(document)
    return write(Path(folder), files)


def write(folder, files):
    """Writes files (path -> bytes) and their SHA256SUMS into a folder."""
    for name, data in {**files, archive.SUMS: archive.checksums(files)}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return folder


def rewrite(folder, name, change):
    """Replaces the bytes of a file by `change(bytes)` and puts SHA256SUMS right."""
    path = folder / name
    path.write_bytes(change(path.read_bytes()))
    listed = [line.split("  ", 1)[1] for line in (folder / archive.SUMS).read_text().splitlines()]
    (folder / archive.SUMS).write_bytes(archive.checksums({name: (folder / name).read_bytes() for name in listed}))


def rewrite_metadata(folder, change):
    """Changes the metadata of a bundle by `change(document)` and puts its digest right."""
    def altered(data):
        document = json.loads(data)
        change(document)
        return canonical_json(document)
    rewrite(folder, "metadata.json", altered)


def built_row(row, files):
    """What the build makes of a row; its files are added to `files`."""
    plan = plan_for(row)
    ptx_path = f"ptx/{row.family.ptx_target}/{row.spec.key()}.ptx"
    ptx = files.setdefault(ptx_path, fake_ptx(row.family.ptx_target, {f"{row.variant.name}_0": [param.size for param in plan.params]}))
    kernels = ptx_kernels(ptx)
    cubin_path = f"cubins/sm_{row.sm}/{row.variant.name}.cubin"
    cubin = files[cubin_path] = fake_cubin(row.sm, row.family.exact, kernels)
    report = AssembleReport(
        arch=row.cubin_arch, assembler=row.target.assembler, symbol=next(iter(kernels)), registers=128, spill_stores=0, spill_loads=0,
        stack=0, static_smem=0, params=(), reqntid=None, elf_abi=7, cubin_bytes=len(cubin), cubin_sha256=sha256(cubin), warnings=())
    return metadata.BuiltRow(row, plan, cubin, cubin_path, ptx_path, sha256(ptx), report, validated=False)


def sha256(data):
    """The hex digest of bytes."""
    return hashlib.sha256(data).hexdigest()
