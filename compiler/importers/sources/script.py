"""Runs a script as `python script.py` does, and converts its exceptions to errors that name the script's line."""

from __future__ import annotations

import importlib
import io
import os
import sys
import traceback
import types
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from buddy.compiler.frontend.names import is_library
from buddy.compiler.protocol.errors import BuddyError
from buddy.compiler.protocol.source_locations import SourceError, source_error, syntax_error


class ScriptInputError(BuddyError):
    """The script read from standard input, which is not available."""


class _NoInput(io.TextIOBase):
    """A standard input that raises when it is read."""

    def readable(self) -> bool:
        return True

    def readline(self, size: int | None = -1, /) -> NoReturn:
        raise ScriptInputError

    def read(self, *_: object) -> str:
        raise ScriptInputError


@contextmanager
def script_environment(path: Path | None, arguments: Sequence[str]) -> Iterator[None]:
    """While active, `sys.argv` and `sys.path[0]` are those of a script at `path`, or of a module in the current folder.

    Reading standard input raises `ScriptInputError`.
    """
    folder = str(path.resolve().parent) if path else os.getcwd()
    argv, search_path, stdin, main = sys.argv, list(sys.path), sys.stdin, sys.modules.get("__main__")
    sys.argv, sys.stdin = [str(path) if path else "", *arguments], _NoInput()
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.argv, sys.path[:], sys.stdin = argv, search_path, stdin
        if main is not None:
            sys.modules["__main__"] = main


def register_script(path: Path, name: str) -> types.ModuleType:
    """Returns an empty module for the script at `path`, registered as `name` (`__main__` to run it as a program)."""
    module = types.ModuleType(name)
    module.__file__ = str(path.resolve())
    module.__dict__["__builtins__"] = __builtins__
    sys.modules[name] = module
    return module


def run_script(path: Path, module: types.ModuleType) -> None:
    """Runs the script in `module`.

    Raises `SourceError` if it does not parse, raises, reads input, or exits with a status other than 0.
    """
    script = str(path.resolve())  # the script may change the current folder, or delete it
    with reporting_user_errors(path):
        try:
            # `dont_inherit`: the `__future__` imports of this module must not apply to the script.
            code = compile(path.read_bytes(), module.__file__ or str(path), "exec", dont_inherit=True)
            exec(code, module.__dict__)
        except SystemExit as stop:
            if stop.code not in (None, 0):
                raise _exit_error(path, script, stop) from stop


def _exit_error(path: Path, script: str, stop: SystemExit) -> SourceError:
    """Returns the error for a script that exited with a status other than 0, or a message."""
    reason = f"status {stop.code}" if isinstance(stop.code, int) else f"the message: {stop.code}"
    return source_error(
        f"{path} exited with {reason}",
        _line_of(stop, path, script),
        "see what it printed, and pass the arguments it needs",
    )


def import_module(name: str) -> types.ModuleType:
    """Returns the module `name`. Raises `SourceError` if it cannot be imported."""
    with reporting_user_errors(None, name):
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name and (name == error.name or name.startswith(f"{error.name}.")):
                raise source_error(
                    f"there is no module {name}",
                    where=os.getcwd(),
                    todo="run in the folder that contains it, or install it",
                ) from error
            raise


@contextmanager
def reporting_user_errors(path: Path | None, module: str = "", todo: str = "") -> Iterator[None]:
    """While active, converts exceptions of the user's code to a `SourceError` with the user's line.

    `todo` is the hint of the error, by default to run the script or the module. A `SourceError` is not changed.
    """
    subject = str(path) if path else module
    script = str(path.resolve()) if path else ""
    todo = todo or (f"run `python {subject}` to see the error" if path else f"run `python -m {module}` to see it fail")
    try:
        yield
    except (SourceError, KeyboardInterrupt, SystemExit):
        raise
    except SyntaxError as error:
        raise syntax_error(subject, error) from error
    except ScriptInputError as error:
        raise source_error(
            f"{subject} reads from standard input, which is not available",
            _line_of(error, path, script),
            "pass its input as arguments, or define `model` and `example_inputs`",
        ) from error
    except BaseException as error:
        raise source_error(
            f"{subject} raised {type(error).__name__}: {_first_lines(error)}",
            _line_of(error, path, script),
            todo,
            _user_traceback(error),
        ) from error


def _first_lines(error: BaseException) -> str:
    try:
        text = str(error).strip()
    except Exception as failure:  # the exception's class is the user's code, too
        text = f"its text raised {type(failure).__name__}"
    return text if len(text) < 400 else text[:400] + "…"


def _user_frames(error: BaseException) -> list[traceback.FrameSummary]:
    """Returns the frames of the user's code, without those of this package, of torch and of the import system."""
    frames = traceback.extract_tb(error.__traceback__)
    return [f for f in frames if not is_library(f.filename) and "importlib" not in f.filename]


def _line_of(error: BaseException, path: Path | None, script: str) -> str:
    """Returns the innermost line of the traceback in the script, else in other code of the user.

    `script` is the absolute path of the script at `path`, or "" without one.
    """
    frames = _user_frames(error)
    candidates = [f for f in frames if f.filename == script] or frames
    if not candidates:
        return str(path or "")
    where = f"{path if candidates[-1].filename == script else candidates[-1].filename}:{candidates[-1].lineno}"
    return where if candidates[-1].name == "<module>" else f"{where} in {candidates[-1].name}"


def _user_traceback(error: BaseException) -> str:
    return "".join(traceback.format_list(_user_frames(error))).rstrip()
