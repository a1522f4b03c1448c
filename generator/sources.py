# SPDX-License-Identifier: Apache-2.0
"""Which of the tree's Python files a module is made from: the closure of its module-level imports, and their digests.

The closure is read from the syntax tree, nothing is imported. Imports inside functions are not followed: a module that chooses at run
time (the kernel registry) is followed by naming its choice as a further root. The trace worker checks that what was really imported
lies inside the closure, so that the closure cannot silently miss a file.
"""

from __future__ import annotations

import ast
import hashlib
import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Iterable, Iterator

from generator.canonical import canonical_json, write_whole

#: Package name -> its folder, relative to the root of the tree.
PACKAGES = {"generator": "generator", "fmhaforge": "runtime/fmhaforge"}

#: The file in the build folder that keeps the imports of parsed files.
MEMORY_NAME = "imports.json"


class SourceError(Exception):
    """A module of the tree is missing or cannot be parsed; the message names it."""


@dataclass(frozen=True)
class Source:
    """One source file: its module, its path relative to the root, the SHA-256 (hex) of its bytes."""

    module: str
    path: str
    digest: str


@lru_cache(maxsize=None)
def module_path(root: Path, module: str) -> Path | None:
    """The file of one of the tree's modules, or None when `module` is not the tree's or does not exist."""
    package, _, rest = module.partition(".")
    if package not in PACKAGES:
        return None
    base = root / PACKAGES[package]
    if rest:
        base = base.joinpath(*rest.split("."))
    for candidate in (base / "__init__.py", base.with_suffix(".py")):
        if candidate.is_file():
            return candidate
    return None


def _top_level(statements: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements that run when the module is imported, through if, try and with, but not into functions or `if TYPE_CHECKING`."""
    for statement in statements:
        yield statement
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        if isinstance(statement, ast.If) and "TYPE_CHECKING" in ast.dump(statement.test):
            yield from _top_level(statement.orelse)
            continue
        for field in ("body", "orelse", "finalbody"):
            yield from _top_level(getattr(statement, field, ()))
        for handler in getattr(statement, "handlers", ()):
            yield from _top_level(handler.body)


def imported_names(tree: ast.Module, module: str, is_package: bool) -> Iterator[str]:
    """The dotted names that a module imports when it is itself imported: modules, and possible submodules named in `from` imports."""
    for statement in _top_level(tree.body):
        if isinstance(statement, ast.Import):
            for alias in statement.names:
                yield alias.name
        elif isinstance(statement, ast.ImportFrom):
            base = statement.module or ""
            if statement.level:
                parents = module.split(".") if is_package else module.split(".")[:-1]
                parents = parents[: len(parents) - (statement.level - 1)]
                base = ".".join(parents + ([statement.module] if statement.module else []))
            yield base
            for alias in statement.names:
                yield f"{base}.{alias.name}"


@lru_cache(maxsize=None)
def _read(path: Path) -> bytes:
    return path.read_bytes()


@lru_cache(maxsize=None)
def file_digest(path: Path) -> str:
    """SHA-256 (hex) of a file, read once in the life of this process."""
    return hashlib.sha256(_read(path)).hexdigest()


class ImportMemory:
    """The imports of files that were parsed before, by module and content: parsing is most of what a build with nothing to do costs."""

    def __init__(self) -> None:
        self.known: dict[str, list[str]] = {}
        self.learned = False

    def key(self, module: str, path: Path) -> str:
        """What a file's imports depend on: its content, its name, and this reader."""
        return f"{module} {path.name} {file_digest(path)} {file_digest(Path(__file__))}"

    def load(self, path: Path) -> None:
        """Remembers what `save` wrote; a file that cannot be read is as good as none."""
        try:
            known = json.loads(path.read_bytes())
            self.known.update({key: names for key, names in known.items() if all(isinstance(name, str) for name in names)})
        except (OSError, ValueError, AttributeError, TypeError):
            return

    def save(self, path: Path) -> None:
        """Writes what is known, if something was learned. Raises OSError."""
        if self.learned:
            write_whole(path, canonical_json(self.known))
            self.learned = False


memory = ImportMemory()


@lru_cache(maxsize=None)
def _direct_imports(root: Path, module: str, path: Path) -> tuple[str, ...]:
    key = memory.key(module, path)
    if key not in memory.known:
        try:
            tree = ast.parse(_read(path), str(path))
        except SyntaxError as error:
            raise SourceError(f"{path}:{error.lineno}: {error.msg}") from None
        memory.known[key] = list(imported_names(tree, module, path.name == "__init__.py"))
        memory.learned = True
    return tuple(memory.known[key])


@lru_cache(maxsize=None)
def closure(root: Path, roots: tuple[str, ...], without: frozenset[str] = frozenset()) -> tuple[Source, ...]:
    """The tree's modules that importing `roots` imports, parents included, sorted by path; `without` are left out and not followed.

    Raises SourceError when a root is not a module of the tree, or a file cannot be parsed.
    """
    found: dict[str, Path] = {}
    waiting = []
    for module in roots:
        if module_path(root, module) is None:
            raise SourceError(f"there is no module {module} below {root}")
        waiting.append(module)
    while waiting:
        module = waiting.pop()
        path = module_path(root, module)
        if path is None or module in found or module in without:
            continue
        found[module] = path
        if "." in module:
            waiting.append(module.rpartition(".")[0])
        waiting.extend(_direct_imports(root, module, path))
    sources = [Source(module, path.relative_to(root).as_posix(), file_digest(path)) for module, path in found.items()]
    return tuple(sorted(sources, key=_path_of))


def _path_of(source: Source) -> str:
    return source.path


def digests(sources: Iterable[Source]) -> dict[str, str]:
    """Path -> digest of the sources, for a fingerprint."""
    return {source.path: source.digest for source in sources}
