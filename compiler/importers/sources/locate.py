"""Parses the spelling of a source: a script, a name in a script, or a name in an importable module."""

from __future__ import annotations

import difflib
import os
from dataclasses import dataclass
from pathlib import Path

from buddy.compiler.importers.sources.program import SourceError, source_error


@dataclass(frozen=True)
class Location:
    """Either `path` (a file) or `module` (importable) is set; `name` selects an object in it, "" all of it."""

    path: Path | None = None
    module: str = ""
    name: str = ""


def locate(source: str) -> Location:
    """Parses `script.py`, `script.py:name` or `package.module:name`, relative to the current folder.

    Other files may take the place of scripts. Raises `SourceError` for a missing file, or a folder.
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
        return _found(text)
    except (OSError, ValueError) as error:  # a folder without permission, an invalid name
        reason = getattr(error, "strerror", None) or error
        raise source_error(
            f"{text:.200} cannot be opened: {reason}", where=os.getcwd(), todo="check the path"
        ) from error


def _found(text: str) -> Path:
    path = Path(text)
    if path.is_dir():
        scripts = ", ".join(sorted(p.name for p in path.glob("*.py"))[:5])
        raise source_error(
            f"{text} is a folder", todo=f"name a script in it: {scripts}" if scripts else "name a script"
        )
    if not path.exists():
        raise _missing(text, path)
    if not path.is_file():
        raise source_error(f"{text} is not a file", todo="give a .py file, `script.py:name`, or a model file")
    return path


def _missing(text: str, path: Path) -> SourceError:
    near = difflib.get_close_matches(path.name, [p.name for p in path.parent.glob(f"*{path.suffix or '.py'}")], n=1)
    hint = f"did you mean {path.parent / near[0]}?" if near else "check the path and the current folder"
    return source_error(f"there is no file {text}", where=os.getcwd(), todo=hint)
