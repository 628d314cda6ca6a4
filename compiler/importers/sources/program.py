"""The result of capturing a source: its graphs, the Python files of the program, and their code."""

from __future__ import annotations

import linecache
import os
import sys
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from buddy.compiler.protocol import GraphInfo
from buddy.compiler.protocol.text.structure import decode_python
from buddy.compiler.protocol.worker_messages import PythonText
from buddy.compiler.runtime.captured import CapturedGraph


@dataclass
class CapturedProgram:
    """The graphs of a program in the order in which they ran, notes for the user, and the program's files.

    `known_graph` describes the only graph, so that a later load need not capture it (`reuse.py`); b"" if that is
    impossible. `is_reused` says whether the graph was made from such a description.
    """

    graphs: list[CapturedGraph] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    files: tuple[str, ...] = ()
    known_graph: bytes = b""
    is_reused: bool = False


# ---- files -----------------------------------------------------------------------------------------------------------

# The names of the folders of installed packages, for `sysconfig`.
_INSTALLATION_PATHS = ("stdlib", "platstdlib", "purelib", "platlib")


def program_files(script: Path | None) -> tuple[str, ...]:
    """Returns the absolute paths of the Python files of a program, the script first.

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


# ---- code ------------------------------------------------------------------------------------------------------------

# The code of a larger file is not shown; no script is this long.
_MAX_FILE_BYTES = 8 << 20
# The maximum size of all code of a program, in characters.
_MAX_CHARACTERS = 64 << 20


def python_texts(graphs: Sequence[GraphInfo], files: Sequence[str], started_at: float) -> tuple[PythonText, ...]:
    """Returns the Python code that nodes of `graphs` come from, or the reason why it is unknown.

    A file is read only if it is one of the program's `files` or of a loaded module: code from `exec` can have any file
    name, even that of an unrelated file. `started_at` is the time at which the program was started, in seconds since
    the epoch.
    """
    known_files = {*files, *filter(None, (getattr(module, "__file__", None) for module in list(sys.modules.values())))}
    texts: list[PythonText] = []
    remaining = _MAX_CHARACTERS
    for path in _paths_of(graphs):
        text = _file_text(path, started_at) if path in known_files else _text_without_file(path)
        if len(text.content) > remaining:
            text = PythonText(path, problem=f"{path} is not shown: the code of this program is too long")
        remaining -= len(text.content)
        texts.append(text)
    return tuple(texts)


def _paths_of(graphs: Sequence[GraphInfo]) -> list[str]:
    """Returns the files of nodes' locations, of lines that call nodes, and of graph breaks, without repetition."""
    lines = (
        line
        for info in graphs
        for line in (*(row.location for row in info.rows), *info.caller_locations, info.break_line)
    )
    return list(dict.fromkeys(path for line in lines if (path := line.rpartition(":")[0])))


def _file_text(path: str, started_at: float) -> PythonText:
    """Returns the code of a Python file, decoded as Python does, with `\\n` after each line."""
    try:
        with open(path, "rb") as file:
            data, modified_at = file.read(_MAX_FILE_BYTES + 1), os.fstat(file.fileno()).st_mtime
    except OSError as error:
        return PythonText(path, problem=f"{path} cannot be read: {error.strerror or error}")
    if len(data) > _MAX_FILE_BYTES:
        return PythonText(path, problem=f"{path} is larger than {_MAX_FILE_BYTES >> 20} MiB")
    return PythonText(path, decode_python(data), changed=modified_at > started_at)


def _text_without_file(path: str) -> PythonText:
    """Returns code that was registered under a name, as cells of a notebook are."""
    content = _registered_code(path)
    if content:
        return PythonText(path, content.replace("\r\n", "\n").replace("\r", "\n"), is_file=False)
    what = "is not a file of the program" if os.path.isabs(path) else "has no file"
    return PythonText(path, problem=f"the code {path} {what}: it comes from exec, a notebook or another process")


def _registered_code(path: str) -> str:
    """Returns the code that was registered in `linecache` under the name `path`, or "".

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
    """Returns `folder` with links resolved.

    Results are cached: thousands of modules share a few hundred folders, and resolving takes several system calls.
    """
    return os.path.realpath(folder)


def _library_folders() -> list[Path]:
    """Returns the folders of the standard library, of installed packages, and of this package."""
    installed = {sysconfig.get_path(name) for name in _INSTALLATION_PATHS} | {str(Path(sys.executable).parent)}
    package_paths = {str(Path(__file__).resolve().parents[2])}
    for name in ("buddy.app", "buddy.themes", "buddy_tui", "mlir"):
        module = sys.modules.get(name)
        if (file := getattr(module, "__file__", None)) is not None:
            package_paths.add(str(Path(file).parent if name.startswith("buddy.") else file))
    return [Path(path).resolve() for path in (*installed, *package_paths) if path]
