# SPDX-License-Identifier: Apache-2.0
"""What goes wrong in a build: one clear line each, nothing half done, and the next build is right."""

import json
import os
import signal
import subprocess
import time

import pytest

BROKEN = '''

def trace(spec, plan):
    print("about to fail")
    raise ValueError("no such tile")
'''
HANGS = '''

def trace(spec, plan):
    import time
    time.sleep(3600)
'''
DIES = '''

def trace(spec, plan):
    import os
    os.abort()
'''


def test_a_failing_kernel_is_in_the_table_and_the_others_are_built(tree):
    tree.append("generator/kernels/fake_b.py", BROKEN)
    run = tree.build("-k", "cubins")
    assert run.status == 2, run.text
    assert run.tasks("assemble") == ["fake_d128 sm_110", "fake_d128 sm_90", "fake_d64 sm_110", "fake_d64 sm_90"]
    table = run.out[run.out.index("\nfailed "):]
    assert "ValueError: no such tile" in table and "build/log/ptx/sm_80/fake_d64_sw.ptx.log" in table
    log = (tree.folder / "build/log/ptx/sm_80/fake_d64_sw.ptx.log").read_text()
    assert log.startswith("about to fail\n") and "ValueError: no such tile" in log
    assert not (tree.folder / "dist").exists()


def test_a_failure_stops_the_build_without_k(tree):
    tree.append("generator/kernels/fake_a.py", BROKEN)
    run = tree.build("-j1", "cubins")
    assert run.status == 2 and run.tasks("assemble") == []


def test_a_failure_is_never_cached(tree):
    tree.append("generator/kernels/fake_b.py", BROKEN)
    tree.build("-k", "cubins", "cache=kept")
    count = sum(path.is_file() for path in (tree.folder / "kept").rglob("*"))
    assert count == 2 + 4 * 2  # two PTX, four cubins with their reports
    assert tree.build("-k", "cubins", "cache=kept").status == 2


def test_a_kernel_over_the_time_limit_is_ended(tree):
    tree.append("generator/kernels/fake_b.py", HANGS)
    run = tree.build("-k", "cubins", "time_limit=1", "variants=fake_d64_sw")
    assert run.status == 2 and "tracing took longer than 1 s (time_limit=SECONDS raises the limit)" in run.out, run.text


def test_a_kernel_that_kills_its_process_fails_alone(tree):
    tree.append("generator/kernels/fake_b.py", DIES)
    run = tree.build("-k", "cubins")
    assert run.status == 2 and "ended by signal 6" in run.out
    assert len(run.tasks("assemble")) == 4


def test_what_a_kernel_prints_does_not_disturb_the_build(tree):
    tree.append("generator/kernels/fake_shared.py", 'print("{}\\n" * 1000)\n')
    assert len(tree.good("cubins").tasks("assemble")) == 6


@pytest.mark.parametrize("old, new, reason", [
    ('.param {TYPES[p.type]} p{i}" for i, p in enumerate(plan.params)', '.param {TYPES[p.type]} p{i}" for i, p in enumerate(plan.params[:-1])',
     "the kernel takes 18 parameters, the launch plan fills 19"),
    ("TYPES = {", 'TYPES = {**{"i32": ".u64"}, "ptr": ".u64", "i64": ".u64", "f32": ".f32"}\nOLD = {',
     "has 8 bytes in the cubin, 4 in the launch plan"),
    (".reqntid {block}", ".reqntid 64, 1, 1", "the kernel demands blocks of (64, 1, 1), the launch plan says (128, 1, 1)"),
    (".reqntid {block}", "", "the kernel does not state its block size (reqntid)"),
    ("    .reg .b64", "    .shared .align 16 .b8 big[40000];\n    .reg .b64", "static), sm_"),
    ("    ret;\n}}\n", "    ret;\n}}\n.visible .entry second() {{ ret; }}\n", "the cubin holds 2 kernels (fake_llm, second), expected exactly one"),
    ("    ret;\n", "    nonsense;\n", "ptxas failed with status"),
])
def test_a_cubin_that_is_not_the_planned_kernel_is_refused(tree, old, new, reason):
    path = "generator/kernels/fake_shared.py"
    text = (tree.folder / path).read_text()
    assert old in text
    tree.write(path, text.replace(old, new))
    if "big" in new:
        tree.write("variants.yaml", (tree.folder / "variants.yaml").read_text().replace("232448", "65536"))
    run = tree.build("cubins", "variants=fake_d64_sw", "sm=90")
    assert run.status == 2 and reason in run.out, run.text
    assert not list((tree.folder / "build/cubins").rglob("*.cubin"))


