"""The engine's non-blocking connection to its client, and the socket to which forks of the host connect."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any, Protocol

from buddy.compiler.protocol.connection import FrameBuffer, FrameDecoder, encode
from buddy.compiler.support.files import scratch_folder
from buddy.compiler.support.processes.forks import lifetime_socket_path
from buddy.compiler.support.processes.lifetime import kill_group_of, peer_pid

if TYPE_CHECKING:
    from buddy.compiler.protocol.connection import Frame
    from buddy.compiler.protocol.worker_messages import Message


_READ_BYTES = 1 << 18


class ClientConnection(Protocol):
    """The interface of a server's connection to its client, for any transport; see `Connection`.

    `lost` is set when the connection has ended.
    """

    lost: asyncio.Event

    async def open(self) -> None: ...

    def bodies(self) -> AsyncIterator[bytes]: ...

    def send(self, frame: Frame) -> None: ...

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
        self._writer, _ = await loop.connect_write_pipe(lambda: _LossProtocol(self.lost.set), outgoing)

    async def bodies(self) -> AsyncIterator[bytes]:
        """Yields the bodies of frames as they arrive; raises `WireError` for data that are not frames."""
        buffer = FrameBuffer()
        while data := await self._reader.read(_READ_BYTES):
            for body in buffer.feed(data):
                yield body
        buffer.finish()

    def send(self, frame: Frame) -> None:
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(encode(frame))

    @property
    def backlog(self) -> int:
        """The number of bytes that the client has not read yet."""
        return 0 if self._writer is None else self._writer.get_write_buffer_size()

    async def flush(self, timeout: float) -> None:
        """Waits up to `timeout` seconds until the client has read all data."""
        deadline = asyncio.get_running_loop().time() + timeout
        while self.backlog and not self.lost.is_set() and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.005)


class _LossProtocol(asyncio.BaseProtocol):
    """Calls `on_lost` when the pipe is closed."""

    def __init__(self, on_lost: Callable[[], None]) -> None:
        self._on_lost = on_lost

    def connection_lost(self, error: Exception | None) -> None:
        self._on_lost()


# ---- processes that connect to the engine ----------------------------------------------------------------------------

_PEER_READ_BYTES = 1 << 20
# Time limit for a process to be forked and to connect, in seconds.
_CONNECT_SECONDS = 30.0
# Time limit for a disconnected process to exit, and the polling interval, in seconds.
_EXIT_SECONDS = 1.0
_POLL_SECONDS = 0.01


class Peer:
    """A connected process, which leads its own session; `types` are the types of its messages.

    `pid` is 0 if the process id is unknown.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, types: object, pid: int) -> None:
        self._reader, self._writer, self._pid = reader, writer, pid
        self._buffer, self._decoder = FrameBuffer(), FrameDecoder(types)

    async def messages(self) -> AsyncIterator[Any]:
        """Yields the process's messages, until it disconnects."""
        with contextlib.suppress(ConnectionError):
            while data := await self._reader.read(_PEER_READ_BYTES):
                for body in self._buffer.feed(data):
                    yield self._decoder.decode(body)

    async def send(self, message: Frame | Message) -> None:
        """Sends a message. Raises `ConnectionError` if the process has exited."""
        self._writer.write(encode(message))
        await self._writer.drain()

    def close(self) -> None:
        """Closes the connection; the process then exits."""
        self._writer.close()

    async def wait_for_exit(self) -> None:
        """Waits for the process to exit; kills it after `_EXIT_SECONDS`, because it may be stopped or stuck."""
        deadline = time.monotonic() + _EXIT_SECONDS
        try:
            while self._is_running() and time.monotonic() < deadline:
                await asyncio.sleep(_POLL_SECONDS)
        finally:
            if self._is_running():
                kill_group_of(self._pid)

    def _is_running(self) -> bool:
        try:
            os.kill(self._pid, 0)
        except ProcessLookupError:
            return False
        return self._pid > 0  # signal 0 to process 0 never fails, and 0 means that the id is unknown


class ListeningSocket:
    """A socket to which forked processes connect. Leaving the context ends the connected processes."""

    def __init__(self, types: object) -> None:
        self._types = types
        self._peers: list[Peer] = []

    async def __aenter__(self) -> ListeningSocket:
        self._folder = scratch_folder("link")
        self.address = os.path.join(self._folder.name, "socket")
        self._listener = _listen(self.address)
        # No connection to this second socket is accepted: the processes connect to it, and exit when it is closed,
        # which the kernel does if this process is killed.
        self._lifetime_socket = _listen(lifetime_socket_path(self.address))
        return self

    async def __aexit__(self, *_: object) -> None:
        self._listener.close()
        for peer in self._peers:
            peer.close()
        self._folder.cleanup()
        try:
            await asyncio.gather(*(peer.wait_for_exit() for peer in self._peers))
        finally:
            self._lifetime_socket.close()

    async def accept_peer(self) -> Peer:
        """Returns the next process that connects. Raises `asyncio.TimeoutError` after `_CONNECT_SECONDS`."""
        await self._wait_for_process()
        # Not `sock_accept`: if it is cancelled just after it has accepted, the connection is lost.
        connection, _ = self._listener.accept()
        try:
            reader, writer = await asyncio.open_unix_connection(sock=connection)
        except BaseException:
            connection.close()
            raise
        self._peers.append(Peer(reader, writer, self._types, peer_pid(connection)))
        return self._peers[-1]

    async def _wait_for_process(self) -> None:
        """Waits until a process connects."""
        loop, connecting = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(self._listener, connecting.set)
        try:
            await asyncio.wait_for(connecting.wait(), _CONNECT_SECONDS)
        finally:
            loop.remove_reader(self._listener)


def _listen(path: str) -> socket.socket:
    """Returns a non-blocking socket that listens at `path`."""
    listener = socket.socket(socket.AF_UNIX)
    listener.setblocking(False)
    listener.bind(path)
    listener.listen()
    return listener
