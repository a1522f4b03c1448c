# SPDX-License-Identifier: Apache-2.0
"""Strict YAML: what is read, and one error with a place and a remedy for everything that is not."""

import pickle
import random

import pytest
import yaml

from generator import manifest, strict_yaml
from generator.strict_yaml import ManifestError, Mapping, Scalar, Sequence


def plain(node):
    """The values of a node without their places."""
    if isinstance(node, Mapping):
        return {name: plain(value) for name, value in node.entries.items()}
    if isinstance(node, Sequence):
        return [plain(item) for item in node.items]
    return node.value


def parse(text):
    return strict_yaml.parse(text.encode("utf-8"), "f.yaml")


@pytest.mark.parametrize("text, value", [
    ("a: 1", {"a": 1}),
    ("a: -7", {"a": -7}),
    ("a: 0", {"a": 0}),
    (f"a: {2**63 - 1}", {"a": 2**63 - 1}),
    (f"a: -{2**63}", {"a": -(2**63)}),
    ("a: true\nb: false\nc: null", {"a": True, "b": False, "c": None}),
    ("a: word with blanks", {"a": "word with blanks"}),
    ("a: sm_90a", {"a": "sm_90a"}),
    ("a: 'yes'\nb: \"010\"", {"a": "yes", "b": "010"}),
    ('a: "t\\tb"', {"a": "t\tb"}),
    ('a: ""', {"a": ""}),
    ("{m: 128, n: 64, y: 1}", {"m": 128, "n": 64, "y": 1}),
    ("- [1, 2]\n- {}\n- []", [[1, 2], {}, []]),
    ("a: &x {b: [1]}\nc: *x", {"a": {"b": [1]}, "c": {"b": [1]}}),
    ("a: |\n  line one\n  line two\n", {"a": "line one\nline two\n"}),
    ("--- # start\na: ü\n...\n", {"a": "ü"}),
    ("a: 1\r\nb: 2\r\n", {"a": 1, "b": 2}),
])
def test_values(text, value):
    found = plain(parse(text))
    assert found == value
    assert repr(found) == repr(value), "types differ"


