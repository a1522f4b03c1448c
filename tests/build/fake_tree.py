# SPDX-License-Identifier: Apache-2.0
"""A source tree with the real build and fake kernels: tracing costs nothing, while the assemblers, SCons and the bundle are the real ones.

The fake kernels stand in three files (`fake_a.py` for causal, `fake_b.py` for sliding-causal, `fake_shared.py` for both) and write PTX whose
parameters and block are the launch plan's. A package `cutlass` in the tree stands for the toolchain, so nothing heavy is imported.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

REGISTRY = '''
import importlib

_MODULES = {"causal": "generator.kernels.fake_a", "sliding_causal": "generator.kernels.fake_b"}


def source_modules(spec):
    return (_MODULES[spec.mask],)


def trace(spec, plan):
    return importlib.import_module(_MODULES[spec.mask]).trace(spec, plan)
'''

SHARED = '''
import hashlib
import json

TYPES = {"ptr": ".u64", "i64": ".u64", "i32": ".u32", "f32": ".f32"}


def ptx(spec, plan, body=""):
    """PTX of a kernel that stores a number made from the spec and `body` to its first pointer."""
    number = int(hashlib.sha256(json.dumps([spec.to_json(), body], sort_keys=True).encode()).hexdigest()[:7], 16)
    params = ", ".join(f".param {TYPES[p.type]} p{i}" for i, p in enumerate(plan.params))
    block = ", ".join(map(str, plan.block))
    return f""".version 8.8
.target {spec.ptx_target}
.address_size 64
.visible .entry fake_{spec.operation}({params})
.reqntid {block}
{{
    .reg .b64 %rd<3>;
    .reg .b32 %r<2>;
    ld.param.u64 %rd1, [p0];
    cvta.to.global.u64 %rd2, %rd1;
    mov.u32 %r1, {number};
    st.global.u32 [%rd2], %r1;
    ret;
}}
"""
'''

KERNEL = '''
from generator.kernels import fake_shared


def trace(spec, plan):
    return fake_shared.ptx(spec, plan, "{name}")
'''

VARIANT = """
  - name: {name}
    operation: llm
    head_dim: {head_dim}
    mask: {mask}
    kv_layout: dense
    dtype: float16
    abi_class: L14
    family: ampere
    tile: {{m: {m}, n: {n}, warps: 4}}
    sms: all
"""

VARIANTS = (("fake_d64", 64, "causal", 64, 64), ("fake_d128", 128, "causal", 64, 32), ("fake_d64_sw", 64, "sliding_causal", 64, 64))

HEAD = """# SPDX-License-Identifier: Apache-2.0
schema_version: 1
families:
  ampere: {ptx_target: sm_80, exact: false}
targets:
  - {sm: 90, assembler: cuda12, platform: desktop, smem_limit: 232448}
  - {sm: 110, assembler: cuda13, platform: tegra, smem_limit: 232448}
sm_sets:
  all: [90, 110]
variants:
"""


def manifest_text(variants=VARIANTS) -> str:
    """A manifest of the given (name, head_dim, mask, m, n) for SM 90 and 110."""
    return HEAD + "".join(VARIANT.format(name=name, head_dim=head_dim, mask=mask, m=m, n=n) for name, head_dim, mask, m, n in variants)


class Run:
    """How a build ended: status, standard output, standard error."""

    def __init__(self, done: subprocess.CompletedProcess) -> None:
        self.status = done.returncode
        self.out = done.stdout
        self.err = done.stderr

    @property
    def text(self) -> str:
        """Both streams, for messages of failed tests."""
        return f"status {self.status}\n--- out\n{self.out}\n--- err\n{self.err}"

    def tasks(self, action: str) -> list[str]:
        """The names of the tasks of one action that were done, sorted."""
        return sorted(line.split("]", 1)[1].split()[1] + " " + line.split("]", 1)[1].split()[2]
                      for line in self.out.splitlines() if line.startswith("[") and line.split("]", 1)[1].split()[0] == action)


class FakeTree:
    """A copy of the tree with fake kernels, in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True)
        for name in ("SConstruct", "LICENSE", "requirements.lock"):
            shutil.copyfile(ROOT / name, folder / name)
        ignored = shutil.ignore_patterns("kernels")
        shutil.copytree(ROOT / "generator", folder / "generator", ignore=ignored)
        shutil.copytree(ROOT / "runtime", folder / "runtime", ignore=ignored)
        self.write("cutlass/__init__.py", "")
        # The real toolchain puts itself in front of every path when Python starts; this comes after it.
        self.write("sitecustomize.py", "import os, sys\nsys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))\n")
        self.write("generator/kernels/__init__.py", "")
        self.write("generator/kernels/registry.py", REGISTRY)
        self.write("generator/kernels/fake_shared.py", SHARED)
        self.write("generator/kernels/fake_a.py", KERNEL.format(name="a"))
        self.write("generator/kernels/fake_b.py", KERNEL.format(name="b"))
        self.write("variants.yaml", manifest_text())

    def write(self, path: str, text: str) -> None:
        """Writes a file of the tree."""
        place = self.folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, encoding="utf-8")

    def append(self, path: str, text: str) -> None:
        """Adds text to a file of the tree."""
        with open(self.folder / path, "a", encoding="utf-8") as file:
            file.write(text)

    def command(self, *arguments: str) -> list[str]:
        """The command line of a build."""
        return [sys.executable, "-m", "SCons", "-Q", *arguments]

    def environment(self, **settings: str) -> dict[str, str]:
        """A plain environment, with what a test adds."""
        return {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/"), **settings}

    def build(self, *arguments: str, **settings: str) -> Run:
        """Runs the build to its end; `settings` are environment variables."""
        return Run(subprocess.run(self.command(*arguments), cwd=self.folder, env=self.environment(**settings), capture_output=True, text=True,
                                  timeout=300, stdin=subprocess.DEVNULL, check=False))

    def good(self, *arguments: str, **settings: str) -> Run:
        """Runs a build that must succeed."""
        run = self.build(*arguments, **settings)
        assert run.status == 0, run.text
        return run

    def listing(self) -> list[str]:
        """Every file and folder of the tree but bytecode."""
        return sorted(path.relative_to(self.folder).as_posix() for path in self.folder.rglob("*") if "__pycache__" not in path.parts)

    def products(self, folder: str = "build") -> dict[str, bytes]:
        """The traced and assembled files: path -> content."""
        top = self.folder / folder
        return {path.relative_to(top).as_posix(): path.read_bytes() for name in ("ptx", "cubins") for path in sorted((top / name).rglob("*"))
                if path.is_file()}
