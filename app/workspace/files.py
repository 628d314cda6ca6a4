"""Files of the workbench: atomic writes, locks between workbenches, and drafts of unsaved input.

Each open editor has a draft file of its own, and a lock file while it is open. So a workbench never overwrites the
draft of another running workbench, and the next workbench can restore the draft of one that has exited.
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

# The inode, modification time in nanoseconds and size of a file; `None` if it does not exist.
Stamp = tuple[int, int, int] | None


def write_whole(path: Path, text: str) -> None:
    """Write `text` to `path` atomically."""
    write_whole_bytes(path, text.encode("utf-8"))


def write_whole_bytes(path: Path, data: bytes, sync: bool = False) -> None:
    """Write bytes to `path` atomically; with `sync`, also to disk, so that the file survives a power loss."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            if sync:
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def stamp_of(path: Path) -> Stamp:
    """A stamp that changes if a file is replaced; `None` if it does not exist."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


# A write holds its lock for milliseconds. A process that holds it longer is suspended: the write goes on without it.
_MAX_WAIT_SECONDS = 0.1
_RETRY_SECONDS = 0.005


class FileLock:
    """A lock file that excludes other processes and other `FileLock`s of this process.

    On a file system without locks, every process gets the lock.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = -1

    def take(self) -> bool:
        """Take the exclusive lock. Returns whether it succeeded. Raises `OSError` if the file cannot be created."""
        return self._try_lock(fcntl.LOCK_EX)

    def share(self) -> bool:
        """Take a shared lock. Returns whether another holder has it too. Raises `OSError` like `take`."""
        is_shared = not self.take()
        self._try_lock(fcntl.LOCK_SH)
        return is_shared

    def _try_lock(self, operation: int) -> bool:
        """Try `operation` of `flock`. Returns whether it succeeded."""
        while True:
            fd = self._fd if self._fd >= 0 else self._open_file()
            if not _lock(fd, operation):
                if fd != self._fd:
                    os.close(fd)
                return False
            if fd == self._fd or _is_file_at(fd, self._path):
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
    """Hold the exclusive lock for one write; after `_MAX_WAIT_SECONDS` without it, continue nevertheless.

    Raises `OSError` if the lock file cannot be created.
    """
    lock, deadline = FileLock(path), time.monotonic() + _MAX_WAIT_SECONDS
    while not lock.take() and time.monotonic() < deadline:
        time.sleep(_RETRY_SECONDS)
    try:
        yield
    finally:
        lock.release()


def _lock(fd: int, operation: int) -> bool:
    """Try to lock without waiting. Returns whether it succeeded; true on a file system without locks."""
    try:
        fcntl.flock(fd, operation | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in (errno.EAGAIN, errno.EACCES)
    return True


def _is_file_at(fd: int, path: Path) -> bool:
    """Whether `path` is still the open file `fd`, and not deleted or replaced."""
    try:
        return os.path.samestat(os.fstat(fd), path.stat())
    except FileNotFoundError:
        return False


_DRAFT_SUFFIX = ".unsaved"


class SavedDraft(NamedTuple):
    """The draft of a workbench that has exited. It is outdated if the editor's initial text was different then."""

    text: str
    is_outdated: bool


class Drafts(NamedTuple):
    """The editors of a program with drafts: those of exited workbenches, and those that a workbench has open."""

    unsaved: list[str]
    open: list[str]


class EditorDraft:
    """The draft of one editor, in a file next to the saved recipe `recipe`; `title` identifies the editor.

    The first line of the file is the hash of the editor's initial text. `open_elsewhere` is true if another
    workbench has the same editor open.
    """

    def __init__(self, recipe: Path, title: str) -> None:
        self.title = title
        self.open_elsewhere = False
        self._path, self._lock = self._lock_file(
            f"{recipe.stem}.{re.sub(r'[^0-9A-Za-z-]+', '_', title)}", recipe.parent
        )

    def _lock_file(self, stem: str, folder: Path) -> tuple[Path, FileLock | None]:
        """Lock a draft file that no other workbench uses, preferably an existing one. Returns its path and the lock.

        The lock is `None` if the lock file cannot be created.
        """
        numbered = (folder / f"{stem}{f'~{number}' * (number > 1)}{_DRAFT_SUFFIX}" for number in itertools.count(1))
        drafts = sorted(folder.glob(f"{stem}*{_DRAFT_SUFFIX}"))
        existing = [path for path in drafts if _name(path).partition("~")[0] == stem]
        for path in itertools.chain(existing, numbered):
            lock = FileLock(_lock_of(path))
            try:
                if lock.take():
                    return path, lock
            except OSError:
                return path, None
            self.open_elsewhere = True
        raise AssertionError("unreachable: the numbers are unlimited")

    def read_saved(self, initial_text: str) -> SavedDraft | None:
        """The saved draft for an editor with this initial text, or `None`."""
        try:
            initial_hash, _, text = self._path.read_bytes().decode("utf-8").partition("\n")
        except (OSError, UnicodeDecodeError):
            return None
        return SavedDraft(text, initial_hash != digest(initial_text))

    def save(self, text: str, initial_text: str) -> str:
        """Save the draft `text` of an editor with this initial text. Returns an error message, empty if it is saved."""
        try:
            write_whole(self._path, f"{digest(initial_text)}\n{text}")
        except OSError as error:
            return f"the draft could not be saved: {error.strerror or error}"
        return ""

    def delete(self) -> None:
        """Delete the draft after its text was accepted or discarded."""
        with contextlib.suppress(OSError):
            self._path.unlink()

    def close(self) -> None:
        """Release the lock after the editor was closed, so that another editor can restore the draft."""
        if self._lock is not None:
            self._lock.release()


def saved_drafts(recipe: Path) -> Drafts:
    """The drafts of the program whose first graph has its recipe in the file `recipe`."""
    name_pattern = re.compile(rf"{re.escape(recipe.stem)}(?:-(?P<graph>\d+))?\.(?P<title>[^~]*)(?:~\d+)?")
    drafts = Drafts([], [])
    for path in sorted(recipe.parent.glob(f"{recipe.stem}*{_DRAFT_SUFFIX}")) if recipe.parent.is_dir() else []:
        match = name_pattern.fullmatch(_name(path))
        if match is None:
            continue
        title = match["title"].replace("_", " ") + (f" of graph {match['graph']}" if match["graph"] else "")
        (drafts.open if is_held(_lock_of(path)) else drafts.unsaved).append(title)
    return drafts


def _name(path: Path) -> str:
    return path.name.removesuffix(_DRAFT_SUFFIX)


def _lock_of(path: Path) -> Path:
    return path.with_name(f".{path.name}.lock")