REFUSED = [
    # text, line, column, message, remedy
    ("a: 1\nb: 2\na: 3", 3, 1, "key 'a' stands twice in this mapping, first in line 1", "Remove"),
    ("x: {p: 1, p: 2}", 1, 11, "key 'p' stands twice", "Remove"),
    *((f"a: {word}", 1, 4, f"'{word}' is a boolean in YAML 1.1", "Write true or false")
      for word in ("yes", "Yes", "NO", "on", "Off", "True", "FALSE", "y", "N")),
    ("on: 1", 1, 1, "'on' is a boolean", "quote"),
    ("a: 010", 1, 4, "'010' is not a plain decimal integer", "decimal"),
    ("a: 08", 1, 4, "'08' looks like a number", "decimal"),
    ("a: 0x1F", 1, 4, "'0x1F' is not a plain decimal integer", "decimal"),
    ("a: 0b11", 1, 4, "'0b11' is not a plain decimal integer", "decimal"),
    ("a: 0o17", 1, 4, "'0o17' looks like a number", "decimal"),
    ("a: 1_000", 1, 4, "'1_000' is not a plain decimal integer", "decimal"),
    ("a: +1", 1, 4, "'+1' is not a plain decimal integer", "decimal"),
    ("a: -0", 1, 4, "'-0' is not a plain decimal integer", "decimal"),
    ("a: 1:30", 1, 4, "'1:30' is not a plain decimal integer", "decimal"),
    ("a: 12abc", 1, 4, "'12abc' looks like a number", "quote"),
    (f"a: {2**63}", 1, 4, "integer 9223372036854775808 does not fit in 64 bits", "smaller"),
    ("a: " + "9" * 5000, 1, 4, "does not fit in 64 bits", "smaller"),
    ("a: 1.5", 1, 4, "'1.5' is a floating-point number", "integer"),
    ("a: .inf", 1, 4, "'.inf' is a floating-point number", "integer"),
    ("a: .NaN", 1, 4, "'.NaN' is a floating-point number", "integer"),
    ("a: 1e3", 1, 4, "'1e3' looks like a number", "decimal"),
    ("a: 1:30.5", 1, 4, "'1:30.5' is a floating-point number", "integer"),
    ("a: 2024-01-31", 1, 4, "'2024-01-31' is a date", "Quote"),
    ("a: 2024-01-31 10:00:00", 1, 4, "is a date", "Quote"),
    ("a: ~", 1, 4, "'~' is null in YAML 1.1", "Write null"),
    ("a: NULL", 1, 4, "'NULL' is null in YAML 1.1", "Write null"),
    ("a:\nb: 1", 1, 3, "value is missing", "Write a value"),
    ("a: {b}", 1, 6, "value is missing", "Write a value"),
    ("- \n- 1", 1, 2, "value is missing", "Write a value"),
    ("b: &m {x: 1}\nc:\n  <<: *m", 3, 3, "'<<' is a merge key", "Write the fields out"),
    ("a: =", 1, 4, "default value key", "Quote"),
    ("a: !!str 1", 1, 4, "tag 'tag:yaml.org,2002:str' is not allowed", "Remove the tag"),
    ("a: !!python/object:os.system {}", 1, 4, "is not allowed", "Remove the tag"),
    ("a: ! x", 1, 4, "tag '!' is not allowed", "Remove the tag"),
    ("!!str a: 1", 1, 1, "a key can't have a tag", "word"),
    ("%YAML 1.1\n---\na: 1", 1, 1, "directive lines", "Remove"),
    ("%TAG ! tag:x,2000:\n---\na: 1", 1, 1, "directive lines", "Remove"),
    ("a: 1\nb:\t2", 2, 3, "tab character", "spaces"),
    ("a:\n\tb: 1", 2, 1, "tab character", "spaces"),
    ("a: 1 #\tcomment", 1, 7, "tab character", "spaces"),
    ("a: 1\nb: \u2028", 2, 4, "U+2028 is not allowed", "escape"),
    ("a: 1\nb: x\u0007", 2, 5, "U+0007 is not allowed", "escape"),
    ("a: 1\nb: \0", 2, 4, "NUL character", "Remove"),
    ("a: 1\n---\nb: 2\n", 2, 1, "a second document starts here", "one document"),
    ("---\na: 1\n...\n---\n", 4, 1, "a second document starts here", "one document"),
    ("", 1, 1, "file holds no document", "Write the manifest"),
    ("# nothing\n", 2, 1, "file holds no document", "Write the manifest"),
    ("1: 2", 1, 1, "key 1 is not a string", "Quote the key"),
    ("true: 2", 1, 1, "key true is not a string", "Quote the key"),
    ("? [a]\n: b", 1, 3, "a key must be a plain string", "word"),
    ("a: &k x\n*k : 1", 2, 1, "a key must be a plain string", "word"),
    ("a: *x", 1, 4, "alias *x has no anchor before it", "Define &x"),
    ("a: &x [1, *x]", 1, 11, "alias *x stands within the value that it names", "Write the value out"),
    ("a: &x 1\nb: &x 2", 2, 4, "anchor &x is defined twice", "another name"),
    ("a: [1, 2", 1, 9, "not valid YAML: expected ',' or ']'", "Correct the syntax"),
    ("a: 'x", 1, 6, "not valid YAML", "Correct the syntax"),
    ("a: b: c", 1, 5, "not valid YAML: mapping values are not allowed here", "Correct the syntax"),
    ("a: x\n  b: 2", 2, 4, "not valid YAML", "Correct the syntax"),
    ("a: 1\n  b", 1, 4, "'1 b' looks like a number", "quote"),
    ("a: @x", 1, 4, "not valid YAML", "Correct the syntax"),
    ('a: "\\UFFFFFFFF"', 1, 7, "escape sequence names no character", "the character itself"),
    ('a: "\\U00110000"', 1, 7, "escape sequence names no character", "the character itself"),
    ('a: "\\ud83d"', 1, 4, "half of a surrogate pair", "the character itself"),
    ("a: !e!x y", 1, 4, "not valid YAML: found undefined tag handle", "Correct the syntax"),
    ("a: " + "[" * 17 + "]" * 17, 1, 20, "nested deeper than 16 levels", "Flatten"),
    ("[" * 200_000, 1, 18, "nested deeper than 16 levels", "Flatten"),
    ("a: [" + "x, " * 20_000 + "]", 1, 4 + 1 + 3 * 19_998, "more than 20000 values", "smaller"),
]


