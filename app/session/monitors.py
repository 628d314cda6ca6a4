"""Monitors that run in the background of a session: does the engine answer, and have the program's files changed?"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from buddy.app.session.state import State
from buddy.app.workspace.files import FileStamp, read_stamp
from buddy.app.workspace.workspace import Workspace
from buddy.compiler.protocol import Cancel, FilesChanged, WatchFiles
from buddy.compiler.protocol.source_locations import split_source

if TYPE_CHECKING:
    from buddy.app.session.client import EngineClient


# ---- the heartbeat of the engine -------------------------------------------------------------------------------------


# A ping is sent after this many seconds without data. An engine that works answers within a tenth of that.
PING_SECONDS = 1.0
# An engine is reported as silent if it does not answer a ping for this many seconds. Engines behind slow connections
# and on loaded machines answer faster.
SILENCE_SECONDS = 4.0
# The limit for the first data of an engine, whose startup reads some hundred files, possibly from a cold disk.
START_SILENCE_SECONDS = 20.0
# How often the time since the last data is checked.
CHECK_SECONDS = 0.5


class HeartbeatTarget(Protocol):
    """The client of an engine that is monitored.

    `last_data_time` is when the engine last sent data, by `time.monotonic`. `handshake_done` says whether the engine
    has answered the greeting, so that it can be pinged.
    """

    last_data_time: float

    @property
    def handshake_done(self) -> bool: ...

    def ping(self) -> None:
        """Sends a ping, whose answer updates `last_data_time`."""


class Heartbeat:
    """Monitors one engine at a time.

    `on_silence` is called with the whole seconds since the last data of an engine that does not answer, whenever their
    number changes, and with 0 when it answers again.
    """

    def __init__(self, on_silence: Callable[[int], object]) -> None:
        self._on_silence = on_silence
        self._task: asyncio.Task[None] | None = None

    def start(self, client: HeartbeatTarget) -> None:
        """Monitors the engine of `client`, instead of the one monitored so far."""
        self.stop()
        self._task = asyncio.ensure_future(self._monitor(client))

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _monitor(self, client: HeartbeatTarget) -> None:
        """Pings the engine when it is idle, and reports its silence, until the task is cancelled."""
        ping_time, reported_seconds, last_check = 0.0, 0, time.monotonic()
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            now = time.monotonic()
            if now - last_check > 2 * PING_SECONDS:
                # This process was suspended: the engine's data has not been read yet.
                client.last_data_time = now
            last_check = now
            seconds_without_data = now - client.last_data_time
            if client.handshake_done and seconds_without_data > PING_SECONDS and ping_time <= client.last_data_time:
                client.ping()
                ping_time = now
            limit = SILENCE_SECONDS if client.handshake_done else START_SILENCE_SECONDS
            # Silence counts from the ping, because an idle engine sends nothing.
            is_silent = now - max(ping_time, client.last_data_time) > limit
            silent_seconds = int(seconds_without_data) if is_silent else 0
            if silent_seconds != reported_seconds:
                reported_seconds = silent_seconds
                self._on_silence(silent_seconds)


# ---- the files of the program ----------------------------------------------------------------------------------------


class FileStates:
    """Remembers the stamps of files, to find those that have changed.

    Files that do not exist on this machine, for example those of a remote host, are ignored.
    """

    def __init__(self) -> None:
        self._recorded: dict[str, FileStamp | None] = {}

    def record(self, files: Iterable[str]) -> None:
        """Records the current stamps of `files`, instead of the files recorded before."""
        self._recorded = {file: read_stamp(file) for file in files}

    def changed_names(self) -> list[str]:
        """Returns the names, without folders, of the files that were changed or deleted since `record`."""
        return [
            Path(file).name
            for file, recorded in self._recorded.items()
            if recorded is not None and read_stamp(file) != recorded
        ]


# How often the list of watched files is checked, and the wait before a cancelled watch request is repeated, in seconds.
_CHECK_SECONDS = 1.0


class FileWatcher:
    """Watches the program's files in the background while an engine runs.

    `reload` is called with the changed files, `say` with messages about deleted files and errors.
    """

    def __init__(
        self,
        workspace: Workspace,
        state: State,
        directory: str,
        reload: Callable[[tuple[str, ...]], object],
        say: Callable[[str], object],
    ) -> None:
        self._workspace, self._state, self._directory = workspace, state, directory
        self._reload, self._say = reload, say
        self._task: asyncio.Task[None] | None = None

    def start(self, client: EngineClient) -> None:
        """Starts watching with the engine of `client`."""
        self.stop()
        self._task = asyncio.ensure_future(self._watch(client))

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None

    def program_files(self) -> tuple[str, ...]:
        """Returns the script, the files that it imported, the plug-ins, and Python files named by errors."""
        source = split_source(self._workspace.source).target
        files = [source] if source.endswith(".py") else []
        files += [*self._state.files, *(plugin.path for plugin in self._workspace.plugins)]
        for problem in self._state.problems.values():
            path = problem.where.rpartition(":")[0]
            if path.endswith(".py"):
                files.append(path)
        return tuple(dict.fromkeys(files))

    async def _watch(self, client: EngineClient) -> None:
        """Handles changes until the engine exits or the watch request fails, which is reported."""
        from buddy.app.session.client import EngineError, RequestFailed

        while True:
            files = self.program_files()
            try:
                self._handle_change(await self._next_change(client, files))
            except RequestFailed as failed:
                if not failed.cancelled:
                    self._say(f"file watching is off: {failed}")
                    return
                if self.program_files() == files:
                    await asyncio.sleep(_CHECK_SECONDS)
            except EngineError:
                return

    async def _next_change(self, client: EngineClient, files: tuple[str, ...]) -> FilesChanged:
        """Requests the next change of `files`, and waits for it.

        The request is cancelled, and then fails, when the program consists of other files. Raises `RequestFailed` and
        `EngineError`.
        """
        watch = WatchFiles(client.new_request_id(), files, self._directory)
        change = asyncio.ensure_future(client.request(watch))
        try:
            while not change.done() and self.program_files() == files:
                await asyncio.wait([change], timeout=_CHECK_SECONDS)
            if not change.done():
                # A change may have been sent already: the engine answers with the change or with the cancellation.
                client.send(Cancel(watch.request))
            return await change
        finally:
            change.cancel()

    def _handle_change(self, change: FilesChanged) -> None:
        """Reloads the changed files, and reports deleted ones."""
        if change.deleted:
            self._say(f"{_names(change.deleted)} was deleted: showing the last loaded version")
        if change.changed:
            self._reload(change.changed)


def _names(files: tuple[str, ...]) -> str:
    """Returns the names of files without their folders."""
    return ", ".join(Path(file).name for file in files)


def change_text(files: tuple[str, ...]) -> str:
    return f"{_names(files)} changed: reloading"
