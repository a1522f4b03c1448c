# SPDX-License-Identifier: Apache-2.0
"""Compiles the generated source for a host with `zig cc`: no system compiler, a pinned glibc floor, equal bytes every time."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from generator.cabi import numbers
from generator.cabi.render import Sources

STATIC_NAME = "libfmhaforge.a"
SHARED_NAME = "libfmhaforge.so"
SONAME = numbers.SONAME
GLIBC = "2.17"
"""The oldest glibc that the libraries run on."""

WARNINGS = ("-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Wconversion", "-Werror")
_CODE = ("-std=c11", "-D_GNU_SOURCE", "-O2", "-g0", "-fPIC", "-fvisibility=hidden", "-fno-sanitize=all", "-fno-stack-protector",
         "-fno-ident", "-fmath-errno", "-ffile-prefix-map=.=src", *WARNINGS)
_LINK = ("-shared", "-s", f"-Wl,-soname,{SONAME}", "-Wl,-Bsymbolic", "-Wl,--build-id=none", "-Wl,-z,noexecstack", "-Wl,-z,defs",
         "-Wl,--version-script=exports.map", "-ldl", "-lpthread")
_MEMBER = "fmhaforge.o"
"""The one object in the static library."""

_EXPORTS = "{\n    global: fmhaforge_*;\n    local: *;\n};\n"


class CompileError(RuntimeError):
    """The C compiler failed; the message holds its command and its output."""


@dataclass(frozen=True)
class Host:
    """A machine that links the library: `machine` is the ELF e_machine of its objects."""

    name: str
    triple: str
    cpu: str
    machine: int


HOSTS = {
    "x86_64": Host("x86_64", f"x86_64-linux-gnu.{GLIBC}", "x86_64", 62),
    "aarch64": Host("aarch64", f"aarch64-linux-gnu.{GLIBC}", "generic", 183),
}
"""Every host the libraries are built for, by the name of its folder."""


@dataclass(frozen=True)
class Zig:
    """How zig is called; `cache` is a folder for its caches, which may be shared and kept between builds."""

    cache: Path
    command: tuple[str, ...] = field(default=(sys.executable, "-m", "ziglang"))

    def run(self, arguments: Sequence[str], folder: Path) -> str:
        """Run zig in `folder` and hand back its standard output. Raises CompileError when it fails."""
        # Nothing else of the caller's settings: CPATH, CFLAGS and their like would choose other headers or other bytes.
        inherited = {name: os.environ[name] for name in ("PATH", "HOME", "LD_LIBRARY_PATH", "TMPDIR") if name in os.environ}
        environment = {**inherited, "LC_ALL": "C.UTF-8", "ZIG_LOCAL_CACHE_DIR": str(self.cache.resolve()),
                       "ZIG_GLOBAL_CACHE_DIR": str(self.cache.resolve())}
        command = [*self.command, *arguments]
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise CompileError(f"{' '.join(command)} failed in {folder} with exit status {done.returncode}:\n{done.stderr.strip()}")
        return done.stdout

    def compile(self, host: Host, arguments: Sequence[str], folder: Path) -> None:
        """Run the C compiler for a host in `folder`; a source called .cc is C++ (without its standard library)."""
        self.run(("cc", "-target", host.triple, f"-mcpu={host.cpu}", *arguments), folder)


@dataclass(frozen=True)
class Libraries:
    """What `compile_libraries` made: the archive, the shared library under its SONAME, and the link that linkers look for."""

    static: Path
    shared: Path
    link: Path


def compile_object(source: Path, include: Path, host: Host, out: Path, zig: Zig, defines: Sequence[str] = (), more: Sequence[str] = ()) -> None:
    """Compile one C source, in its own folder, into the object `out`. `defines` are macros as on a command line. Raises CompileError."""
    flags = (*_CODE, *(f"-D{define}" for define in defines), *more)
    zig.compile(host, ("-c", *flags, f"-I{os.path.relpath(include, source.parent)}", "-o", str(out.resolve()), source.name), source.parent)


def compile_rows(source: Path, sources: Sources, host: Host, out: Path, zig: Zig, defines: Sequence[str] = ()) -> None:
    """Compile the source that `render_rows` wrote, which may stand elsewhere than the others, into the object `out`. Raises CompileError."""
    headers = os.path.relpath(sources.source.parent, source.parent)
    compile_object(source, sources.include, host, out, zig, defines, (f"-I{headers}",))


def make_object(out: Path, objects: Sequence[Path], zig: Zig) -> None:
    """Put objects of one host together into the object `out`. Raises CompileError."""
    zig.run(("ld.lld", "-r", "-o", str(out.resolve()), *(str(path.resolve()) for path in objects)), out.parent)


def compile_library_object(sources: Sources, host: Host, out: Path, zig: Zig, defines: Sequence[str] = ()) -> None:
    """Compile the whole library, code and rows as `render` wrote them, into the one object `out`. Raises CompileError."""
    code, rows = (out.with_name(f"{out.stem}.{part}.o") for part in ("code", "rows"))
    compile_object(sources.source, sources.include, host, code, zig, defines)
    compile_rows(sources.rows_source, sources, host, rows, zig, defines)
    make_object(out, (code, rows), zig)
    code.unlink()
    rows.unlink()


def make_archive(out: Path, objects: Sequence[Path], zig: Zig) -> None:
    """Put objects into the static archive `out`, which is made anew, in this order. Raises CompileError."""
    out.unlink(missing_ok=True)
    zig.run(("ar", "rcsD", str(out.resolve()), *(str(path.resolve()) for path in objects)), out.parent)


def compile_libraries(sources: Sources, host: Host, out: Path, zig: Zig) -> Libraries:
    """Compile what `render` wrote into the libraries for `host` in the folder `out`, which is made anew. Raises CompileError."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    unit = out / _MEMBER
    compile_library_object(sources, host, unit, zig)
    made = link_libraries(unit, host, out, zig)
    unit.unlink()
    return made


def link_libraries(unit: Path, host: Host, out: Path, zig: Zig) -> Libraries:
    """Make the libraries for `host` in the folder `out` from the library's object, which must be called fmhaforge.o. Raises CompileError."""
    out = out.resolve()
    made = Libraries(out / STATIC_NAME, out / SONAME, out / SHARED_NAME)
    exports = out / "exports.map"
    exports.write_text(_EXPORTS, encoding="ascii")
    zig.compile(host, ("-o", made.shared.name, os.path.relpath(unit, out), *_LINK), out)
    make_archive(made.static, (unit,), zig)
    made.link.symlink_to(made.shared.name)
    exports.unlink()
    return made