def test_an_import_that_the_fingerprint_misses_is_refused(tree):
    tree.write("generator/kernels/hidden.py", "VALUE = 1\n")
    path = "generator/kernels/fake_b.py"
    tree.write(path, (tree.folder / path).read_text().replace("    return", "    import generator.kernels.hidden\n    return"))
    run = tree.build("cubins", "variants=fake_d64_sw")
    assert run.status == 2 and "imported generator/kernels/hidden.py, which its fingerprint does not cover" in run.out, run.text


def test_a_source_that_changes_during_the_build_is_noticed(tree):
    path = "generator/kernels/fake_b.py"
    tree.append(path, '\nopen(__file__, "a").write("# edited\\n")\n')
    run = tree.build("cubins", "variants=fake_d64_sw")
    assert run.status == 2 and "generator/kernels/fake_b.py changed while the build ran: build again" in run.out, run.text


def test_the_toolchain_that_cannot_be_imported_is_named(tree):
    tree.write("cutlass/__init__.py", 'raise ImportError("libcuda.so.1: cannot open shared object file")\n')
    run = tree.build("cubins")
    assert run.status == 2 and "cannot be imported without a GPU or driver: ImportError: libcuda.so.1" in run.out, run.text


def test_the_build_does_not_wait_until_the_toolchain_is_taken_apart(tree):
    tree.write("cutlass/__init__.py", "import atexit, pathlib, os\n\n\ndef note(pid=os.getpid()):\n    pid == os.getpid() and pathlib.Path(__file__).with_name('noted').touch()\n\n\n"
               "atexit.register(note)\n")
    assert len(tree.good("cubins").tasks("assemble")) == 6
    assert not (tree.folder / "cutlass/noted").exists()


def test_a_killed_build_is_taken_up(tree):
    path = "generator/kernels/fake_b.py"
    text = (tree.folder / path).read_text()
    tree.append(path, HANGS)
    process = subprocess.Popen(tree.command("cubins"), cwd=tree.folder, env=tree.environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                               start_new_session=True)
    deadline = time.monotonic() + 60
    while not (tree.folder / "build/cubins/sm_90/fake_d64.json").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    tree.write(path, text)
    run = tree.good("cubins")
    assert "fake_d64 sm_80" not in run.tasks("trace") and "fake_d64 sm_90" not in run.tasks("assemble")
    assert run.tasks("trace") == ["fake_d64_sw sm_80"] or run.tasks("trace") == ["fake_d128 sm_80", "fake_d64_sw sm_80"]
    assert not (tree.folder / "build/tmp").exists()
    fresh = tree.products()
    tree.good("cubins", "build_dir=other")
    assert tree.products("other") == fresh


def test_what_scons_forgot_is_taken_up_only_when_it_is_whole(tree):
    """Without SCons's record: what is whole stays, what is damaged, lost, or made from something else is built."""
    tree.good("cubins")
    fresh = tree.products()
    ptx = tree.folder / "build/ptx/sm_80/fake_d128.ptx"
    cubin = tree.folder / "build/cubins/sm_110/fake_d64.cubin"
    damaged = tree.folder / "build/cubins/sm_90/fake_d64.cubin"
    (tree.folder / "build/sconsign.dblite").unlink()
    run = tree.good("cubins")
    assert run.tasks("trace") == run.tasks("assemble") == [] and tree.products() == fresh
    (tree.folder / "build/sconsign.dblite").unlink()
    ptx.write_bytes(ptx.read_bytes()[:-1])
    cubin.unlink()
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"x")
    (tree.folder / "build/state/cubins/sm_90/fake_d64_sw.cubin.json").write_text("[]")
    path = "generator/kernels/fake_b.py"
    run = tree.good("-n", "cubins")
    assert "would trace fake_d128\n" in run.out and "would trace fake_d64 (only to be taken up)\n" in run.out
    run = tree.good("cubins")
    assert run.tasks("trace") == ["fake_d128 sm_80"]
    assert run.tasks("assemble") == ["fake_d64 sm_110", "fake_d64 sm_90", "fake_d64_sw sm_90"]
    assert tree.products() == fresh
    (tree.folder / "build/sconsign.dblite").unlink()
    tree.write(path, (tree.folder / path).read_text().replace('"b"', '"changed"'))
    run = tree.good("cubins")
    assert run.tasks("trace") == ["fake_d64_sw sm_80"] and run.tasks("assemble") == ["fake_d64_sw sm_110", "fake_d64_sw sm_90"]
    assert tree.products() != fresh


