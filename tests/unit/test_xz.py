# SPDX-License-Identifier: Apache-2.0
"""The .xz writer: whatever repeats it is told of, liblzma and the xz program read the data back."""

import lzma
import random
import shutil
import subprocess

import pytest

from generator import lzma2, xz

NOISE = random.Random(1).randbytes(1 << 20)
MOST = lzma2.LONGEST_REPEAT


def read_back(data, cuts=(), repeats=()):
    """The packed data, which was read back."""
    packed = xz.pack(data, cuts, repeats)
    assert lzma.decompress(packed, format=lzma.FORMAT_XZ) == data
    return packed


@pytest.mark.parametrize("size", [0, 1, 127, 128, 4096, 70_000, 1 << 20])
def test_any_size(size):
    read_back(NOISE[:size])
    read_back(bytes(size), [1, size // 2, size, size + 1, 0])


@pytest.mark.parametrize("lengths", [range(1, 600), (MOST - 274, MOST - 273, MOST - 1, MOST, MOST + 1, MOST + 2, MOST + 273, 2 * MOST + 1, 3 * MOST)])
def test_any_length_of_a_repeat(lengths):
    for length in lengths:
        part = NOISE[:length]
        packed = read_back(part + b"between" + part + b"tail", (), [xz.Repeat(length + 7, length, 0)])
        assert len(packed) < length + 400 + length // 200


def test_any_distance_of_a_repeat():
    for distance in (*range(1, 300), *(size + more for size in map((1).__lshift__, range(9, 20)) for more in (-1, 0, 1, size // 2))):
        part = NOISE[:distance]
        data = part + (part * (1000 // distance + 1))[:1000]
        read_back(data, (), [xz.Repeat(distance, 1000, 0)])


def test_many_repeats_and_cuts():
    """Parts of every kind beside each other: what compresses, what does not, few bytes, repeats of repeats."""
    choose = random.Random(3)
    for _ in range(60):
        data, repeats, cuts = bytearray(NOISE[: choose.randrange(1, 3000)]), [], []
        for _ in range(12):
            size = choose.choice((1, 5, 200, 2000))
            data += choose.choice((NOISE[5000 : 5000 + size], bytes(size), b"ab" * size))
            cuts.append(len(data) - choose.randrange(3))
            source = choose.randrange(len(data))
            length = choose.choice((1, 2, 273, 274, 275, 900))
            repeats.append(xz.Repeat(len(data), length, source))
            for index in range(length):
                data.append(data[source + index])
        read_back(bytes(data), cuts, repeats)


def test_a_repeat_from_beyond_the_dictionary_is_compressed(monkeypatch):
    monkeypatch.setattr(xz, "DICTIONARY", 8192)
    part = NOISE[:5000]
    near, far = (read_back(part + bytes(gap) + part, (), [xz.Repeat(5000 + gap, 5000, 0)]) for gap in (3192, 3193))
    assert len(near) < 5600 < 10_000 < len(far)


@pytest.mark.parametrize("repeat", [xz.Repeat(5, 3, 0), xz.Repeat(3, 3, 3), xz.Repeat(3, 4, 0), xz.Repeat(3, 3, -1)])
def test_what_is_no_repeat_is_refused(repeat):
    with pytest.raises(ValueError, match="is no repeat of these 6 bytes"):
        xz.pack(b"abcabc", (), [repeat])
    with pytest.raises(ValueError, match="covers bytes that another repeat covers"):
        xz.pack(bytes(100), (), [xz.Repeat(10, 50, 0), xz.Repeat(20, 50, 0)])


def test_the_xz_program_reads_it(tmp_path):
    program = shutil.which("xz")
    if not program:
        pytest.skip("there is no xz here")
    packed = read_back(NOISE + b"-" + NOISE, [100_000], [xz.Repeat(len(NOISE) + 1, len(NOISE), 0)])
    (tmp_path / "x.xz").write_bytes(packed)
    listed = subprocess.run([program, "--robot", "-l", tmp_path / "x.xz"], capture_output=True, text=True, check=True).stdout
    assert listed.splitlines()[1].split("\t")[1:5] == ["1", "1", str(len(packed)), str(2 * len(NOISE) + 1)]
    assert subprocess.run([program, "-dc", tmp_path / "x.xz"], capture_output=True, check=True).stdout == NOISE + b"-" + NOISE
