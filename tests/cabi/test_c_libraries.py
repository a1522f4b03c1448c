# SPDX-License-Identifier: Apache-2.0
"""The compiled libraries: what they export and need, that they link everywhere, and that equal inputs give equal bytes."""

import ctypes.util
import os
import re
import shutil
import struct
import subprocess

import pytest

from c_build import HERE, HOST
from generator import cabi
from generator.cabi.compile import WARNINGS

PT_DYNAMIC, PT_GNU_STACK, DT_NEEDED, DT_SONAME, DT_INIT, DT_INIT_ARRAY, DT_RPATH, DT_RUNPATH = 2, 0x6474E551, 1, 14, 12, 25, 15, 29


class Elf:
    """As much of a 64-bit little-endian ELF file as the tests look at."""

    def __init__(self, data):
        assert data[:6] == b"\x7fELF\x02\x01"
        self.data = data
        self.machine, = struct.unpack_from("<H", data, 18)
        phoff, shoff = struct.unpack_from("<QQ", data, 32)
        phentsize, phnum, shentsize, shnum, shstrndx = struct.unpack_from("<HHHHH", data, 54)
        self.segments = [struct.unpack_from("<IIQQQQQQ", data, phoff + i * phentsize) for i in range(phnum)]
        raw = [struct.unpack_from("<IIQQQQIIQQ", data, shoff + i * shentsize) for i in range(shnum)]
        names = raw[shstrndx]
        self.sections = {self._text(names[4] + section[0]): section for section in raw}

    def _text(self, at):
        return self.data[at:self.data.index(b"\0", at)].decode()

    def content(self, name):
        section = self.sections[name]
        return self.data[section[4]:section[4] + section[5]]

    def symbols(self, table, strings):
        entries = self.content(table)
        base = self.sections[strings][4]
        for at in range(0, len(entries), 24):
            name, info, _, shndx, _, _ = struct.unpack_from("<IBBHQQ", entries, at)
            yield self._text(base + name), info >> 4, shndx

    def dynamic(self):
        entries, base = self.content(".dynamic"), self.sections[".dynstr"][4]
        for tag, value in struct.iter_unpack("<qQ", entries):
            yield tag, self._text(base + value) if tag in (DT_NEEDED, DT_SONAME, DT_RPATH, DT_RUNPATH) else value


def archive_members(data):
    """[(name, mtime, uid, gid, content)] of an ar archive, without its symbol table and name table."""
    assert data[:8] == b"!<arch>\n"
    members, at, long_names = [], 8, b""
    while at < len(data):
        name, mtime, uid, gid = (data[at + a:at + b].decode().strip() for a, b in ((0, 16), (16, 28), (28, 34), (34, 40)))
        size = int(data[at + 48:at + 58])
        content = data[at + 60:at + 60 + size]
        if name == "//":
            long_names = content
        elif name != "/":
            if name.startswith("/"):
                name = long_names[int(name[1:]):].split(b"\n")[0].decode()
            members.append((name.rstrip("/"), mtime, uid, gid, content))
        at += 60 + size + size % 2
    return members


@pytest.fixture(scope="session")
def aarch64(built, zig, tmp_path_factory):
    return cabi.compile_libraries(built.sources, cabi.HOSTS["aarch64"], tmp_path_factory.mktemp("aarch64") / "lib", zig)


@pytest.fixture(params=["x86_64", "aarch64"])
def host_libraries(request, built):
    """(host, its libraries)"""
    libraries = built.libraries if request.param == "x86_64" else request.getfixturevalue("aarch64")
    return cabi.HOSTS[request.param], libraries


def test_shared_library(host_libraries, built):
    host, libraries = host_libraries
    elf = Elf(libraries.shared.read_bytes())
    assert elf.machine == host.machine
    dynamic = list(elf.dynamic())
    assert [value for tag, value in dynamic if tag == DT_SONAME] == ["libfmhaforge.so.0"]
    assert {value for tag, value in dynamic if tag == DT_NEEDED} <= {"libc.so.6", "libdl.so.2", "libpthread.so.0", "ld-linux-x86-64.so.2",
                                                                   "ld-linux-aarch64.so.1"}
    assert not {DT_RPATH, DT_RUNPATH} & {tag for tag, _ in dynamic}
    stack = [segment for segment in elf.segments if segment[0] == PT_GNU_STACK]
    assert len(stack) == 1 and stack[0][1] & 1 == 0
    exported = {name for name, binding, shndx in elf.symbols(".dynsym", ".dynstr") if shndx != 0}
    launches = {f"fmhaforge_launch_{name}" for name in built.metadata.operations}
    assert launches | {"fmhaforge_get_table", "fmhaforge_query", "fmhaforge_why_not", "fmhaforge_preload"} <= exported
    assert [name for name in exported if not name.startswith("fmhaforge_")] == []
    declared = set(re.findall(r"FMHAFORGE_API [^;(]*?(fmhaforge_\w+)\(", (built.sources.include / "fmhaforge.h").read_text()))
    assert exported == declared
    versions = re.findall(rb"GLIBC_2\.(\d+)", elf.content(".dynstr"))
    assert versions and max(map(int, versions)) <= 17
    assert libraries.link.is_symlink() and os.readlink(libraries.link) == "libfmhaforge.so.0"


