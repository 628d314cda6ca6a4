"""The program that is captured from a source, and the program's files."""

from __future__ import annotations

import os
import sys
import sysconfig
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from buddy.compiler.runtime.captured import CapturedGraph


@dataclass
class CapturedProgram:
    """The graphs of a program in the order in which they ran, notes for the user, and the program's files."""

    graphs: list[CapturedGraph] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    files: tuple[str, ...] = ()


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
