# SPDX-License-Identifier: Apache-2.0
"""Two bundles of different versions in one process: opened LOCAL or GLOBAL in either order, and linked statically with a suffix."""

import itertools
import json
import re
import subprocess

import pytest

from c_build import HOST, build
from generator import cabi
from generator.cabi.compile import WARNINGS

OPENER = """
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include "fmhaforge.h"

typedef const fmhaforge_table* (*get_table)(uint32_t);

static const fmhaforge_table* open_table(const char* path, int flags)
{
    void* library = dlopen(path, RTLD_NOW | flags);
    get_table get = NULL;
    if (library == NULL) {
        return NULL;
    }
    *(void**)&get = dlsym(library, "fmhaforge_get_table");
    return get(FMHAFORGE_ABI_VERSION);
}

static void show(const fmhaforge_table* table, int32_t head_dim)
{
    fmhaforge_problem problem = {.size = sizeof problem, .operation = FMHAFORGE_OPERATION_LLM, .mask = FMHAFORGE_MASK_CAUSAL,
        .head_dim = head_dim, .dtype = FMHAFORGE_DTYPE_FLOAT16, .num_q_heads = 8, .num_kv_heads = 2, .sm = 90, .seqlen_q = 1};
    const fmhaforge_row* row = NULL;
    fmhaforge_status status = table->query(&problem, &row);
    printf("%s %d %s\\n", table->version, (int)table->row_count, status == FMHAFORGE_OK ? row->variant : table->last_reason());
}

int main(int argc, char** argv)
{
    int flags = argc > 3 && argv[3][0] == 'G' ? RTLD_GLOBAL : RTLD_LOCAL;
    const fmhaforge_table* first = open_table(argv[1], flags);
    const fmhaforge_table* second = open_table(argv[2], flags);
    if (first == NULL || second == NULL) {
        fprintf(stderr, "%s\\n", dlerror());
        return 1;
    }
    show(first, 64);
    show(second, 64);
    show(first, 128);
    show(second, 128);
    return 0;
}
"""

USER = """
#include "fmhaforge.h"
int32_t rows_of_{name}(void);
const char* version_of_{name}(void);
int32_t rows_of_{name}(void) {{ return fmhaforge_row_count(); }}
const char* version_of_{name}(void) {{ return fmhaforge_get_table(FMHAFORGE_ABI_VERSION)->version; }}
"""

MAIN = """
#include <stdint.h>
#include <stdio.h>
int32_t rows_of_old(void);
int32_t rows_of_new(void);
const char* version_of_old(void);
const char* version_of_new(void);
int main(void)
{
    printf("%s %d, %s %d\\n", version_of_old(), (int)rows_of_old(), version_of_new(), (int)rows_of_new());
    return 0;
}
"""


@pytest.fixture(scope="module")
def bundles(tmp_path_factory, manifest, zig):
    """{name: Built} of an old bundle with head_dim 64 and a new one with 128."""
    def version(text):
        return lambda document: document.update(version=text)
    folder = tmp_path_factory.mktemp("two")
    return {"old": build(folder / "old", manifest, zig, sms=[90], variants=["fmha_v2_d64"], change=version("0.1.0")),
            "new": build(folder / "new", manifest, zig, sms=[80, 90], variants=["fmha_v2_d128"], change=version("0.2.0"))}


SEEN = {("old", 64): "0.1.0 1 fmha_v2_d64", ("old", 128): "0.1.0 1 head_dim 128 is not served (there is 64); nearest: fmha_v2_d64 (head_dim 64)",
        ("new", 64): "0.2.0 2 head_dim 64 is not served (there is 128); nearest: fmha_v2_d128 (head_dim 128)", ("new", 128): "0.2.0 2 fmha_v2_d128"}


@pytest.fixture(scope="module")
def opener(bundles, zig, tmp_path_factory):
    folder = tmp_path_factory.mktemp("opener")
    (folder / "opener.c").write_text(OPENER)
    zig.compile(HOST, ("-std=c11", "-D_GNU_SOURCE", *WARNINGS, "-Wno-pedantic", f"-I{bundles['old'].sources.include}", "opener.c", "-ldl", "-o", "opener"), folder)
    return folder / "opener"


@pytest.mark.parametrize("order, scope", list(itertools.product((("old", "new"), ("new", "old")), ("LOCAL", "GLOBAL"))))
def test_two_shared_libraries(bundles, opener, order, scope):
    paths = [str(bundles[name].libraries.shared) for name in order]
    done = subprocess.run([str(opener), *paths, scope], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [SEEN[name, head_dim] for head_dim in (64, 128) for name in order]


def test_two_archives_in_one_program(bundles, zig, tmp_path):
    archives = []
    for name, made in bundles.items():
        document = json.loads((made.bundle / "metadata.json").read_text())
        sources = cabi.render(document, made.bundle, tmp_path / name, suffix=f"_{name}")
        archives.append(str(cabi.compile_libraries(sources, HOST, tmp_path / f"lib_{name}", zig).static))
        (tmp_path / f"user_{name}.c").write_text(USER.format(name=name))
        zig.compile(HOST, ("-std=c11", *WARNINGS, "-c", f"-I{sources.include}", f"user_{name}.c", "-o", f"user_{name}.o"), tmp_path)
    (tmp_path / "main.c").write_text(MAIN)
    zig.compile(HOST, ("-std=c11", *WARNINGS, "main.c", "user_old.o", "user_new.o", *archives, "-ldl", "-lpthread", "-o", "main"), tmp_path)
    assert subprocess.run([str(tmp_path / "main")], capture_output=True, text=True, check=True).stdout == "0.1.0 1, 0.2.0 2\n"


def test_a_suffix_renames_every_function(bundles, tmp_path):
    made = bundles["old"]
    sources = cabi.render(made.document, made.bundle, tmp_path / "c", suffix="_v7")
    header = (sources.include / "fmhaforge.h").read_text()
    declared = set(re.findall(r"FMHAFORGE_API [^;(]*?(fmhaforge_\w+)\(", header))
    renamed = dict(re.findall(r"#define (fmhaforge_\w+) (fmhaforge_\w+)", header))
    assert declared == set(renamed) and all(new == f"{old}_v7" for old, new in renamed.items())


@pytest.mark.parametrize("suffix", ["-x", "a b", "ü"])
def test_a_suffix_must_be_a_name(bundles, tmp_path, suffix):
    made = bundles["old"]
    with pytest.raises(cabi.RenderError, match="can't end a C name"):
        cabi.render(made.document, made.bundle, tmp_path, suffix=suffix)


def test_inputs_that_do_not_fit_are_refused(bundles, tmp_path):
    made = bundles["old"]
    row = made.document["rows"][0]
    cases = [({"rows": [{**row, "cubin": "nowhere.cubin"}]}, "nowhere.cubin can't be read"),
             ({"rows": [{**row, "cubin_sha256": "0" * 64}]}, "is not the cubin that the metadata describes"),
             ({"rows": [{**row, "mask": "round"}]}, "'round' has no number in fmhaforge_mask"),
             ({"rows": []}, "rows is empty"),
             ({"schema_version": 99}, "schema version 99")]
    for change, words in cases:
        with pytest.raises(cabi.RenderError) as refused:
            cabi.render({**made.document, **change}, made.bundle, tmp_path / "c")
        assert words in str(refused.value)


def test_a_failing_compiler_shows_what_it_said(bundles, zig, tmp_path):
    made = bundles["old"]
    sources = cabi.render(made.document, made.bundle, tmp_path / "c")
    sources.source.write_text(sources.source.read_text() + "\nint broken(\n")
    with pytest.raises(cabi.CompileError, match="fmhaforge.c"):
        cabi.compile_libraries(sources, HOST, tmp_path / "lib", zig)