def test_static_library(host_libraries):
    host, libraries = host_libraries
    members = archive_members(libraries.static.read_bytes())
    assert [(name, mtime, uid, gid) for name, mtime, uid, gid, _ in members] == [("fmhaforge.o", "0", "0", "0")]
    elf = Elf(members[0][4])
    assert elf.machine == host.machine
    assert ".note.GNU-stack" in elf.sections and elf.sections[".note.GNU-stack"][2] & 4 == 0
    linkable = {name for name, binding, shndx in elf.symbols(".symtab", ".strtab") if binding != 0 and shndx != 0}
    assert linkable and [name for name in linkable if not name.startswith("fmhaforge_")] == []


def test_nothing_runs_before_main(host_libraries):
    _, libraries = host_libraries
    shared = Elf(libraries.shared.read_bytes())
    assert not {DT_INIT, DT_INIT_ARRAY} & {tag for tag, _ in shared.dynamic()}
    for elf in (shared, Elf(archive_members(libraries.static.read_bytes())[0][4])):
        assert [name for name in elf.sections if name.startswith((".init", ".fini", ".ctors", ".dtors"))] == []


def test_no_prints_and_no_exits(built):
    """Nothing that writes or ends the process is called."""
    elf = Elf(built.libraries.shared.read_bytes())
    needed = {name for name, _, shndx in elf.symbols(".dynsym", ".dynstr") if name and shndx == 0}
    assert not needed & {"printf", "fprintf", "puts", "fputs", "write", "exit", "_exit", "abort", "__assert_fail", "perror", "getenv"}
    assert "vsnprintf" in needed


def test_every_cubin_is_inside_once(built):
    data = built.libraries.static.read_bytes()
    digests = {row.cubin_sha256: row.cubin for row in built.metadata.rows}
    assert 0 < len(digests) <= len(built.metadata.rows)
    for path in digests.values():
        assert data.count((built.bundle / path).read_bytes()) == 1, path


def test_equal_inputs_give_equal_bytes(built, zig, tmp_path, host_libraries):
    host, libraries = host_libraries
    sources = cabi.render(built.document, built.bundle, tmp_path / "another folder" / "c")
    again = cabi.compile_libraries(sources, host, tmp_path / "elsewhere" / "lib", zig)
    for name in ("static", "shared"):
        assert getattr(again, name).read_bytes() == getattr(libraries, name).read_bytes(), name
    for name in sources.headers:
        assert (sources.include / name).read_bytes() == (built.sources.include / name).read_bytes()


def test_no_path_of_the_build_is_inside(built, tmp_path):
    for path in (built.libraries.static, built.libraries.shared):
        data = path.read_bytes()
        for folder in (built.sources.root, built.bundle, HERE.parents[1], tmp_path.parent):
            assert str(folder).encode() not in data


