# SPDX-License-Identifier: Apache-2.0
"""The cache's store, the archive, and putting a folder in place."""

import gzip
import hashlib
import lzma
import os
import random
import re
import subprocess
import tarfile
import threading

import pytest

from fake_bundle import built_row
from generator import archive, bundle, report
from generator.cache import MAGIC, Store, content_of, entry_bytes
from generator.embedded import embedded
from generator.ledger import Ledger, LedgerError, load
from generator.metadata import check_ledger
from generator.model import Family
from generator.progress import Failure

KEY = hashlib.sha256(b"key").hexdigest()
OTHER = hashlib.sha256(b"other").hexdigest()
FILES = {"b/two": b"22", "a": b"1", "lib/libx.so.0": b"elf", "lib/libx.so": archive.Link("libx.so.0")}


def test_store_keeps_and_returns(tmp_path):
    store = Store(tmp_path / "cache")
    assert store.get(KEY) is None
    assert store.put(KEY, b"content\n\0") and store.get(KEY) == b"content\n\0" and store.get(OTHER) is None
    assert store.put(KEY, b"") and store.get(KEY) == b""


def test_every_damage_is_a_miss():
    whole = entry_bytes(KEY, b"content")
    assert content_of(KEY, whole) == b"content" and content_of(OTHER, whole) is None
    for size in range(len(whole)):
        assert content_of(KEY, whole[:size]) is None, size
    for position in range(len(whole)):
        damaged = bytearray(whole)
        damaged[position] ^= 1
        assert content_of(KEY, bytes(damaged)) is None, position
    assert content_of(KEY, whole + b"more") is None


def test_a_damaged_entry_is_removed(tmp_path):
    store = Store(tmp_path)
    store.put(KEY, b"content")
    store.path(KEY).write_bytes(MAGIC)
    assert store.get(KEY) is None and not store.path(KEY).exists()


def test_trim_removes_the_least_recently_used(tmp_path):
    store = Store(tmp_path)
    keys = [hashlib.sha256(bytes([number])).hexdigest() for number in range(4)]
    for age, key in enumerate(keys):
        store.put(key, b"x" * 100)
        os.utime(store.path(key), (1000 + age, 1000 + age))
    size = store.path(keys[0]).stat().st_size
    assert store.get(keys[0]) is not None  # used now, so the oldest is keys[1]
    assert store.trim(3 * size) == size
    assert [store.get(key) is not None for key in keys] == [True, False, True, True]
    assert store.trim(3 * size) == 0


def test_writers_of_one_key_never_show_half_an_entry(tmp_path):
    store = Store(tmp_path)
    content = os.urandom(200_000)
    wrong = []

    def work():
        for _ in range(20):
            store.put(KEY, content)
            found = store.get(KEY)
            if found != content:
                wrong.append(found)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == [] and [path.name for path in store.path(KEY).parent.iterdir()] == [KEY]


def test_checksums_are_sorted_and_follow_links():
    digest = {name: hashlib.sha256(data).hexdigest() for name, data in (("a", b"1"), ("b/two", b"22"), ("so", b"elf"))}
    assert archive.checksums(FILES).decode() == (f"{digest['a']}  a\n{digest['b/two']}  b/two\n{digest['so']}  lib/libx.so\n"
                                                f"{digest['so']}  lib/libx.so.0\n")


def test_stage_and_install(tmp_path):
    final = tmp_path / "bundle"
    for files in ({"old": b"0"}, FILES):
        archive.install_folder(archive.stage(archive.with_checksums(files), tmp_path, "bundle"), final)
    assert sorted(path.relative_to(final).as_posix() for path in final.rglob("*")) == ["SHA256SUMS", "a", "b", "b/two", "lib", "lib/libx.so", "lib/libx.so.0"]
    assert os.readlink(final / "lib/libx.so") == "libx.so.0" and (final / "lib/libx.so").read_bytes() == b"elf"
    assert [path.name for path in tmp_path.iterdir()] == ["bundle"]


def test_install_where_folders_cannot_be_swapped(tmp_path, monkeypatch):
    monkeypatch.setattr(archive, "_exchange", lambda left, right: False)
    test_stage_and_install(tmp_path)


@pytest.mark.parametrize("make", [lambda path: (path / "x").mkdir(parents=True), lambda path: path.write_text("x"), lambda path: path.symlink_to("/tmp")])
def test_install_refuses_what_is_no_bundle(tmp_path, make):
    final = tmp_path / "bundle"
    make(final)
    staged = archive.stage(FILES, tmp_path, "bundle")
    with pytest.raises(archive.InstallError, match="exists and is no bundle"):
        archive.install_folder(staged, final)
    assert os.path.lexists(final)


