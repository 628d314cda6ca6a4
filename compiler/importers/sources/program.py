"""The location that a source names, the program that is captured from it or the error, and the program's files."""

from __future__ import annotations

import difflib
import linecache
import os
import sys
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from buddy.compiler.protocol import Diagnostic, GraphInfo
from buddy.compiler.protocol.text.python_code import decode_python
from buddy.compiler.protocol.worker_messages import PythonText
from buddy.compiler.runtime.captured import CapturedGraph


class SourceError(Exception):
    """No program could be loaded; `diagnostic` says what happened, where, and what to do."""

    def __init__(self, diagnostic: Diagnostic) -> None:
        super().__init__(str(diagnostic))
        self.diagnostic = diagnostic


def source_error(what: str, where: str = "", todo: str = "", detail: str = "") -> SourceError:
    return SourceError(Diagnostic(what, where, todo, detail=detail))


@dataclass
class CapturedProgram:
    """The graphs of a program in the order in which they ran, notes for the user, and the program's files."""

    graphs: list[CapturedGraph] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    files: tuple[str, ...] = ()


@dataclass(frozen=True)
class Location:
    """Either `path` (a file) or `module` (importable) is set; `name` selects an object in it, "" all of it."""

    path: Path | None = None
    module: str = ""
    name: str = ""


def locate(source: str) -> Location:
    """Parses `script.py`, `script.py:name` or `package.module:name`, relative to the current folder.

    A file of any other kind may be given in place of a script. Raises `SourceError` for a missing file, or a folder.
    """
    head, separator, name = source.rpartition(":")
    if separator and _is_name(name) and not os.path.exists(source):
        if _looks_like_path(head):
            return Location(path=_file(head), name=name)
        return Location(module=head, name=name)
    return Location(path=_file(source))


def _is_name(text: str) -> bool:
    """Whether a text is a Python name, or the name of an MLIR function, which may contain dots."""
    return all(part.isidentifier() for part in text.split("."))


def _looks_like_path(text: str) -> bool:
    return text.endswith(".py") or os.sep in text or os.path.exists(text)


def _file(text: str) -> Path:
    try:
        return _check_file(text)
    except (OSError, ValueError) as error:  # a folder without permission, an invalid name
        reason = getattr(error, "strerror", None) or error
        raise source_error(
            f"{text:.200} cannot be opened: {reason}", where=os.getcwd(), todo="check the path"
        ) from error


def _check_file(text: str) -> Path:
    path = Path(text)
    if path.is_dir():
        scripts = ", ".join(sorted(p.name for p in path.glob("*.py"))[:5])
        raise source_error(
            f"{text} is a folder", todo=f"name a script in it: {scripts}" if scripts else "name a script"
        )
    if not path.exists():
        raise _missing_file_error(text, path)
    if not path.is_file():
        raise source_error(f"{text} is not a file", todo="give a .py file, `script.py:name`, or a model file")
    return path


def _missing_file_error(text: str, path: Path) -> SourceError:
    near = difflib.get_close_matches(path.name, [p.name for p in path.parent.glob(f"*{path.suffix or '.py'}")], n=1)
    hint = f"did you mean {path.parent / near[0]}?" if near else "check the path and the current folder"
    return source_error(f"there is no file {text}", where=os.getcwd(), todo=hint)


_INSTALLATION_PATHS = ("stdlib", "platstdlib", "purelib", "platlib")


def program_files(script: Path | None) -> tuple[str, ...]:
    """The absolute paths of the Python files of a program, the script first.

    Files of installed packages and of this package are left out.
    """
    library_prefixes = tuple(f"{folder}{os.sep}" for folder in _library_folders())
    paths = [str(script.resolve())] if script is not None else []
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if not isinstance(file, str) or not file.endswith(".py"):
            continue
        folder, name = os.path.split(file)
        if f"{_resolve_links(folder)}{os.sep}".startswith(library_prefixes):
            continue
        path = os.path.realpath(os.path.join(_resolve_links(folder), name))
        if os.path.isfile(path) and not f"{path}{os.sep}".startswith(library_prefixes):
            paths.append(path)
    return tuple(dict.fromkeys(paths))


