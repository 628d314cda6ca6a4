"""Detects changes of a program's files and plug-ins, and reloads the program."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from buddy.app.session.state import State
from buddy.app.workspace.workspace import Workspace
from buddy.compiler.protocol import Cancel, FilesChanged, Watch

if TYPE_CHECKING:
    from buddy.app.session.client import EngineClient

Mark = tuple[int, int]


class FileStates:
    """The sizes and modification times of files at the last call of `take`.

    Files that do not exist on this machine, for example those of a remote host, are ignored.
    """

    def __init__(self) -> None:
        self._marks: dict[str, Mark | None] = {}

    def take(self, files: Iterable[str]) -> None:
        """Record the current state of the program's files."""
        self._marks = {file: _mark(file) for file in files}

    def changed(self) -> list[str]:
        """The names of the files that have changed or were deleted."""
        return [Path(file).name for file, mark in self._marks.items() if mark is not None and _mark(file) != mark]


def _mark(file: str) -> Mark | None:
    try:
        found = os.stat(file)
    except (OSError, ValueError):
        return None
    return found.st_size, found.st_mtime_ns


# Seconds until a rejected watch request is repeated.
_RETRY_SECONDS = 1.0


class Watcher:
    """Watches files in the background for the lifetime of an engine, and calls `reload` and `say` with the changes."""

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

    @property
    def on(self) -> bool:
        return self._task is not None

    def start(self, client: EngineClient) -> None:
        """Start watching with the engine of `client`."""
        self.stop()
        self._task = asyncio.ensure_future(self._watch(client))

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None

    def files(self) -> tuple[str, ...]:
        """The known files of the program, including the file in which it failed."""
        source = self._workspace.source.partition(":")[0]
        found = [source] if source.endswith(".py") else []
        found += [*self._state.files, *(plugin.path for plugin in self._workspace.plugins)]
        for problem in self._state.problems.values():
            place = problem.where.rpartition(":")[0]
            found += [place] * place.endswith(".py")
        return tuple(dict.fromkeys(found))

    async def _watch(self, client: EngineClient) -> None:
        from buddy.app.session.client import EngineLost, RequestFailed

        while True:
            files = self.files()
            try:
                self._report(await self._next(client, files))
            except RequestFailed as failed:
                if not failed.cancelled:
                    self._say(f"file watching is off: {failed}")
                    return
                if self.files() == files:
                    await asyncio.sleep(_RETRY_SECONDS)
            except EngineLost:
                return

    async def _next(self, client: EngineClient, files: tuple[str, ...]) -> FilesChanged:
        """The next change of `files`. The request is cancelled when the program has other files."""
        watch = Watch(client.next_request(), files, self._directory)
        changed = asyncio.ensure_future(client.request(watch))
        try:
            while not changed.done() and self.files() == files:
                await asyncio.wait([changed], timeout=_RETRY_SECONDS)
            if not changed.done():
                # A change may have been sent already: the engine answers with the change or with the cancellation.
                client.send(Cancel(watch.request))
            return await changed
        finally:
            changed.cancel()

    def _report(self, found: FilesChanged) -> None:
        if found.gone:
            self._say(f"{_names(found.gone)} was deleted: showing the last loaded version")
        if found.changed:
            self._reload(found.changed)


def _names(files: tuple[str, ...]) -> str:
    return ", ".join(Path(file).name for file in files)


def change_text(files: tuple[str, ...]) -> str:
    """The status message for a change."""
    return f"{_names(files)} changed: reloading"
