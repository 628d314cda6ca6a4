"""Finds the path or module that a source names, and the object in it. Reads no file.

Every start of the workbench imports this module; it imports neither torch nor MLIR.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from buddy.compiler.protocol import Diagnostic
from buddy.compiler.protocol.errors import BuddyError

# Suffixes of model files, none of which contains Python code. `kind_of` checks whether the content matches.
MODEL_SUFFIXES = (".mlir", ".mlirbc", ".pt2", ".pt", ".pth", ".onnx")


class SourceError(BuddyError):
    """No program could be loaded; `diagnostic` says what happened, where, and what to do."""


def source_error(what: str, where: str = "", todo: str = "", detail: str = "") -> SourceError:
    """Makes a `SourceError` from the parts of a diagnostic."""
    return SourceError(Diagnostic(what, where, todo, detail=detail))


def syntax_error(subject: str, error: SyntaxError) -> SourceError:
    """Makes the error for `subject`, such as a script's path, that Python cannot compile."""
    return source_error(
        f"{subject} is not valid Python: {error.msg}",
        f"{error.filename or subject}:{error.lineno}" if error.lineno else error.filename or subject,
        "correct the line and open the script again",
        (error.text or "").rstrip(),
    )


@dataclass(frozen=True)
class SourceLocation:
    """Either `path` (a file, or the folder of a dump) or `module` (importable) is set.

    `name` selects an object in the file or module; "" selects all of it.
    """

    path: Path | None = None
    module: str = ""
    name: str = ""


class SourceParts(NamedTuple):
    """A source without its object: the path or the dotted module `target`, and the name of the object, "" for all."""

    target: str
    name: str
    is_module: bool

    @property
    def stem(self) -> str:
        """The name of the file without its suffix, for files made from the source; "program" if it is empty."""
        return Path(self.target).stem or "program"

    @property
    def runs_python(self) -> bool:
        """Whether opening the source may execute Python code: it is a module, or not a model file by its suffix."""
        return self.is_module or Path(self.target).suffix not in MODEL_SUFFIXES

    def with_target(self, target: str) -> str:
        """Returns the source that selects the same object of `target`."""
        return f"{target}:{self.name}" if self.name else target


def split_source(source: str) -> SourceParts:
    """Splits a source at its last colon, if a name follows the colon. The file may be missing.

    A colon may belong to the path, as in `a:b/model.py`, or the whole of `source` may be the name of an existing file.
    """
    head, separator, name = source.rpartition(":")
    if not separator or not _is_name(name) or os.path.exists(source):
        return SourceParts(source, "", False)
    return SourceParts(head, name, not _looks_like_path(head))


def locate_source(source: str) -> SourceLocation:
    """Parses `script.py`, `script.py:name` or `package.module:name`, relative to the current folder.

    A file of another kind, or the folder of a dump, may take the place of the script. Raises `SourceError` for a
    missing file, or a folder that is not a dump.
    """
    parts = split_source(source)
    if parts.is_module:
        return SourceLocation(module=parts.target, name=parts.name)
    return SourceLocation(path=_existing_path(parts.target), name=parts.name)


def _is_name(text: str) -> bool:
    """Returns whether a text is a Python name, or the name of an MLIR function, which may contain dots."""
    return all(part.isidentifier() for part in text.split("."))


def _looks_like_path(text: str) -> bool:
    """Returns whether the part of a source before its colon is a path, rather than the name of a module."""
    return text.endswith((".py", *MODEL_SUFFIXES)) or os.sep in text or os.path.exists(text)


def _existing_path(text: str) -> Path:
    """Returns the path of a file, or of the folder of a dump. Raises `SourceError` if it cannot be opened."""
    try:
        return _check_path(text)
    except (OSError, ValueError) as error:  # a folder without permission, an invalid name
        reason = getattr(error, "strerror", None) or error
        raise source_error(
            f"{text:.200} cannot be opened: {reason}", where=os.getcwd(), todo="check the path"
        ) from error


def _check_path(text: str) -> Path:
    """Like `_existing_path`; also raises the `OSError` of a path that cannot be examined."""
    if not text:  # `Path("")` is the current folder
        raise source_error("the path of the program is empty", todo="give a script, a model file or a dump")
    path = Path(text)
    if path.is_dir():
        # Imported on demand, because most sources are files.
        from buddy.compiler.protocol.dump_files import dump_format

        if dump_format(path) is not None:
            return path
        scripts = ", ".join(sorted(p.name for p in path.glob("*.py"))[:5])
        raise source_error(
            f"{text} is a folder that contains no dump of a known format",
            todo=f"name a script in it: {scripts}" if scripts else "name a script, a model file or a dump",
        )
    if path.is_symlink() and not path.exists():
        raise source_error(
            f"{text} is a link to a file that does not exist", where=str(path.readlink()), todo="correct the link"
        )
    if not path.exists():
        raise _missing_file_error(text, path)
    if not path.is_file():
        raise source_error(f"{text} is not a file", todo="give a .py file, `script.py:name`, or a model file")
    return path


def _missing_file_error(text: str, path: Path) -> SourceError:
    """Returns the error for a missing file, with the file that the user probably means."""
    near = similar_file(path)
    hint = f"did you mean {near}?" if near else "check the path and the current folder"
    return source_error(f"there is no file {text}", where=os.getcwd(), todo=hint)


def similar_file(path: Path) -> str:
    """Returns the path of the file that the user probably means instead of `path`, "" without one.

    It has a similar name and the same suffix, and is in the same folder.
    """
    import difflib  # only for error messages

    try:
        names = [other.name for other in path.parent.glob(f"*{path.suffix or '.py'}")]
    except (OSError, ValueError):  # a folder without permission, an invalid name
        return ""
    near = difflib.get_close_matches(path.name, names, n=1)
    return str(path.parent / near[0]) if near else ""
