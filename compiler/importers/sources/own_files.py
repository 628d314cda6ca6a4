"""Lists the files of a program: the script, and its imports outside installed packages."""

from __future__ import annotations

import os
import sys
import sysconfig
from functools import lru_cache
from pathlib import Path

_INSTALLED = ("stdlib", "platstdlib", "purelib", "platlib")


def own_files(script: Path | None) -> tuple[str, ...]:
    """Absolute paths, the script first. Files of installed packages and of this package are left out."""
    others = tuple(f"{folder}{os.sep}" for folder in _folders_of_others())
    found = [str(script.resolve())] if script is not None else []
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if not isinstance(file, str) or not file.endswith(".py"):
            continue
        folder, name = os.path.split(file)
        if f"{_resolved(folder)}{os.sep}".startswith(others):
            continue
        path = os.path.realpath(os.path.join(_resolved(folder), name))
        if os.path.isfile(path) and not f"{path}{os.sep}".startswith(others):
            found.append(path)
    return tuple(dict.fromkeys(found))


@lru_cache(maxsize=4096)
def _resolved(folder: str) -> str:
    """`folder` with links resolved.

    Cached, since thousands of modules share a few hundred folders and each link is a system call.
    """
    return os.path.realpath(folder)


def _folders_of_others() -> list[Path]:
    """The standard library, installed packages, and this package."""
    places = {sysconfig.get_path(name) for name in _INSTALLED} | {str(Path(sys.executable).parent)}
    ours = {str(Path(__file__).resolve().parents[2])}
    for name in ("buddy.app", "buddy.themes", "buddy_tui", "mlir"):
        module = sys.modules.get(name)
        if (file := getattr(module, "__file__", None)) is not None:
            ours.add(str(Path(file).parent if name.startswith("buddy.") else file))
    return [Path(place).resolve() for place in (*places, *ours) if place]
