"""Waiting for files to change. They are looked at every now and then: that works on every file system, over networks
too, and there are few of them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from buddy.compiler.protocol.recipe import digest
from buddy.compiler.protocol.watching import FilesChanged, Watch
from buddy.compiler.support.processes.jobs import Job

_LOOK_SECONDS = 0.25
# Editors delete a file, or empty it, before they write it anew; one is gone when it has been for this long.
_GONE_SECONDS = 2.0

# When a file was written and when it came to be here, its length, and which file it is; `None` where there is none.
Trace = tuple[int, int, int, int] | None
# The trace of what there was before, which is no file's.
_BEFORE = (-1, -1, -1, -1)


class _Seen(NamedTuple):
    trace: Trace
    held: str


class Watching:
    """Answers a `Watch` when something has changed and stays as it is.

    Between the moment at which a program is read and the `Watch` that names its files (they are known by then) lie
    seconds, in which somebody may save one: what counts is what a file held before the program was last opened.
    """

    def __init__(self, send: Callable[[Any], None]) -> None:
        self._send = send
        # When the program was last opened, or a change was last told; nothing is new before that.
        self._since: int | None = None
        # What each file held when it was last compared.
        self._known: dict[Path, str] = {}

    def opening(self) -> None:
        """The program is about to be opened: what is written from now on may be something else than what is read."""
        self._since = time.time_ns()

    async def watch(self, frame: Watch, job: Job) -> None:
        files = [Path(frame.directory, file) for file in frame.files]
        before = self._before(files, await asyncio.to_thread(_look, files))
        last, since = [seen.trace for seen in before], time.monotonic()
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            now = await asyncio.to_thread(_traces, files)
            if now != last:
                last, since = now, time.monotonic()
                continue
            if now == [seen.trace for seen in before] or (None in now and time.monotonic() - since < _GONE_SECONDS):
                continue
            told = time.time_ns()
            found = await asyncio.to_thread(_look, files)
            if [seen.trace for seen in found] != now:
                # One is being written after all, or was taken away for a moment.
                continue
            pairs = list(zip(frame.files, before, found, strict=True))
            self._known.update((path, seen.held) for path, seen in zip(files, found, strict=True))
            if any(old.held != new.held for _, old, new in pairs):
                self._since = told
                there = tuple(name for name, old, new in pairs if old.held != new.held and new.trace)
                gone = tuple(name for name, old, new in pairs if old.held != new.held and not new.trace)
                self._send(FilesChanged(job.request, there, gone))
                return
            before = found

    def _before(self, files: Sequence[Path], found: Sequence[_Seen]) -> list[_Seen]:
        """What `files`, of which now `found` is there, held before the program was opened.

        A file that the program itself writes whenever it is opened is new each time; what it held last is known then.
        """
        before = []
        for path, seen in zip(files, found, strict=True):
            if self._is_new(seen.trace) and self._known.get(path) != seen.held:
                before.append(_Seen(_BEFORE, self._known.get(path, "")))
            else:
                before.append(seen)
                self._known[path] = seen.held
        return before

    def _is_new(self, trace: Trace) -> bool:
        """Whether a file is of a later time than the program; of a clock that is ahead nothing can be said."""
        return self._since is not None and (trace is None or self._since < max(trace[:2]) <= time.time_ns())


def _look(files: Sequence[Path]) -> list[_Seen]:
    """Each file's trace, and a hash of what it holds."""
    return [_Seen(trace, _held(path) if trace else "") for path, trace in zip(files, _traces(files), strict=True)]


def _held(path: Path) -> str:
    try:
        return digest(path.read_bytes())
    except OSError:
        return ""


def _traces(files: Sequence[Path]) -> list[Trace]:
    return [_trace(path) for path in files]


def _trace(path: Path) -> Trace:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino
