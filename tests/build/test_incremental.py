# SPDX-License-Identifier: Apache-2.0
"""What is built again after a change, and what is not."""

import os

ALL = ["fake_d128 sm_110", "fake_d128 sm_90", "fake_d64 sm_110", "fake_d64 sm_90", "fake_d64_sw sm_110", "fake_d64_sw sm_90"]
KERNELS = ["fake_d128 sm_80", "fake_d64 sm_80", "fake_d64_sw sm_80"]


def test_cold_build_traces_once_and_assembles_for_every_sm(tree):
    run = tree.good("cubins")
    assert run.tasks("trace") == KERNELS
    assert run.tasks("assemble") == ALL


def test_nothing_to_do(tree):
    tree.good("cubins")
    before = tree.products()
    run = tree.good("cubins")
    assert run.tasks("trace") == run.tasks("assemble") == []
    assert tree.products() == before and len(before) == 3 + 2 * 6


def test_comments_elsewhere_rebuild_nothing(tree):
    tree.good("cubins")
    for path in ("generator/kernels/unused.py", "runtime/fmhaforge/launch.py", "runtime/fmhaforge/expr.py", "generator/manifest.py", "generator/model.py",
                 "generator/progress.py", "variants.yaml", "docs.md"):
        tree.append(path, "# a comment\n")
    run = tree.good("cubins")
    assert run.tasks("trace") == run.tasks("assemble") == []


def test_a_comment_in_a_kernel_traces_its_kernels_and_equal_ptx_is_not_assembled(tree):
    tree.good("cubins")
    tree.append("generator/kernels/fake_b.py", "# a comment\n")
    run = tree.good("cubins")
    assert run.tasks("trace") == ["fake_d64_sw sm_80"]
    assert run.tasks("assemble") == []


def test_a_change_of_a_kernel_assembles_it(tree):
    tree.good("cubins")
    tree.write("generator/kernels/fake_b.py", (tree.folder / "generator/kernels/fake_b.py").read_text().replace('"b"', '"changed"'))
    run = tree.good("cubins")
    assert run.tasks("trace") == ["fake_d64_sw sm_80"]
    assert run.tasks("assemble") == ["fake_d64_sw sm_110", "fake_d64_sw sm_90"]


def test_a_shared_source_traces_everything(tree):
    tree.good("cubins")
    tree.append("generator/kernels/fake_shared.py", "# a comment\n")
    assert tree.good("cubins").tasks("trace") == KERNELS


def test_changing_one_variant_rebuilds_that_variant(tree):
    tree.good("cubins")
    text = (tree.folder / "variants.yaml").read_text()
    tree.write("variants.yaml", text.replace("{m: 64, n: 32, warps: 4}", "{m: 64, n: 64, warps: 4}"))
    run = tree.good("cubins")
    assert run.tasks("trace") == ["fake_d128 sm_80"]
    assert run.tasks("assemble") == ["fake_d128 sm_110", "fake_d128 sm_90"]


def test_removing_a_variant_removes_its_products(tree):
    tree.good("cubins")
    text = (tree.folder / "variants.yaml").read_text()
    tree.write("variants.yaml", text[: text.index("  - name: fake_d64_sw")])
    run = tree.good("cubins")
    assert run.tasks("trace") == run.tasks("assemble") == []
    left = [str(path) for path in (tree.folder / "build").rglob("*fake_d64_sw*")]
    assert left == [], left


def test_a_subset_keeps_the_rest(tree):
    tree.good("cubins")
    assert tree.good("cubins", "sm=90", "variants=fake_d64").tasks("assemble") == []
    assert tree.good("cubins").tasks("assemble") == []


def test_an_added_sm_assembles_only_that_sm(tree):
    tree.good("cubins", "sm=90")
    run = tree.good("cubins")
    assert run.tasks("trace") == []
    assert run.tasks("assemble") == [name for name in ALL if name.endswith("sm_110")]


def test_rows_with_equal_kernels_share_them(tree):
    text = (tree.folder / "variants.yaml").read_text()
    twin = text[text.index("  - name: fake_d64\n"): text.index("  - name: fake_d128")].replace("fake_d64", "fake_twin")
    twin = twin.rstrip() + "\n    select: {seqlen_q_at_most: 64}\n"
    tree.write("variants.yaml", text + twin)
    run = tree.good("cubins")
    assert run.tasks("trace") == KERNELS
    assert run.tasks("assemble") == ALL


def test_explain_names_the_field(tree):
    tree.good("cubins")
    text = (tree.folder / "variants.yaml").read_text()
    tree.write("variants.yaml", text.replace("{m: 64, n: 32, warps: 4}", "{m: 64, n: 64, warps: 4}"))
    tree.append("generator/kernels/fake_b.py", "# a comment\n")
    run = tree.good("-n", "--explain", "cubins")
    assert "  because spec, tile, n: 32 -> 64" in run.out, run.text
    assert "  because sources, generator/kernels/fake_b.py: " in run.out, run.text


def test_dry_run_lists_and_touches_nothing(tree):
    before = tree.listing()
    run = tree.good("-n", "cubins")
    assert [line for line in run.out.splitlines() if line.startswith("would trace")] == ["would trace fake_d64", "would trace fake_d128",
                                                                                        "would trace fake_d64_sw"]
    assert sum(line.startswith("would assemble") for line in run.out.splitlines()) == 6
    assert tree.listing() == before


def test_content_decides_and_not_the_date(tree):
    tree.good("cubins")
    path = tree.folder / "build/ptx/sm_80/fake_d64.ptx"
    before = path.stat()
    path.write_text(path.read_text().replace("mov.u32 %r1, ", "mov.u32 %r1, 1"))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    run = tree.good("cubins")
    assert run.tasks("trace") == [] and run.tasks("assemble") == ["fake_d64 sm_110", "fake_d64 sm_90"]
