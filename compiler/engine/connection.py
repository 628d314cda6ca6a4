"""The engine's non-blocking connection to its client: two file descriptors with frames in and out."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from typing import Any, Protocol

from buddy.compiler.protocol.wire import FrameBuffer, encode

_READ = 1 << 18


class ClientConnection(Protocol):
    """The interface between a server and its client, for any transport."""

    lost: asyncio.Event

    async def open(self) -> None: ...

    def bodies(self) -> AsyncIterator[bytes]: ...

    def send(self, frame: Any) -> None: ...

    @property
    def backlog(self) -> int: ...

    async def flush(self, timeout: float) -> None: ...


class Connection:
    """Reads frames from `read_fd` and writes frames to `write_fd`."""

    def __init__(self, read_fd: int, write_fd: int) -> None:
        self._read_fd, self._write_fd = read_fd, write_fd
        self._reader = asyncio.StreamReader()
        self._writer: asyncio.WriteTransport | None = None
        self.lost = asyncio.Event()

    async def open(self) -> None:
        loop = asyncio.get_running_loop()
        incoming = os.fdopen(self._read_fd, "rb", buffering=0)
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(self._reader), incoming)
        outgoing = os.fdopen(self._write_fd, "wb", buffering=0)
        self._writer, _ = await loop.connect_write_pipe(lambda: _Watcher(self.lost.set), outgoing)

    async def bodies(self) -> AsyncIterator[bytes]:
        """The bodies of frames as they arrive; raises `WireError` for data that are not frames."""
        buffer = FrameBuffer()
        while data := await self._reader.read(_READ):
            for body in buffer.feed(data):
                yield body
        buffer.finish()

    def send(self, frame: Any) -> None:
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(encode(frame))

    @property
    def backlog(self) -> int:
        """The number of bytes that the client has not read yet."""
        return 0 if self._writer is None else self._writer.get_write_buffer_size()

    async def flush(self, timeout: float) -> None:
        """Waits up to `timeout` seconds for the client to read the rest."""
        deadline = asyncio.get_running_loop().time() + timeout
        while self.backlog and not self.lost.is_set() and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.005)


class _Watcher(asyncio.BaseProtocol):
    def __init__(self, lost: Callable[[], None]) -> None:
        self._lost = lost

    def connection_lost(self, error: Exception | None) -> None:
        self._lost()
