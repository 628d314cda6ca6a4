"""The location that a source names, the program that is captured from it or the error, and the program's files."""

from __future__ import annotations

import difflib
import os
import sys
import sysconfig
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from buddy.compiler.protocol import Diagnostic
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
