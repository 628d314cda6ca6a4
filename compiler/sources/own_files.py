"""Which files a program is made of: the script, and what it has imported that belongs to no installed package."""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path

_INSTALLED = ("stdlib", "platstdlib", "purelib", "platlib")


def own_files(script: Path | None) -> tuple[str, ...]:
    """Whole paths, the script first. What lies in a folder of installed packages or is our own is left out."""
    others = _folders_of_others()
    found = [script.resolve()] if script is not None else []
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if not isinstance(file, str) or not file.endswith(".py"):
            continue
        path = Path(file).resolve()
        if path.is_file() and not any(path.is_relative_to(folder) for folder in others):
            found.append(path)
    return tuple(dict.fromkeys(map(str, found)))


def _folders_of_others() -> list[Path]:
    """The standard library, installed packages, and this package wherever it lies."""
    places = {sysconfig.get_path(name) for name in _INSTALLED} | {str(Path(sys.executable).parent)}
    ours = {str(Path(__file__).resolve().parent.parent)}
    for name in ("buddy.app", "buddy.themes", "buddy_tui", "mlir"):
        module = sys.modules.get(name)
        if (file := getattr(module, "__file__", None)) is not None:
            ours.add(str(Path(file).parent if name.startswith("buddy.") else file))
    return [Path(place).resolve() for place in (*places, *ours) if place]
