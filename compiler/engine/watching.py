"""Waiting for files to change. They are looked at every now and then: that works on every file system, over networks
too, and there are few of them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from buddy.compiler.engine.jobs import Job
from buddy.compiler.protocol.watching import FilesChanged, Watch
from buddy.compiler.recipe import digest

_LOOK_SECONDS = 0.25
# Editors delete a file, or empty it, before they write it anew; one is gone when it has been for this long.
_GONE_SECONDS = 2.0

# When a file was written, its length, and which file it is; `None` where there is none.
Trace = tuple[int, int, int] | None


class _Seen(NamedTuple):
    trace: Trace
    held: str


class Watching:
    """Answers a `Watch` when something has changed and stays as it is."""

    def __init__(self, send: Callable[[Any], None]) -> None:
        self._send = send

    async def watch(self, frame: Watch, job: Job) -> None:
        files = [Path(frame.directory, file) for file in frame.files]
        before = await asyncio.to_thread(_look, files)
        last, since = [seen.trace for seen in before], time.monotonic()
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            now = await asyncio.to_thread(_traces, files)
            if now != last:
                last, since = now, time.monotonic()
                continue
            if now == [seen.trace for seen in before] or (None in now and time.monotonic() - since < _GONE_SECONDS):
                continue
            found = await asyncio.to_thread(_look, files)
            pairs = list(zip(frame.files, before, found, strict=True))
            if any(old.held != new.held for _, old, new in pairs):
                there = tuple(name for name, old, new in pairs if old.held != new.held and new.trace)
                gone = tuple(name for name, old, new in pairs if old.held != new.held and not new.trace)
                self._send(FilesChanged(job.request, there, gone))
                return
            before = found


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
    return found.st_mtime_ns, found.st_size, found.st_ino
