"""Waits for files of a program to change, by polling."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from buddy.compiler.protocol.connection import FilesChanged, WatchFiles
from buddy.compiler.support.processes.jobs import Job

if TYPE_CHECKING:
    from buddy.compiler.protocol.connection import Frame


_POLL_SECONDS = 0.25
# How much of a file is read at a time for its hash.
_HASHED_BYTES = 4 << 20
# Editors delete or truncate a file before they write it; a missing file counts as deleted after this many seconds.
_DELETED_SECONDS = 2.0

# Modification and status-change times, length and inode of a file; `None` if it does not exist.
FileStatus = tuple[int, int, int, int] | None
# Stands for the status of a file whose previous content is no longer available; no file has this status.
_UNKNOWN_STATUS = (-1, -1, -1, -1)


class _FileState(NamedTuple):
    """The status of a file, and the hash of its content, "" if it cannot be read."""

    status: FileStatus
    content_hash: str


class WatchHandler:
    """Answers a `WatchFiles` when a file has changed and its content is stable.

    The client knows the files of a program only when the program has been loaded. Seconds may pass from loading it to
    the `WatchFiles` that names its files, and a file may be saved in between. Each content is therefore compared with
    the content from before the program was last opened.
    """

    def __init__(self, send: Callable[[Frame], None]) -> None:
        self._send = send
        # The time when the program was last opened, or a change was last reported; earlier changes do not count.
        self._opened_at: int | None = None
        # The content hash of each file at the last comparison.
        self._content_hashes: dict[Path, str] = {}

    def record_opening(self) -> None:
        """Records the time at which the program is opened: a change after it may not be in the loaded program."""
        self._opened_at = time.time_ns()

    async def watch(self, frame: WatchFiles, job: Job) -> None:
        """Waits until a file has other content than before the program was opened; sends all such files."""
        files = [Path(frame.directory, file) for file in frame.files]
        before = self._states_before_opening(files, await asyncio.to_thread(_read_states, files))
        last_statuses, stable_since = [state.status for state in before], time.monotonic()
        while True:
            await asyncio.sleep(_POLL_SECONDS)
            statuses = await asyncio.to_thread(_file_statuses, files)
            if statuses != last_statuses:
                last_statuses, stable_since = statuses, time.monotonic()
                continue
            if statuses == [state.status for state in before]:
                continue
            if None in statuses and time.monotonic() - stable_since < _DELETED_SECONDS:
                continue
            read_at = time.time_ns()
            after = await asyncio.to_thread(_read_states, files)
            if [state.status for state in after] != statuses:
                # The file is still being written, or was removed briefly.
                continue
            self._content_hashes.update((path, state.content_hash) for path, state in zip(files, after, strict=True))
            files_and_states = zip(frame.files, before, after, strict=True)
            differing = [(name, new) for name, old, new in files_and_states if old.content_hash != new.content_hash]
            if differing:
                self._opened_at = read_at
                changed = tuple(name for name, new in differing if new.status)
                deleted = tuple(name for name, new in differing if not new.status)
                self._send(FilesChanged(job.request, changed, deleted))
                return
            before = after  # only the times have changed, such as by `touch`

    def _states_before_opening(self, files: Sequence[Path], current: Sequence[_FileState]) -> list[_FileState]:
        """Returns the states of `files` before the program was opened; `current` are their states now.

        A file that has changed since then has the unknown status. Its content is the one compared last: a program that
        writes the file whenever it is opened thus causes no change to be reported.
        """
        before = []
        for path, state in zip(files, current, strict=True):
            if self._is_new(state.status) and self._content_hashes.get(path) != state.content_hash:
                before.append(_FileState(_UNKNOWN_STATUS, self._content_hashes.get(path, "")))
            else:
                before.append(state)
                self._content_hashes[path] = state.content_hash
        return before

    def _is_new(self, status: FileStatus) -> bool:
        """Returns whether a file has changed since the program was opened.

        A time in the future says nothing, so a file with one counts as unchanged.
        """
        return self._opened_at is not None and (status is None or self._opened_at < max(status[:2]) <= time.time_ns())


def _read_states(files: Sequence[Path]) -> list[_FileState]:
    """Returns the status of each file, and a hash of its content."""
    return [
        _FileState(status, _hash_content(path) if status else "")
        for path, status in zip(files, _file_statuses(files), strict=True)
    ]


def _hash_content(path: Path) -> str:
    """Returns the hash of a file's content, read in pieces: a dump may be larger than the memory."""
    state = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while data := file.read(_HASHED_BYTES):
                state.update(data)
    except OSError:
        return ""
    return state.hexdigest()


def _file_statuses(files: Sequence[Path]) -> list[FileStatus]:
    return [_file_status(path) for path in files]


def _file_status(path: Path) -> FileStatus:
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_ctime_ns, stat.st_size, stat.st_ino