def test_two_builds_at_once_wait_for_each_other(tree):
    path = "generator/kernels/fake_b.py"
    tree.write(path, (tree.folder / path).read_text().replace("    return", "    import time\n    time.sleep(3)\n    return"))
    runs = [subprocess.Popen(tree.command("cubins"), cwd=tree.folder, env=tree.environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            for _ in range(2)]
    outputs = [run.communicate(timeout=120)[0] for run in runs]
    assert [run.returncode for run in runs] == [0, 0], outputs
    assert sum("waiting for another build" in output for output in outputs) == 1, outputs


def test_a_full_disk_is_one_clear_error(tree, tmp_path):
    small = tmp_path / "small"
    small.mkdir()
    script = f'mount -t tmpfs -o size=64k tmpfs "{small}" && exec "$@"'
    command = ["unshare", "-rm", "sh", "-c", script, "sh", *tree.command("-k", "cubins", f"build_dir={small}")]
    done = subprocess.run(command, cwd=tree.folder, env=tree.environment(), capture_output=True, text=True, check=False, timeout=120)
    if "unshare" in done.stderr or "mount:" in done.stderr:
        pytest.skip(f"this machine mounts no file system of its own: {done.stderr.strip()}")
    assert done.returncode == 2 and "No space left on device" in done.stdout + done.stderr, done.stdout + done.stderr


def test_a_build_folder_that_cannot_be_made_is_named(tree):
    tree.write("in_the_way", "")
    run = tree.build("cubins", "build_dir=in_the_way/build")
    assert run.status == 2 and "build_dir=DIR" in run.err and "in_the_way/build cannot be written" in run.err, run.text


@pytest.mark.parametrize("arguments, message", [
    (("variant=fake_d64",), "unknown option variant=fake_d64: did you mean variants?"),
    (("sm=91",), "SM 91 is no target of variants.yaml"),
    (("sm=90,",), "option sm=90,: an item of the list is empty"),
    (("variants=fake_e*",), "pattern 'fake_e*' matches no variant"),
    (("cache_limit=2X",), "option cache_limit=2X: expected bytes"),
    (("shard=3/2",), "option shard=3/2: expected INDEX/COUNT"),
    (("shard=1/2",), "option shard=: a shard leaves its kernels in a cache"),
    (("manifest=none.yaml",), "none.yaml"),
])
def test_a_wrong_option_stops_before_anything_is_written(tree, arguments, message):
    run = tree.build(*arguments)
    assert run.status == 2 and message in run.err, run.text
    assert "Traceback" not in run.err
    assert not (tree.folder / "build").exists()


def test_a_bundle_of_checked_variants_only_is_refused_at_once(tree):
    text = (tree.folder / "variants.yaml").read_text()
    place = text.index("    sms: all", text.index("fake_d64_sw"))
    tree.write("variants.yaml", text[:place] + "    checked: true\n" + text[place:])
    arguments = ("checked=1", "variants=fake_d64_sw", "allow_unvalidated=1")
    run = tree.build(*arguments)
    assert run.status == 2 and "a bundle of checked variants only (fake_d64_sw) would have libraries without a kernel: add a variant" in run.err, run.text
    assert not (tree.folder / "build").exists()
    assert tree.good("cubins", *arguments).tasks("assemble") == ["fake_d64_sw sm_110", "fake_d64_sw sm_90"]


def test_reports_say_what_was_done(tree):
    tree.good("cubins")
    report = json.loads((tree.folder / "build/report.json").read_text())
    assert report["actions"]["trace"]["tasks"] == 3 and report["actions"]["assemble"]["tasks"] == 6
    assert report["cpu_seconds"] > 0 and len(report["tasks"]) == 9
    events = json.loads((tree.folder / "build/trace.json").read_text())["traceEvents"]
    assert len(events) == 9 and all(event["ph"] == "X" and event["dur"] >= 0 and event["ts"] >= 0 for event in events)