# No script is this long; a larger file is not a script.
_MAX_FILE_BYTES = 8 << 20
# The size of all code of a program, in characters.
_MAX_CHARACTERS = 64 << 20


def python_texts(graphs: Sequence[GraphInfo], files: Sequence[str], started_at: float) -> tuple[PythonText, ...]:
    """The Python code that nodes of `graphs` come from, or the reason why it is unknown.

    Code of a file is shown only if the file is one of the program's `files` or of a loaded module: other code may have
    any name, also that of a file. `started_at` is when the program was started, in seconds since the epoch.
    """
    known_files = {*files, *filter(None, (getattr(module, "__file__", None) for module in list(sys.modules.values())))}
    texts: list[PythonText] = []
    room = _MAX_CHARACTERS
    for path in _paths_of(graphs):
        text = _file_text(path, started_at) if path in known_files else _text_without_file(path)
        if len(text.content) > room:
            text = PythonText(path, problem=f"{path} is not shown: the code of this program is too long")
        room -= len(text.content)
        texts.append(text)
    return tuple(texts)


def _paths_of(graphs: Sequence[GraphInfo]) -> list[str]:
    """The files of the nodes' locations, of the lines that call nodes, and of graph breaks, without repetition."""
    lines = (line for info in graphs for line in (*(row.location for row in info.rows), *info.places, info.broke_at))
    return list(dict.fromkeys(path for line in lines if (path := line.rpartition(":")[0])))


def _file_text(path: str, started_at: float) -> PythonText:
    """The code of a Python file, decoded as Python does, with `\\n` after each line."""
    try:
        with open(path, "rb") as file:
            data, modified_at = file.read(_MAX_FILE_BYTES + 1), os.fstat(file.fileno()).st_mtime
    except OSError as error:
        return PythonText(path, problem=f"{path} cannot be read: {error.strerror or error}")
    if len(data) > _MAX_FILE_BYTES:
        return PythonText(path, problem=f"{path} is larger than {_MAX_FILE_BYTES >> 20} MiB")
    return PythonText(path, decode_python(data), changed=modified_at > started_at)


def _text_without_file(path: str) -> PythonText:
    """Code that was registered under a name, as cells of a notebook are."""
    content = _registered_code(path)
    if content:
        return PythonText(path, content.replace("\r\n", "\n").replace("\r", "\n"), is_file=False)
    what = "is no file of the program" if os.path.isabs(path) else "has no file"
    return PythonText(path, problem=f"the code {path} {what}: it was made by exec, or in a notebook or another process")


def _registered_code(path: str) -> str:
    """The code that was registered in `linecache` under the name `path`, or "".

    Not `linecache.getlines`, which returns the text of any file that has this name in a folder of `sys.path`.
    """
    entry: Sequence[Any] = linecache.cache.get(path, ())
    try:
        if len(entry) == 1:
            return str(entry[0]() or "")
        # Entries of files have a modification time.
        return "".join(entry[2]) if len(entry) == 4 and entry[1] is None else ""
    except Exception:  # a loader of the user
        return ""


@lru_cache(maxsize=4096)
def _resolve_links(folder: str) -> str:
    """`folder` with links resolved.

    Cached, since thousands of modules share a few hundred folders and each link is a system call.
    """
    return os.path.realpath(folder)


def _library_folders() -> list[Path]:
    """The standard library, installed packages, and this package."""
    installed = {sysconfig.get_path(name) for name in _INSTALLATION_PATHS} | {str(Path(sys.executable).parent)}
    package_paths = {str(Path(__file__).resolve().parents[2])}
    for name in ("buddy.app", "buddy.themes", "buddy_tui", "mlir"):
        module = sys.modules.get(name)
        if (file := getattr(module, "__file__", None)) is not None:
            package_paths.add(str(Path(file).parent if name.startswith("buddy.") else file))
    return [Path(path).resolve() for path in (*installed, *package_paths) if path]