@pytest.mark.parametrize("text, line, column, message, remedy", REFUSED, ids=[repr(case[0])[:40] for case in REFUSED])
def test_refused(text, line, column, message, remedy):
    with pytest.raises(ManifestError) as caught:
        parse(text)
    error = caught.value
    assert (error.path, error.line, error.column) == ("f.yaml", line, column)
    assert message in error.message
    assert remedy.lower() in error.remedy.lower()
    assert str(error) == f"f.yaml:{line}:{column}: {error.message}. {error.remedy}"


@pytest.mark.parametrize("data, line, column, message", [
    (b"\xef\xbb\xbfa: 1", 1, 1, "byte order mark"),
    ("a: 1".encode("utf-16"), 1, 1, "byte order mark"),
    (b"a: 1\nb: x\xff", 2, 5, "byte 0xff is not UTF-8"),
    (b"a: \xed\xa0\x80", 1, 4, "byte 0xed is not UTF-8"),
    (b"a: 1 \xc0\x80", 1, 6, "byte 0xc0 is not UTF-8"),
    (b"#" * ((1 << 20) + 1), 1, 1, "file has 1048577 bytes"),
    (b"a: 1\rb: 2", 1, 5, "U+000D is not allowed"),
])
def test_refused_bytes(data, line, column, message):
    with pytest.raises(ManifestError) as caught:
        strict_yaml.parse(data, "f.yaml")
    assert (caught.value.line, caught.value.column) == (line, column)
    assert message in caught.value.message


def test_alias_bomb_is_refused_before_it_expands():
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 10)]
    with pytest.raises(ManifestError) as caught:
        parse("\n".join(lines))
    assert caught.value.line == 5, "10 + 100 + 1000 + 10000 values fit, the next level doesn't"
    assert "more than 20000 values" in caught.value.message


def test_every_value_keeps_its_place():
    document = parse("top:\n  - name: x\n    tile: {m: 1}\n")
    (item,) = document.entries["top"].items
    assert (document.keys["top"].line, document.keys["top"].column) == (1, 1)
    assert (item.mark.line, item.mark.column) == (2, 5)
    assert (item.entries["name"].mark.line, item.entries["name"].mark.column) == (2, 11)
    tile = item.entries["tile"]
    assert (tile.entries["m"].mark.line, tile.entries["m"].mark.column) == (3, 15)
    assert isinstance(tile.entries["m"], Scalar)


def test_errors_travel_between_processes():
    with pytest.raises(ManifestError) as caught:
        parse("a: yes")
    copy = pickle.loads(pickle.dumps(caught.value))
    assert type(copy) is ManifestError
    assert str(copy) == str(caught.value)


def test_random_damage_gives_a_typed_error_or_a_document(sample_text):
    pieces = ['"\\UFFFFFFFF"', "&a ", "*a", "!!int ", "[", "{", "]", "}", "- ", ": ", "? ", "|", ">", "'", '"', "#", "%", "@", "\n",
              "---\n", "...\n", "\0", "9" * 30, "1:2", "<<: ", "|9", "\\", "\r\n", "  ", "null", "%YAML 9.9\n---\n", "!<%ff> x"]
    rng = random.Random(1)
    refused = 0
    for _ in range(300):
        text = sample_text
        for _ in range(rng.randrange(1, 4)):
            start = rng.randrange(len(text))
            text = text[:start] + rng.choice(pieces) + text[start + rng.choice([0, 1, 3, 20]):]
        try:
            manifest.parse(text.encode(), "f.yaml")
        except ManifestError as error:
            refused += 1
            assert error.message and error.remedy and error.column >= 1
            assert 1 <= error.line <= text.count("\n") + 2
    assert refused > 200


def test_both_parsers_of_pyyaml_agree(sample_text, monkeypatch):
    """On a damaged manifest, too: the same document with every place in it, or the same error."""
    pieces = ["[", "{", "]", "}", "- ", ": ", "? ", "|", ">", "'", '"', "#", "%", "@", "\n", "\\", "\r\n", "  ", ":", ",", "-", "a:b", "\xe9", "&a ", "*a"]
    rng = random.Random(2)
    documents = 0
    for _ in range(150):
        start = rng.randrange(len(sample_text))
        text = sample_text[:start] + rng.choice(pieces) + sample_text[start + rng.choice([0, 1, 3]):]
        found = []
        for fast in (True, False):
            monkeypatch.setattr(yaml, "__with_libyaml__", fast)
            try:
                found.append(strict_yaml.parse(text.encode(), "f.yaml"))
            except ManifestError as error:
                found.append(str(error))
        assert found[0] == found[1], text
        documents += not isinstance(found[0], str)
    assert 20 < documents < 130