def run(program, **environment):
    done = subprocess.run([program], env={**os.environ, **environment}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("name, standard", [("consumer.c", "-std=c11"), ("consumer.cc", "-std=c++17")])
@pytest.mark.parametrize("kind", ["static", "shared"])
def test_consumer_links_and_asks_without_a_driver(built, zig, tmp_path, name, standard, kind):
    shutil.copyfile(HERE / "consumer.c", tmp_path / name)
    library = [str(built.libraries.static)] if kind == "static" else [f"-L{built.libraries.shared.parent}", "-lfmhaforge"]
    zig.compile(HOST, (standard, *WARNINGS, f"-I{built.sources.include}", name, *library, "-ldl", "-lpthread", "-o", "consumer"), tmp_path)
    output = run(tmp_path / "consumer", LD_LIBRARY_PATH=str(built.libraries.shared.parent))
    lines = output.splitlines()
    assert lines[0] == f"fmha_v2_d64 SM 87 of {len(built.metadata.rows)} rows, version {built.metadata.version}"
    assert lines[1].startswith("FMHAFORGE_ERROR_UNSUPPORTED: sm 75 is not served: the matching rows are built for SM 80, ")
    if ctypes.util.find_library("cuda") is None:
        assert lines[2] == "FMHAFORGE_ERROR_NO_DRIVER"


@pytest.mark.parametrize("compiler, source", [("gcc", "consumer.c"), ("g++", "consumer.cc")])
def test_system_linker_takes_the_archive(built, tmp_path, compiler, source):
    if shutil.which(compiler) is None:
        pytest.skip(f"no {compiler} here")
    shutil.copyfile(HERE / "consumer.c", tmp_path / source)
    command = [compiler, *WARNINGS, f"-I{built.sources.include}", source, str(built.libraries.static), "-Wl,--no-undefined", "-ldl",
               "-lpthread", "-o", "consumer"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "fmha_v2_d64 SM 87" in run(tmp_path / "consumer")


@pytest.mark.parametrize("kind", ["static", "shared"])
def test_every_variant_of_every_sm_in_one_program(built, zig, tmp_path, kind):
    """One program includes every variant's header, uses every function of it, and finds the row of each variant and SM."""
    rows = [row for row in built.metadata.rows if not row.checked]
    assert len(rows) == 340
    variants = {row.variant: row.operation for row in rows}
    lines = ['#include <stdio.h>\n#include "fmhaforge.h"\n', *(f'#include "fmhaforge/{name}.h"\n' for name in variants)]
    lines.append("int main(void)\n{\n    const fmhaforge_row* row = NULL;\n    int loaded = 0;\n    int launched = 0;\n")
    for name, operation in variants.items():
        lines.append(f"    fmhaforge_{operation}_args {name} = {{.size = sizeof {name}}};\n    launched += fmhaforge_{name}_launch(&{name}, NULL) == FMHAFORGE_OK;\n"
                     f"    loaded += fmhaforge_{name}_preload(NULL) == FMHAFORGE_OK;\n")
    for row in rows:
        lines.append(f'    if (fmhaforge_{row.variant}_row({row.sm}, &row) == FMHAFORGE_OK) {{ printf("%s %d\\n", row->variant, (int)row->sm); }}\n')
    lines.append('    printf("%d %d\\n", loaded, launched);\n    return 0;\n}\n')
    (tmp_path / "all.c").write_text("".join(lines))
    library = [str(built.libraries.static)] if kind == "static" else [f"-L{built.libraries.shared.parent}", "-lfmhaforge"]
    zig.compile(HOST, ("-std=c11", *WARNINGS, f"-I{built.sources.include}", "all.c", *library, "-Wl,-z,defs", "-ldl", "-lpthread", "-o", "all"), tmp_path)
    *found, done = run(tmp_path / "all", LD_LIBRARY_PATH=str(built.libraries.shared.parent)).splitlines()
    assert found == [f"{row.variant} {row.sm}" for row in rows]
    if ctypes.util.find_library("cuda") is None:
        assert done == "0 0"


def aarch64_emulator():
    found = shutil.which("qemu-aarch64") or shutil.which("qemu-aarch64-static")
    if found is None:
        pytest.skip("no qemu-aarch64 here (Debian and Ubuntu: apt-get install qemu-user)")
    return found


@pytest.mark.parametrize("kind", ["static", "shared"])
def test_the_aarch64_libraries_run(built, aarch64, zig, tmp_path, kind):
    """The libraries that are shipped, over the glibc of that host."""
    emulator, system = aarch64_emulator(), "/usr/aarch64-linux-gnu"
    if not os.path.exists(f"{system}/lib/libc.so.6"):
        pytest.skip(f"no {system} here (Debian and Ubuntu: apt-get install libc6-arm64-cross)")
    library = [str(aarch64.static)] if kind == "static" else [f"-L{aarch64.shared.parent}", "-lfmhaforge"]
    zig.compile(cabi.HOSTS["aarch64"], ("-std=c11", f"-I{built.sources.include}", str(HERE / "consumer.c"), *library, "-ldl", "-lpthread", "-o", "consumer"), tmp_path)
    done = subprocess.run([emulator, "-L", system, "-E", f"LD_LIBRARY_PATH={aarch64.shared.parent}", str(tmp_path / "consumer")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    check_consumer(done.stdout, built)


def check_consumer(output, built):
    """What consumer.c prints where there is no driver."""
    lines = output.splitlines()
    assert lines[0] == f"fmha_v2_d64 SM 87 of {len(built.metadata.rows)} rows, version {built.metadata.version}"
    assert lines[1].startswith("FMHAFORGE_ERROR_UNSUPPORTED: sm 75 is not served: the matching rows are built for SM 80, ")
    assert lines[2] == "FMHAFORGE_ERROR_NO_DRIVER"


def test_query_runs_on_aarch64(built, zig, tmp_path):
    """The same source, linked statically against musl, so that the emulator needs no system of that host."""
    emulator = aarch64_emulator()
    zig.run(("cc", "-target", "aarch64-linux-musl", "-std=c11", "-D_GNU_SOURCE", "-O1", "-static", f"-I{built.sources.include}",
             str(HERE / "consumer.c"), str(built.sources.source), str(built.sources.rows_source), "-o", str(tmp_path / "consumer")), built.sources.source.parent)
    done = subprocess.run([emulator, str(tmp_path / "consumer")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    check_consumer(done.stdout, built)
