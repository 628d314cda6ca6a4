"""The programs that a workbench opens: the check of a source, the completion of its path, and the recent programs.

Imports nothing heavy, because the command line checks a source before anything else.
"""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

# The numbers of recent programs that are saved, and of completions of a path that are listed.
MAX_RECENT_PROGRAMS = 30
MAX_COMPLETIONS = 200


def missing_source_error(source: str) -> str:
    """Returns the error for a source on this machine that is neither a file nor `MODULE:NAME`; empty for others."""
    if os.path.lexists(source):
        return ""
    if source.replace("-", "_").isidentifier():
        return f"unknown verb or file {source!r} in {os.getcwd()} (`buddy-tui --help` lists the verbs)"
    # Imported on demand: an unknown word, or a file, is answered without it.
    from buddy.compiler.protocol.source_locations import split_source

    parts = split_source(source)
    is_module = parts.is_module and all(part.isidentifier() for part in parts.target.split("."))
    return "" if is_module or os.path.lexists(parts.target) else _no_file_error(parts.target)


def _no_file_error(path: str) -> str:
    """Returns the error for a missing file, with a file that the user may mean instead."""
    # Imported on demand: it takes longer than to find that a file exists.
    from buddy.compiler.protocol.source_locations import similar_file

    near = similar_file(Path(path))
    return f"there is no file {path} in {os.getcwd()}" + (f": did you mean {near}?" if near else "")


class Program(NamedTuple):
    """A source with the arguments of the script.

    `opened_at` is when the program was opened last, in seconds since the epoch.
    """

    source: str
    arguments: tuple[str, ...] = ()
    opened_at: float = 0.0

    @property
    def text(self) -> str:
        """The program as words of a command line."""
        return shlex.join((self.source, *self.arguments))


def parse_typed_program(typed: str, *, is_local: bool = True) -> Program:
    """Returns the program that the user has typed: a source, then arguments of the script.

    Raises `ValueError` with the reason if a source on this machine (`is_local`) cannot be opened.
    """
    try:
        words = shlex.split(typed)
    except ValueError as error:
        raise ValueError(f"{typed.strip()}: {error}") from error
    if not words:
        raise ValueError("give the path of a script or of a model file")
    source = os.path.expanduser(words[0]) if is_local else words[0]
    if is_local:
        _check_source(source)
    return Program(source, tuple(words[1:]))


def _check_source(source: str) -> None:
    """Raises `ValueError` with the reason if a source on this machine cannot be opened."""
    if "\0" in source:
        raise ValueError("a path cannot contain a null character")
    if source.isidentifier() and not os.path.lexists(source):
        raise ValueError(_no_file_error(source))
    if error := missing_source_error(source):
        raise ValueError(error)
    path = source
    if not os.path.lexists(source):
        from buddy.compiler.protocol.source_locations import split_source

        path = split_source(source).target
    if os.path.isdir(path):
        # Imported on demand: it takes longer than to find an unknown word.
        from buddy.compiler.protocol.dump_files import is_dump

        if not is_dump(Path(path)):
            raise ValueError(f"{path} is a folder that contains no dump of a known format: give a file in it")
    elif os.path.lexists(path) and not os.path.exists(path):
        raise ValueError(f"{path} is a link to a file that does not exist")
    elif os.path.lexists(path) and not os.access(path, os.R_OK):
        raise ValueError(f"{path} cannot be read: permission denied")


def path_completions(typed: str) -> list[str]:
    """Returns the paths that continue `typed`, quoted for `parse_typed_program`: folders, which end with `/`, first."""
    folder, prefix = os.path.split(_unquoted(typed))
    try:
        with os.scandir(os.path.expanduser(folder) or ".") as entries:
            # Pairs that sort folders first.
            matches = [
                (not entry.is_dir(), f"{entry.name}/" if entry.is_dir() else entry.name)
                for entry in entries
                if entry.name.startswith(prefix) and (prefix.startswith(".") or not entry.name.startswith("."))
            ]
    except (OSError, ValueError):
        return []
    return [_quoted(os.path.join(folder, name)) for _, name in sorted(matches)[:MAX_COMPLETIONS]]


def _unquoted(typed: str) -> str:
    """Returns the path in `typed`, which may lack the closing quote."""
    for closing in ("", "'", '"'):
        try:
            words = shlex.split(typed + closing)
        except ValueError:
            continue
        return words[-1] if words else ""
    return typed


def _quoted(path: str) -> str:
    """Returns `path` as a word of a command line. The tilde stays outside of the quotes."""
    home, slash, rest = path.partition("/")
    return f"{home}/{shlex.quote(rest) if rest else ''}" if slash and home.startswith("~") else shlex.quote(path)


class RecentPrograms:
    """The programs that were opened last, the latest first, in a file in the folder `store`."""

    def __init__(self, store: Path) -> None:
        self._path = store / "recent.json"

    def read(self) -> list[Program]:
        """Returns the saved programs; none if the file is missing or damaged."""
        import msgspec

        try:
            return msgspec.json.decode(self._path.read_bytes(), type=list[Program])
        except (OSError, ValueError):
            return []

    def add(self, source: str, arguments: Sequence[str], now: float | None = None) -> None:
        """Puts a program first. A file is saved with its absolute path. Does nothing if the folder is not writable."""
        import msgspec

        from buddy.app.workspace.files import exclusive_lock, write_bytes_atomically
        from buddy.compiler.protocol.source_locations import split_source

        parts = split_source(source)
        absolute = parts.with_target(os.path.abspath(parts.target)) if os.path.exists(parts.target) else source
        program = Program(absolute, tuple(arguments), time.time() if now is None else now)
        try:
            with exclusive_lock(self._path.with_name(".recent.lock")):
                others = [other for other in self.read() if other[:2] != program[:2]]
                write_bytes_atomically(self._path, msgspec.json.encode([program, *others][:MAX_RECENT_PROGRAMS]))
        except OSError:
            return
