"""Files of the workbench: atomic writes, locks between workbenches, and drafts of unsaved input.

Each open editor has its own file, and a lock file while it is open. So a workbench never overwrites or takes the draft
of another one, and the next workbench takes over the draft of one that has exited.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from buddy.compiler.protocol.recipe import digest

Stamp = tuple[int, int, int] | None


def write_whole(path: Path, text: str) -> None:
    """Write `text` to `path` atomically."""
    write_whole_bytes(path, text.encode("utf-8"))


def write_whole_bytes(path: Path, data: bytes, lasting: bool = False) -> None:
    """Write bytes to `path` atomically; `lasting` also syncs to disk, so the file survives a power loss."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            if lasting:
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def stamp_of(path: Path) -> Stamp:
    """A stamp that changes if a file is replaced; `None` if it does not exist."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


# Seconds to wait for a lock. A write holds it for milliseconds; a suspended process is not waited for.
_PATIENCE = 0.1
_LOOK = 0.005


class FileLock:
    """A lock file, between processes and within one. On a file system without locks, every process gets the lock."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = -1

    def take(self) -> bool:
        """Take the exclusive lock. Returns whether it succeeded. Raises `OSError` if the file cannot be created."""
        return self._try_lock(fcntl.LOCK_EX)

    def share(self) -> bool:
        """Take a shared lock. Returns whether another process has it, too. Raises `OSError` like `take`."""
        others = not self.take()
        self._try_lock(fcntl.LOCK_SH)
        return others

    def _try_lock(self, how: int) -> bool:
        while True:
            fd = self._fd if self._fd >= 0 else self._open_file()
            if not _lock(fd, how):
                if fd != self._fd:
                    os.close(fd)
                return False
            if fd == self._fd or _still_exists(fd, self._path):
                self._fd = fd
                return True
            # The last holder deleted the file in between: another process may hold a new file with that name.
            os.close(fd)

    def _open_file(self) -> int:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)

    def release(self) -> None:
        """Release the lock. The last holder deletes the file."""
        if self._fd >= 0:
            if _lock(self._fd, fcntl.LOCK_EX):
                with contextlib.suppress(OSError):
                    self._path.unlink()
            os.close(self._fd)
            self._fd = -1


def is_held(path: Path) -> bool:
    """Whether any process holds the lock `path`."""
    if not path.exists():
        return False
    lock = FileLock(path)
    try:
        return not lock.take()
    except OSError:
        return False
    finally:
        lock.release()


@contextlib.contextmanager
def exclusive_lock(path: Path) -> Iterator[None]:
    """Hold the exclusive lock for one write. Raises `OSError` if the lock file cannot be created."""
    lock, end = FileLock(path), time.monotonic() + _PATIENCE
    while not lock.take() and time.monotonic() < end:
        time.sleep(_LOOK)
    try:
        yield
    finally:
        lock.release()


def _lock(fd: int, how: int) -> bool:
    """Try to lock without waiting. A file system without locks counts as locked."""
    try:
        fcntl.flock(fd, how | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in (errno.EAGAIN, errno.EACCES)
    return True


def _still_exists(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), path.stat())
    except FileNotFoundError:
        return False


_ENDING = ".unsaved"


class SavedDraft(NamedTuple):
    """The draft of a workbench that has exited; `older` if the editor's initial text was different then."""

    text: str
    older: bool


class Drafts(NamedTuple):
    """The editors of a program that have a draft (`left`), and those that are `open` in a workbench now."""

    left: list[str]
    open: list[str]


class EditorDraft:
    """The draft of one editor, in a file next to the saved `recipe`; `what` identifies the editor.

    The first line of the file is the hash of the editor's initial text. `open_elsewhere` is true if another
    workbench has the same editor open.
    """

    def __init__(self, recipe: Path, what: str) -> None:
        self.what = what
        self.open_elsewhere = False
        self._path, self._lock = self._own(f"{recipe.stem}.{re.sub(r'[^0-9A-Za-z-]+', '_', what)}", recipe.parent)

    def _own(self, stem: str, folder: Path) -> tuple[Path, FileLock | None]:
        """A file that no other workbench uses, preferably one with a draft."""
        numbered = (folder / f"{stem}{f'~{number}' * (number > 1)}{_ENDING}" for number in itertools.count(1))
        there = [path for path in sorted(folder.glob(f"{stem}*{_ENDING}")) if _name(path).partition("~")[0] == stem]
        for path in itertools.chain(there, numbered):
            lock = FileLock(_lock_of(path))
            try:
                if lock.take():
                    return path, lock
            except OSError:
                return path, None
            self.open_elsewhere = True
        raise AssertionError("unreachable: the numbers are unlimited")

    def read_saved(self, start: str) -> SavedDraft | None:
        """The saved draft for an editor with the initial text `start`, or `None`."""
        try:
            began, _, text = self._path.read_bytes().decode("utf-8").partition("\n")
        except (OSError, UnicodeDecodeError):
            return None
        return SavedDraft(text, began != digest(start))

    def keep(self, text: str, start: str) -> str:
        """Save the draft `text` of an editor with the initial text `start`. Returns the error message, if any."""
        try:
            write_whole(self._path, f"{digest(start)}\n{text}")
        except OSError as error:
            return f"the draft could not be saved: {error.strerror or error}"
        return ""

    def drop(self) -> None:
        """Delete the draft after its text was accepted or discarded."""
        with contextlib.suppress(OSError):
            self._path.unlink()

    def close(self) -> None:
        """Release the draft of a closed editor, so that the next one can take it."""
        if self._lock is not None:
            self._lock.release()


def saved_drafts(recipe: Path) -> Drafts:
    """The drafts of the program whose first graph has its recipe in the file `recipe`."""
    name = re.compile(rf"{re.escape(recipe.stem)}(?:-(\d+))?\.([^~]*)(?:~\d+)?")
    found = Drafts([], [])
    for path in sorted(recipe.parent.glob(f"{recipe.stem}*{_ENDING}")) if recipe.parent.is_dir() else []:
        if match := name.fullmatch(_name(path)):
            graph = f" of graph {match[1]}" * bool(match[1])
            (found.open if is_held(_lock_of(path)) else found.left).append(match[2].replace("_", " ") + graph)
    return found


def _name(path: Path) -> str:
    return path.name.removesuffix(_ENDING)


def _lock_of(path: Path) -> Path:
    return path.with_name(f".{path.name}.lock")