@pytest.mark.parametrize("suffix, decompress", [("gz", gzip.decompress), ("xz", lzma.decompress)])
def test_pack_is_the_same_whatever_the_surroundings(tmp_path, suffix, decompress):
    (tmp_path / "other").mkdir()
    first = archive.pack(FILES, "bundle-1", tmp_path / f"a.tar.{suffix}").read_bytes()
    old = os.umask(0o077)
    try:
        second = archive.pack(dict(reversed(FILES.items())), "bundle-1", tmp_path / f"other/b.tar.{suffix}").read_bytes()
    finally:
        os.umask(old)
    assert first == second and decompress(first)[:8] == b"bundle-1"


def test_a_cubin_is_packed_once_whatever_holds_it(tmp_path):
    """Two cubins of noise stand in cubins/ and in four libraries."""
    noise = random.Random(1)
    cubins = {f"cubins/sm_{sm}/a.cubin": noise.randbytes(size) for sm, size in ((80, 300_001), (90, 70_000))}
    first, second = cubins.values()
    blob = first + bytes(-len(first) % 64) + second
    libraries = {f"lib/{host}/{name}": noise.randbytes(head) + blob + b"end" for host, name, head in
                 (("aarch64", "a", 100), ("aarch64", "so", 200), ("x86_64", "a", 301), ("x86_64", "so", 4000))}
    files = {**cubins, **libraries, "cpp/x": b"x"}
    same = embedded(files, list(cubins))
    assert [(part.path, part.length, part.of_path) for part in same] == [
        ("lib/aarch64/a", len(first), "cubins/sm_80/a.cubin"), ("lib/aarch64/a", len(second), "cubins/sm_90/a.cubin"),
        ("lib/aarch64/so", len(blob), "lib/aarch64/a"), ("lib/x86_64/a", len(blob), "lib/aarch64/so"), ("lib/x86_64/so", len(blob), "lib/x86_64/a")]
    path = archive.pack(files, "bundle-1", tmp_path / "a.tar.xz", same)
    assert len(first) + len(second) < path.stat().st_size < len(first) + len(second) + 10_000
    subprocess.run(["tar", "xf", path], cwd=tmp_path, check=True)
    for name, content in files.items():
        assert (tmp_path / "bundle-1" / name).read_bytes() == content, name


def test_cubins_that_no_library_holds_change_nothing():
    files = {"cubins/sm_80/a.cubin": b"a" * 100, "cubins/sm_80/b.cubin": b"b" * 100, "lib/x/a": b"-" + b"b" * 100 + b"a" * 99, "lib/x/so": b"b" * 100}
    assert [(part.path, part.start, part.of_path) for part in embedded(files, ["cubins/sm_80/a.cubin", "cubins/sm_80/b.cubin"])] == [
        ("lib/x/a", 1, "cubins/sm_80/b.cubin"), ("lib/x/so", 0, "lib/x/a")]
    assert embedded(files, []) == []


def test_an_archive_is_the_same_with_kept_parts_and_without(tmp_path):
    """Only what changed is compressed again, and the bytes are those of an archive made from nothing."""
    noise = random.Random(2)
    files = {f"cubins/sm_{sm}/{name}.cubin": noise.randbytes(20_000) for sm in (80, 90) for name in "abc"}
    kept = Store(tmp_path / "kept")

    def pack(keep):
        return archive.pack(files, "bundle-1", tmp_path / "a.tar.xz", (), keep).read_bytes()

    assert pack(kept) == pack(kept) == pack(None)
    before = {entry.key for entry in kept.entries()}
    files["cubins/sm_90/b.cubin"] += b"more"
    assert pack(kept) == pack(None)
    assert len(before) == 3 and len({entry.key for entry in kept.entries()} - before) == 1
    for entry in kept.entries():
        entry.path.write_bytes(entry.path.read_bytes()[:-1])
    assert pack(kept) == pack(None)


def test_an_archive_over_its_limit_is_not_put_in_place(tmp_path, monkeypatch):
    files = {f"cubins/sm_90/v{number:02}.cubin": random.Random(number).randbytes(1000 + number) for number in range(12)}
    place = bundle.BundlePlace(tmp_path / "dist", "1.2.3")
    bundle.put(files, place)
    before = place.archive.read_bytes()
    monkeypatch.setattr(bundle, "ARCHIVE_LIMIT", len(before) - 1)
    with pytest.raises(bundle.BundleError, match=f"the archive has 14,... bytes, more than {len(before) - 1:,}; the largest rows are "
                                                 "cubins/sm_90/v11.cubin 1,011, .*cubins/sm_90/v02.cubin 1,002: make those kernels smaller"):
        bundle.put({**files, "more": b"0" * 100}, place)
    assert place.archive.read_bytes() == before and not (place.folder / "more").exists()
    assert sorted(path.name for path in place.dist.iterdir()) == ["fmhaforge-1.2.3", "fmhaforge-1.2.3.tar.xz"]
    monkeypatch.setattr(bundle, "ARCHIVE_LIMIT", len(before))
    bundle.put(files, place)


