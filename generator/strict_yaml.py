# SPDX-License-Identifier: Apache-2.0
"""YAML read strictly: what looks ambiguous is refused, and every value keeps its place in the file.

PyYAML's parser gives the events; nothing of its tag resolution or construction is used to make values. Values are only
strings, 64-bit decimal integers, `true`/`false`, `null`, lists and mappings with string keys. libyaml's parser, which takes
a fifth of the time, reads what is right; PyYAML's own says what is wrong.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn, Union

import yaml

MAX_BYTES = 1 << 20
MAX_DEPTH = 16
MAX_NODES = 20_000
"""Most values that a file may expand to, each use of an alias counted in full."""


class ManifestError(Exception):
    """Something in a manifest is wrong: where (`path`, `line`, `column`, both from 1), what (`message`) and the `remedy`."""

    def __init__(self, path: str, line: int, column: int, message: str, remedy: str):
        super().__init__(path, line, column, message, remedy)
        self.path = path
        self.line = line
        self.column = column
        self.message = message
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.path}:{self.line}:{self.column}: {self.message}. {self.remedy}"


@dataclass(frozen=True)
class Mark:
    """A place in a file; line and column count from 1."""

    path: str
    line: int
    column: int

    def error(self, message: str, remedy: str) -> ManifestError:
        """The error to raise for something wrong at this place."""
        return ManifestError(self.path, self.line, self.column, message, remedy)


@dataclass(frozen=True)
class Scalar:
    """A string, integer, boolean or null."""

    value: str | int | bool | None
    mark: Mark


@dataclass(frozen=True)
class Sequence:
    """A list."""

    items: tuple["Node", ...]
    mark: Mark


@dataclass(frozen=True)
class Mapping:
    """A mapping; `keys` holds the place of each key."""

    entries: dict[str, "Node"]
    keys: dict[str, Mark]
    mark: Mark


Node = Union[Scalar, Sequence, Mapping]


def load(path: str | Path) -> Node:
    """The document in the file `path`. Raises ManifestError for anything that is not strict YAML; OSError passes through."""
    return parse(Path(path).read_bytes(), str(path))


def parse(data: bytes, path: str) -> Node:
    """The document in `data`; `path` is used in errors only."""
    text = _decode(data, path)
    if yaml.__with_libyaml__ and "?" not in text:  # on a question mark within a word the two parsers differ
        with suppress(ManifestError, yaml.YAMLError, ValueError, OverflowError):  # the other parser says what is wrong, and where
            return _document(yaml.CSafeLoader(text), path)
    loader = yaml.SafeLoader(text)
    try:
        return _document(loader, path)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise _at(path, mark).error(f"not valid YAML: {error.problem or error.context}",
                                    "Correct the syntax here or just before this place") from None
    except (OverflowError, ValueError):  # PyYAML passes the number of an escape such as "\UFFFFFFFF" to chr() unchecked
        raise _at(path, loader.get_mark()).error("escape sequence names no character", "Write the character itself") from None


def _document(loader: yaml.SafeLoader, path: str) -> Node:
    try:
        return _Composer(loader, path).document()
    finally:
        loader.dispose()


def kind(node: Node) -> str:
    """The kind of a value in words, for error messages."""
    if isinstance(node, Sequence):
        return "a list"
    if isinstance(node, Mapping):
        return "a mapping"
    if node.value is None:
        return "null"
    return {bool: "a boolean", int: "an integer", str: "a string"}[type(node.value)]


# --- characters --------------------------------------------------------------------------------------------------------

_FORBIDDEN = re.compile("[\x00-\x09\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff\ud800-\udfff]|\r(?!\n)")
_BOMS = (b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")


def _decode(data: bytes, path: str) -> str:
    if len(data) > MAX_BYTES:
        raise Mark(path, 1, 1).error(f"file has {len(data)} bytes, more than {MAX_BYTES}", "Make it smaller")
    if data.startswith(_BOMS):
        raise Mark(path, 1, 1).error("file starts with a byte order mark", "Save it as UTF-8 without BOM")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        good = data[:error.start].decode("utf-8")
        raise _offset(path, good, len(good)).error(f"byte 0x{data[error.start]:02x} is not UTF-8",
                                                   "Save the file as UTF-8") from None
    match = _FORBIDDEN.search(text)
    if match:
        raise _offset(path, text, match.start()).error(*_forbidden(match.group()))
    return text


def _forbidden(character: str) -> tuple[str, str]:
    if character == "\t":
        return "tab character", "Indent and separate with spaces"
    if character == "\0":
        return "NUL character", "Remove it; is this a text file?"
    return f"character U+{ord(character):04X} is not allowed", 'Remove it, or write it as an escape within "..."'


def _offset(path: str, text: str, offset: int) -> Mark:
    line_start = text.rfind("\n", 0, offset) + 1
    return Mark(path, text.count("\n", 0, offset) + 1, offset - line_start + 1)


def _at(path: str, mark: yaml.Mark) -> Mark:
    return Mark(path, mark.line + 1, mark.column + 1)


# --- structure ---------------------------------------------------------------------------------------------------------


@dataclass
class _Anchor:
    """An anchored value; `node` is None while it is still being read."""

    node: Node | None = None
    size: int = 0


@dataclass
class _Composer:
    """Events to nodes, with the limits on depth and on the expanded number of nodes."""

    loader: yaml.SafeLoader
    path: str
    anchors: dict[str, _Anchor] = field(default_factory=dict)
    count: int = 0

    def document(self) -> Node:
        self._next()  # stream start
        if isinstance(self.loader.peek_event(), yaml.StreamEndEvent):
            raise self._mark(self.loader.peek_event()).error("file holds no document", "Write the manifest into it")
        start = self._next()
        if start.version or start.tags:
            raise self._mark(start).error("directive lines (%YAML, %TAG) are not allowed", "Remove the line")
        node = self._node(0)
        self._next()  # document end
        extra = self.loader.peek_event()
        if not isinstance(extra, yaml.StreamEndEvent):
            raise self._mark(extra).error("a second document starts here", "Keep one document in a file: remove the '---'")
        return node

    def _next(self) -> yaml.Event:
        return self.loader.get_event()

    def _mark(self, event: yaml.Event) -> Mark:
        return _at(self.path, event.start_mark)

    def _node(self, depth: int) -> Node:
        event = self._next()
        mark = self._mark(event)
        if isinstance(event, yaml.AliasEvent):
            return self._alias(event.anchor, mark)
        self._grow(1, mark)
        if depth > MAX_DEPTH:
            raise mark.error(f"nested deeper than {MAX_DEPTH} levels", "Flatten the structure")
        if event.tag is not None:
            raise mark.error(f"tag {event.tag!r} is not allowed", "Remove the tag; quote the value if it is a string")
        anchor = self._open_anchor(event.anchor, mark)
        before = self.count
        node = self._value(event, mark, depth)
        anchor.node, anchor.size = node, self.count - before + 1
        return node

    def _value(self, event: yaml.Event, mark: Mark, depth: int) -> Node:
        if isinstance(event, yaml.SequenceStartEvent):
            return Sequence(tuple(self._items(depth)), mark)
        if isinstance(event, yaml.MappingStartEvent):
            return self._mapping(mark, depth)
        return Scalar(_scalar(self.loader, event, mark), mark)

    def _items(self, depth: int) -> Iterator[Node]:
        while not isinstance(self.loader.peek_event(), yaml.SequenceEndEvent):
            yield self._node(depth + 1)
        self._next()

    def _mapping(self, mark: Mark, depth: int) -> Mapping:
        entries: dict[str, Node] = {}
        keys: dict[str, Mark] = {}
        while not isinstance(self.loader.peek_event(), yaml.MappingEndEvent):
            key, key_mark = self._key()
            if key in keys:
                raise key_mark.error(f"key {key!r} stands twice in this mapping, first in line {keys[key].line}",
                                     "Remove one of them")
            keys[key] = key_mark
            entries[key] = self._node(depth + 1)
        self._next()
        return Mapping(entries, keys, mark)

    def _key(self) -> tuple[str, Mark]:
        event = self._next()
        mark = self._mark(event)
        if not isinstance(event, yaml.ScalarEvent):
            raise mark.error("a key must be a plain string", "Write the key out as a word")
        if event.tag is not None or event.anchor is not None:
            raise mark.error("a key can't have a tag or an anchor", "Write the key out as a word")
        if not event.style and event.value in _ONE_LETTER_BOOLEANS:
            return event.value, mark
        key = _scalar(self.loader, event, mark)
        if not isinstance(key, str):
            raise mark.error(f"key {event.value} is not a string", "Quote the key")
        return key, mark

    def _grow(self, nodes: int, mark: Mark) -> None:
        self.count += nodes
        if self.count > MAX_NODES:
            raise mark.error(f"file expands to more than {MAX_NODES} values", "Use fewer aliases or a smaller file")

    def _open_anchor(self, name: str | None, mark: Mark) -> _Anchor:
        anchor = _Anchor()
        if name is not None:
            if name in self.anchors:
                raise mark.error(f"anchor &{name} is defined twice", "Give the second one another name")
            self.anchors[name] = anchor
        return anchor

    def _alias(self, name: str, mark: Mark) -> Node:
        anchor = self.anchors.get(name)
        if anchor is None:
            raise mark.error(f"alias *{name} has no anchor before it", f"Define &{name} first, or write the value out")
        if anchor.node is None:
            raise mark.error(f"alias *{name} stands within the value that it names", "Write the value out")
        self._grow(anchor.size, mark)
        return anchor.node


# --- scalars -----------------------------------------------------------------------------------------------------------

_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]*)")
_NUMBER_LIKE = re.compile(r"[-+.]?[0-9]|[-+]?\.(?:inf|nan)\b", re.IGNORECASE)
_SURROGATE = re.compile("[\ud800-\udfff]")
_ONE_LETTER_BOOLEANS = ("y", "Y", "n", "N")
_WORDS = {"true": True, "false": False, "null": None}
_RESOLVED = {
    "bool": ("is a boolean in YAML 1.1", "Write true or false, or quote it if it is a string"),
    "int": ("is not a plain decimal integer", "Write the integer in decimal, without leading zeros, signs or underscores, "
            "or quote it if it is a string"),
    "float": ("is a floating-point number", "Use an integer, or quote it if it is a string"),
    "timestamp": ("is a date in YAML 1.1", "Quote it if it is a string"),
    "null": ("is null in YAML 1.1", "Write null, or quote it if it is a string"),
    "merge": ("is a merge key", "Write the fields out"),
    "value": ("is YAML 1.1's default value key", "Quote it if it is a string"),
}


def _scalar(loader: yaml.SafeLoader, event: yaml.ScalarEvent, mark: Mark) -> str | int | bool | None:
    text = event.value
    if event.style:
        if _SURROGATE.search(text):
            raise mark.error("string holds half of a surrogate pair", "Write the character itself, not its UTF-16 escapes")
        return text
    if text in _WORDS:
        return _WORDS[text]
    if _INTEGER.fullmatch(text) and text != "-0":
        return _integer(text, mark)
    if text == "":
        raise mark.error("value is missing", 'Write a value, null or ""')
    resolved = loader.resolve(yaml.ScalarNode, text, (True, False)).rpartition(":")[2]
    if text in _ONE_LETTER_BOOLEANS:
        resolved = "bool"
    elif resolved == "str" and _NUMBER_LIKE.match(text):
        raise mark.error(f"{text!r} looks like a number but is not a plain decimal integer", _RESOLVED["int"][1])
    if resolved in _RESOLVED:
        what, remedy = _RESOLVED[resolved]
        raise mark.error(f"{text!r} {what}", remedy)
    return text


def _integer(text: str, mark: Mark) -> int:
    value = int(text) if len(text) <= 20 else 1 << 63
    if not -(1 << 63) <= value < 1 << 63:
        raise mark.error(f"integer {text[:24]} does not fit in 64 bits", "Use a smaller number")
    return value


def fail(node: Node, message: str, remedy: str) -> NoReturn:
    """Raise the error for something wrong with `node`."""
    raise node.mark.error(message, remedy)
