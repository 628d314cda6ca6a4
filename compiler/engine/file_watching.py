"""Waits for files to change, by polling, and hashes the plug-in files of a program."""

from __future__ import annotations

import asyncio
import errno
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from buddy.compiler.protocol import Diagnostic
from buddy.compiler.protocol.connection import FilesChanged, Watch
from buddy.compiler.protocol.recipe import PluginFile, digest
from buddy.compiler.support.processes.jobs import Job, JobFailed

NO_PLUGINS: tuple[PluginFile, ...] = ()


@dataclass
class CompilerPlugins:
    """The plug-ins and graphs of the current compiler process, and its notes on the plug-ins."""

    life: int = 0
    graphs: set[str] = field(default_factory=set)
    plugins: tuple[PluginFile, ...] = NO_PLUGINS
    notes: tuple[str, ...] = ()
    asked: bool = False

    def use(self, plugins: tuple[PluginFile, ...], notes: tuple[str, ...]) -> None:
        """Records that `plugins` are loaded.

        Earlier graphs are forgotten, because they may contain ops that are registered only now.
        """
        self.plugins, self.notes, self.asked = plugins, notes, True
        self.graphs.clear()

    def record_graph(self, key: str, kept: Collection[str]) -> None:
        """Records that graph `key` was sent, and that the worker now has `kept`: others may have been evicted."""
        self.graphs = {*self.graphs.intersection(kept), key}


def hash_plugin_file(path: str, directory: str = "") -> PluginFile:
    """Returns the resolved path of the file at `path`, relative to `directory`, and the hash of its content.

    Raises `OSError` if it cannot be read.
    """
    try:
        whole = Path(directory, path).resolve()
    except (ValueError, RuntimeError) as error:  # a NUL character, or a cycle of links
        raise OSError(errno.EINVAL, "is not a file path") from error
    if whole.exists() and not whole.is_file():  # such as /dev/zero, which never ends
        raise OSError(errno.EINVAL, "is not a regular file")
    return PluginFile(str(whole), digest(whole.read_bytes()))


def resolve_plugins(plugins: Sequence[PluginFile], directory: str) -> tuple[tuple[PluginFile, ...], tuple[str, ...]]:
    """Returns plug-in files with absolute paths and current hashes, and a note for each whose hash has changed.

    Raises `JobFailed` for a file that cannot be read.
    """
    found, notes = [], []
    for plugin in plugins:
        try:
            now = hash_plugin_file(plugin.path, directory)
        except OSError as error:
            why = error.strerror or type(error).__name__
            raise JobFailed(Diagnostic(f"plug-in {plugin.path}: {why}", plugin.path, "check the path")) from error
        if plugin.hash not in ("", now.hash):
            notes.append(f"plug-in {plugin.path} has changed since the recipe was written")
        found.append(msgspec.structs.replace(now, passes=plugin.passes))
    return tuple(dict.fromkeys(found)), tuple(notes)


_POLL_SECONDS = 0.25
# Editors delete or truncate a file before they write it; it counts as deleted after this many seconds.
_GONE_SECONDS = 2.0

# Modification and status-change times, length and inode of a file; `None` if it does not exist.
Trace = tuple[int, int, int, int] | None
# The status of a file whose previous content is no longer available; no file has this status.
_UNKNOWN_STATUS = (-1, -1, -1, -1)


class _FileState(NamedTuple):
    trace: Trace
    held: str


class WatchHandler:
    """Answers a `Watch` when a file has changed and its content is stable.

    Between reading a program and the `Watch` that names its files (which are only known then), seconds may pass, in
    which a file may be saved. So the content is compared with that before the program was last opened.
    """

    def __init__(self, send: Callable[[Any], None]) -> None:
        self._send = send
        # When the program was last opened, or a change was last reported; earlier changes do not count.
        self._since: int | None = None
        # The content hash of each file at the last comparison.
        self._known: dict[Path, str] = {}

    def record_opening(self) -> None:
        """Records that the program is about to be opened: later changes may differ from what it reads."""
        self._since = time.time_ns()

    async def watch(self, frame: Watch, job: Job) -> None:
        files = [Path(frame.directory, file) for file in frame.files]
        before = self._states_before_opening(files, await asyncio.to_thread(_read_states, files))
        last, since = [seen.trace for seen in before], time.monotonic()
        while True:
            await asyncio.sleep(_POLL_SECONDS)
            now = await asyncio.to_thread(_traces, files)
            if now != last:
                last, since = now, time.monotonic()
                continue
            if now == [seen.trace for seen in before] or (None in now and time.monotonic() - since < _GONE_SECONDS):
                continue
            told = time.time_ns()
            found = await asyncio.to_thread(_read_states, files)
            if [seen.trace for seen in found] != now:
                # The file is still being written, or was removed briefly.
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

    def _states_before_opening(self, files: Sequence[Path], found: Sequence[_FileState]) -> list[_FileState]:
        """Returns the content of `files` before the program was opened; `found` is their current state.

        A file that the program itself writes when it is opened changes each time; its last content is then used.
        """
        before = []
        for path, seen in zip(files, found, strict=True):
            if self._is_new(seen.trace) and self._known.get(path) != seen.held:
                before.append(_FileState(_UNKNOWN_STATUS, self._known.get(path, "")))
            else:
                before.append(seen)
                self._known[path] = seen.held
        return before

    def _is_new(self, trace: Trace) -> bool:
        """Returns whether a file is newer than the program; unknown if its clock is ahead."""
        return self._since is not None and (trace is None or self._since < max(trace[:2]) <= time.time_ns())


def _read_states(files: Sequence[Path]) -> list[_FileState]:
    """Returns the status of each file, and a hash of its content."""
    return [
        _FileState(trace, _hash_content(path) if trace else "")
        for path, trace in zip(files, _traces(files), strict=True)
    ]


def _hash_content(path: Path) -> str:
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
