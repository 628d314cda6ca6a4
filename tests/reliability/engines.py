"""A real engine in a separate folder, with a memory limit; nothing of it may be left afterwards.

Its processes, and all their children, are identified by the folder in their environment.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

from buddy.app.session.client import EngineClient, RequestFailed, default_command
from buddy.compiler.protocol import Cancel, Failed, Request
from tests.support.engine_processes import children, command

Answer = TypeVar("Answer")
# Address space of each process in KiB: the limit for exploding IR.
MEMORY = 12 << 20
# Seconds for a process to exit when requested, on a loaded machine.
GRACE = 30.0
_START = (
    'cd "$0" && ulimit -v {memory} && ulimit -c 0 && '
    'export BUDDY_CACHE="$1" TMPDIR="$0" OMP_NUM_THREADS=1 PYTHONPYCACHEPREFIX="$1/bytecode" && '
    'unset PYTHONDONTWRITEBYTECODE && shift && exec "$@"'
)


class NotAnswered(Exception):
    """A request that was not answered in time; `stopped` is how it ended when cancelled, None if it did not."""

    def __init__(self, stopped: Failed | None) -> None:
        super().__init__("not answered in time")
        self.stopped = stopped


class Engine:
    """An engine with blocking requests, one at a time.

    `folder` is its current folder and the one for temporary files; objects, and the bytecode of Python's modules, are
    in `cache`.
    """

    def __init__(self, folder: Path, cache: Path) -> None:
        self.folder = folder
        script = _START.format(memory=MEMORY)
        self._loop = asyncio.new_event_loop()
        self.client = EngineClient(["sh", "-c", script, str(folder), str(cache), *default_command()])
        try:
            self._wait(self.client.start())
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        assert self.client.welcome is not None
        return self.client.welcome.pid

    def ask(self, frame: Request[Answer], timeout: float, interim: Any = lambda _frame: None) -> Answer:
        """The answer to `frame`. Raises `RequestFailed`, `EngineError`, and `NotAnswered` after `timeout` seconds."""
        return self._wait(self._asked(frame, timeout, interim))

    async def _asked(self, frame: Request[Answer], timeout: float, interim: Any) -> Answer:
        asking = asyncio.ensure_future(self.client.request(frame, interim))
        done, _ = await asyncio.wait([asking], timeout=timeout)
        if not done:
            self.client.send(Cancel(frame.request))
            done, _ = await asyncio.wait([asking], timeout=GRACE)
            if not done:
                asking.cancel()
                await asyncio.wait([asking])
                raise NotAnswered(None)
            if isinstance(error := asking.exception(), RequestFailed) and error.cancelled:
                raise NotAnswered(error.failed)
        return asking.result()

    def text(self, name: str) -> str:
        """A stage's text."""
        return self._wait(self.client.fetch_text(name))

    def left_running(self) -> list[str]:
        """Children of the workers that are left after their work is done."""
        hosts = [pid for pid in children(self.pid) if "engine.host" in command(pid)]
        return _after_grace(lambda: [child for host in hosts for child in children(host)])

    def close(self) -> list[str]:
        """Ends the engine; returns the commands of processes that did not exit."""
        self._wait(self.client.close())
        self._loop.close()
        return _after_grace(lambda: marked(self.folder))

    def _wait(self, work: Coroutine[Any, Any, Answer]) -> Answer:
        return self._loop.run_until_complete(work)


def _after_grace(find: Callable[[], list[int]]) -> list[str]:
    """What `find` still finds after the grace period."""
    deadline = time.monotonic() + GRACE
    while (found := find()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return [f"{pid} {command(pid)}" for pid in found]


def marked(folder: Path) -> list[int]:
    """The processes with `folder` in their environment."""
    mark = f"TMPDIR={folder}\0".encode()
    found = []
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        try:
            environment = Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            continue
        if mark in environment:
            found.append(pid)
    return found
