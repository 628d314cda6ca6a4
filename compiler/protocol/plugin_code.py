"""Executes the code of plug-ins within a time limit, and describes its errors, for the engine and for the workbench."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from importlib import metadata, util
from pathlib import Path
from types import ModuleType

from buddy.compiler.protocol.errors import BuddyError, Diagnostic
from buddy.compiler.protocol.recipe import PluginFile, digest

# The folders of this project's own code.
_OWN_FOLDERS = tuple(str(Path(__file__).parents[2] / name) for name in ("api", "app", "compiler"))
# How long the import of a plug-in may take: one that imports other frameworks from a slow disk takes half a minute.
IMPORT_SECONDS = 60.0
# The environment variable that overrides `IMPORT_SECONDS`.
SECONDS_VARIABLE = "BUDDY_PLUGIN_SECONDS"
_ERROR_HINT = "correct the plug-in, or remove it; what it registered before the error stays registered"
PUBLIC_MODULE = "buddy.api"
_NEWER_HINT = "update buddy-tui, or use an older version of the plug-in"
_CHANGED_HINT = "open the program again"


def label_of(point: metadata.EntryPoint) -> str:
    """Returns the name and the version of the package that has an entry point."""
    return f"{point.dist.name} {point.dist.version}" if point.dist is not None else point.name


def location_of(module: str) -> str:
    """Returns the folder or file of a module's top-level package; "" if it cannot be found."""
    try:
        spec = util.find_spec(module.partition(".")[0])
    except (ImportError, ValueError):
        return ""
    if spec is None:
        return ""
    folders = list(spec.submodule_search_locations or [])
    return folders[0] if folders else spec.origin or ""


def execute_file(file: PluginFile) -> ModuleType:
    """Executes a file as a module with a unique name. Returns the module. The file may import files of its folder.

    Raises `PluginChangedError` if the file does not match its hash, and passes on what the file raises.
    """
    path = Path(file.path)
    source = path.read_bytes()
    if file.hash and digest(source) != file.hash:
        raise PluginChangedError(f"{path} has changed")
    name = f"buddy_plugin_{path.stem}_{digest(str(path))[:8]}"
    spec = util.spec_from_file_location(name, path)
    if spec is None:
        raise ImportError(f"{path} is not a Python file")
    module = util.module_from_spec(spec)
    sys.modules[name] = module
    sys.path.insert(0, str(path.parent))
    try:
        exec(compile(source, str(path), "exec"), module.__dict__)
    finally:
        sys.path.remove(str(path.parent))
    return module


class TimeIsUp(BaseException):
    """A plug-in has taken too long. It is not an `Exception`, so that plug-ins do not catch it by accident."""

    def __init__(self) -> None:
        super().__init__("it took too long")


def import_seconds() -> float:
    """Returns how long the import of a plug-in may take."""
    try:
        return max(0.1, float(os.environ.get(SECONDS_VARIABLE, "")))
    except ValueError:
        return IMPORT_SECONDS


@contextlib.contextmanager
def limited_time(seconds: float) -> Iterator[None]:
    """Raises `TimeIsUp` in this block after `seconds`, and again each second until the block ends.

    In the main thread, a signal also interrupts system calls that wait. In other threads, and if the program has a
    handler of that signal, only Python code is interrupted.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if is_main and signal.getsignal(signal.SIGALRM) is signal.SIG_DFL:
        signal.signal(signal.SIGALRM, _raise_time_is_up)
        signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
        return
    thread, done, lock = threading.get_ident(), threading.Event(), threading.Lock()

    def interrupt() -> None:
        wait = seconds
        while not done.wait(wait):
            with lock:
                if not done.is_set():
                    raise_in_thread(thread, TimeIsUp)
            wait = 1.0

    threading.Thread(target=interrupt, name="plug-in time limit", daemon=True).start()
    try:
        yield
    finally:
        with lock:
            done.set()
        raise_in_thread(thread, None)  # cancels an exception that has not been raised yet


def _raise_time_is_up(*_: object) -> None:
    raise TimeIsUp


def raise_in_thread(thread: int, error: type[BaseException] | None) -> None:
    """Raises `error` in a thread before its next Python instruction; `None` cancels an error not raised yet."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(error) if error else None)


class PluginChangedError(BuddyError):
    """The file of a plug-in does not match the hash in the recipe."""


def plugin_problem(subject: str, error: BaseException, home: str, todo: str = _ERROR_HINT) -> Diagnostic:
    """Returns the diagnostic of an error that `subject`, such as "plug-in demo 1.0", has raised.

    `home` is the plug-in's file or folder, and `todo` is what to do about errors that do not say it themselves.
    """
    if isinstance(error, PluginChangedError):
        return Diagnostic(f"plug-in {error}", home, _CHANGED_HINT)
    position = _error_position(error, home)
    if isinstance(error, BuddyError) and error.todo:
        problem, todo = f"was rejected: {error.diagnostic.what}", error.todo
    elif isinstance(error, TimeIsUp):
        problem = "took too long, and was stopped"
    elif isinstance(error, ImportError) and error.name == PUBLIC_MODULE and sys.modules.get(PUBLIC_MODULE) is not None:
        problem, todo = f"needs a name that this {PUBLIC_MODULE} does not have: {error.msg}", _NEWER_HINT
    elif isinstance(error, SyntaxError):
        problem = f"is not valid Python: {error.msg}"
        position = f"{error.filename}:{error.lineno}" if error.lineno else position  # none for null bytes
    else:
        text = next(iter(str(error).strip().splitlines()), "")
        problem = f"raised {type(error).__name__}: {text}".rstrip(": ")
    detail = "".join(traceback.format_exception(error))
    return Diagnostic(f"{subject} {problem}", position, todo, detail=detail)


def _error_position(error: BaseException, home: str) -> str:
    """Returns `file:line` of the innermost frame in the plug-in.

    If no frame is in the plug-in, uses the innermost frame outside of this package and the import system. If all frames
    are inside of these two, returns `home`.
    """
    external = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith((*_OWN_FOLDERS, "<frozen")) and "importlib" not in frame.filename
    ]
    candidates = [frame for frame in external if home and frame.filename.startswith(home)] or external
    return f"{candidates[-1].filename}:{candidates[-1].lineno}" if candidates else home