@pytest.mark.parametrize("size", [0, 1, (4 << 20) - 1, 4 << 20, (4 << 20) + 1, (9 << 20) + 5])
def test_gzip_in_blocks_is_plain_gzip(size, tmp_path):
    data = (b"0123456789abcdef" * (size // 16 + 1))[:size]
    packed = archive.gzip_bytes(data)
    assert gzip.decompress(packed) == data and packed == archive.gzip_bytes(data) and packed[:10] == b"\x1f\x8b\x08\0\0\0\0\0\0\xff"
    (tmp_path / "x.gz").write_bytes(packed)
    assert subprocess.run(["gzip", "-t", tmp_path / "x.gz"], check=False).returncode == 0


def test_pack_holds_modes_links_and_members_in_order(tmp_path):
    path = archive.pack({**FILES, "cubins/sm_80/v": b"", "cubins/sm_80/w": b"", "cubins/sm_90/v": b""}, "bundle-1", tmp_path / "a.tar.xz")
    with tarfile.open(path) as tar:
        members = {member.name: member for member in tar.getmembers()}
    assert list(members) == ["bundle-1", *(f"bundle-1/{path}" for path in ("a", "b", "b/two", "cubins", "cubins/sm_80", "cubins/sm_90"))] + [
        f"bundle-1/{path}" for path in ("cubins/sm_80/v", "cubins/sm_90/v", "cubins/sm_80/w", "lib", "lib/libx.so", "lib/libx.so.0")]
    assert members["bundle-1"].isdir() and members["bundle-1/lib"].mode == 0o755
    assert members["bundle-1/a"].mode == 0o644 and members["bundle-1/lib/libx.so.0"].mode == 0o755
    assert members["bundle-1/lib/libx.so"].issym() and members["bundle-1/lib/libx.so"].linkname == "libx.so.0"


# --- ledger ----------------------------------------------------------------------------------------------------------------

AMPERE, HOPPER = Family("ampere", "sm_80", False), Family("hopper", "sm_90a", True)


def test_routes_that_a_kernel_needs_on_an_sm():
    ledger = Ledger("ledger.json", {"a": frozenset({"cubin"}), "b": frozenset({"cubin", "driver-ptx"}), "c": frozenset({"driver-ptx"})}, frozenset({90}))
    assert ledger.required_routes(AMPERE, 90) == ("cubin", "driver-ptx")
    assert ledger.required_routes(AMPERE, 80) == ("driver-ptx",) and ledger.required_routes(HOPPER, 90) == ("cubin",)
    assert ledger.missing_routes("a", AMPERE, 90) == ("driver-ptx",) and ledger.missing_routes("a", HOPPER, 90) == ()
    assert ledger.missing_routes("c", AMPERE, 90) == ("cubin",) and ledger.missing_routes("c", AMPERE, 80) == ()
    assert ledger.is_validated("b", AMPERE, 90) and not ledger.is_validated("c", HOPPER, 90) and not ledger.is_validated("d", AMPERE, 80)


def ledger_of(rows, *runs):
    """A ledger in which every kernel of `rows` has these (route, sm)."""
    found = frozenset(route for route, _ in runs)
    return Ledger("x/ledger.json", {row.ptx_sha256: found for row in rows}, frozenset(sm for route, sm in runs if route == "cubin"))


def test_kernels_that_may_not_be_shipped_are_named_with_routes_and_command(manifest):
    rows = [built_row(row, {}) for row in manifest.rows(sms=[86, 90], variants=["fmha_v2_d128_paged_checked", "fmha_v2_d256_paged_checked"], checked=True)]
    portable = {row.ptx_sha256: row.row.variant.name for row in rows}
    assert len(portable) >= 2 and {row.row.sm for row in rows} == {86, 90} and not any(row.row.family.exact for row in rows)
    check_ledger(rows, ledger_of(rows, ("driver-ptx", 90)))
    check_ledger(rows, ledger_of(rows, ("driver-ptx", 90), ("cubin", 90)))
    with pytest.raises(LedgerError) as caught:
        check_ledger(rows, ledger_of(rows[:0]))
    text = str(caught.value)
    first, *kernels, remedy, command, rest = text.splitlines()
    assert first == f"x/ledger.json does not know {len(portable)} of the kernels:" and "allow_unvalidated=1" in remedy
    assert sorted(kernels) == sorted(f"  {name} (PTX {digest[:12]}): no run by driver-ptx" for digest, name in portable.items())
    assert (command, rest) == ("  python -m pytest tests/device \\", "    --bundle DIR --ledger-out x/ledger.json")


def test_the_table_of_failures_is_read_in_120_columns(manifest):
    """Also when nothing of the project is in the ledger, and for reasons of one long line."""
    rows = [built_row(row, {}) for row in manifest.rows(checked=True)]
    with pytest.raises(LedgerError) as caught:
        check_ledger(rows, Ledger("tests/device/ledger.json", {}, frozenset({90})))
    failures = (Failure("bundle", "dist/fmhaforge-0.1.0/metadata.json", str(caught.value), "-"),
                Failure("trace", "fmha_v2_d64 sm_80", "ptxas says " + "no " * 100 + "x" * 130, "build/log/a.log"))
    lines = report.failures_table(failures).splitlines()
    assert [len(line) for line in lines if len(line) > 120] == [132], "a word that is longer by itself"
    assert lines[0].split() == ["failed", "what", "log"] and lines[2].split() == ["bundle", "dist/fmhaforge-0.1.0/metadata.json", "-"]
    count = len({row.ptx_sha256 for row in rows})
    assert lines[3] == f"  tests/device/ledger.json does not know {count} of the kernels:" and count > 60
    assert all(re.fullmatch(r"    \w+ \(PTX [0-9a-f]{12}\): no run by (cubin|driver-ptx|cubin and driver-ptx)", line) for line in lines[4:4 + count])
    assert lines[6 + count] == "      --bundle DIR --ledger-out tests/device/ledger.json"
    assert lines[7 + count].split() == ["trace", "fmha_v2_d64", "sm_80", "build/log/a.log"]
    assert lines[8 + count] == "  ptxas says " + "no " * 35 + "no" and lines[-1] == "  " + "x" * 130


def test_a_kernel_of_an_exact_family_lacks_its_cubin_only(manifest):
    rows = [built_row(row, {}) for row in manifest.rows(sms=[90], variants=["fmha_v2_d128", "fmha_v2_vit_d80"])]
    assert all(row.row.family.exact for row in rows) and len({row.ptx_sha256 for row in rows}) == 2
    check_ledger(rows, ledger_of(rows, ("cubin", 90)))
    with pytest.raises(LedgerError, match=r"does not know 1 of the kernels:\n  fmha_v2_vit_d80 \(PTX .{12}\): no run by cubin\n"):
        check_ledger(rows, ledger_of(rows[:1], ("cubin", 90)))
    with pytest.raises(LedgerError, match="does not know 2 of the kernels:\n.*no run by cubin"):
        check_ledger(rows, ledger_of(rows, ("driver-ptx", 90)))


def test_a_kernel_of_several_sms_lacks_what_any_of_them_needs(manifest):
    """One kernel for SM 80 and 86: nobody runs cubins on 80, but on 86 somebody did."""
    rows = [built_row(row, {}) for row in manifest.rows(sms=[80, 86], variants=["fmha_v2_vit_d64"])]
    assert [row.row.sm for row in rows] == [80, 86] and len({row.ptx_sha256 for row in rows}) == 1
    elsewhere = Ledger("ledger.json", {}, frozenset({86}))
    with pytest.raises(LedgerError, match=r"does not know 1 of the kernels:\n  fmha_v2_vit_d64 \(PTX .{12}\): no run by cubin and driver-ptx\n"):
        check_ledger(rows, elsewhere)
    with pytest.raises(LedgerError, match=r"no run by cubin\n(.*\n)*  python -m pytest tests/device --variant fmha_v2_vit_d64 \\\n"):
        check_ledger(rows, Ledger("ledger.json", {rows[0].ptx_sha256: frozenset({"driver-ptx"})}, frozenset({86})))
    check_ledger(rows[:1], Ledger("ledger.json", {rows[0].ptx_sha256: frozenset({"driver-ptx"})}, frozenset({86})))


def test_ledger_is_read(tmp_path):
    path = tmp_path / "ledger.json"
    assert load(path).routes == {}
    path.write_text('{"schema_version": 1, "entries": {"a": {"runs": [{"route": "cubin", "sm": 90, "cases": 300}, {"route": "driver-ptx", "sm": 80, "cases": 0}]}}}')
    assert load(path).routes == {"a": frozenset({"cubin"})} and load(path).cubin_sms == {90}


@pytest.mark.parametrize("text", ["", "[]", '{"schema_version": 2, "entries": {}}', '{"schema_version": 1, "entries": []}',
                                  '{"schema_version": 1, "entries": {"a": {}}}', '{"schema_version": 1, "entries": {"a": {"runs": [{"route": "x"}]}}}'])
def test_a_broken_ledger_is_an_error(tmp_path, text):
    path = tmp_path / "ledger.json"
    path.write_text(text)
    with pytest.raises(LedgerError, match="restore it from version control"):
        load(path)
