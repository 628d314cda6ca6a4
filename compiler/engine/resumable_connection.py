"""An engine that survives lost connections: it listens on a socket, to which relay processes connect clients.

It serves one client over any number of connections, one at a time, and exits when the client requests it, or after some
seconds without a connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from buddy.compiler.engine.relay import log_path
from buddy.compiler.protocol.connection import FrameBuffer, encode
from buddy.compiler.protocol.resumable_stream import (
    HEARTBEAT_SECONDS,
    SILENCE_SECONDS,
    GreetingReader,
    ResumableStream,
    ResumeError,
    StreamError,
    encode_greeting,
    encode_rejection,
)

if TYPE_CHECKING:
    from buddy.compiler.protocol.connection import Frame


def serve_socket(*arguments: str) -> int:
    """Serves one client and returns the exit code; removes the socket's file, and the log if the code is 0.

    `arguments` are the file descriptor of the listening socket, its path, and the seconds without a connection after
    which the engine exits.
    """
    descriptor, path, patience = int(arguments[0]), Path(arguments[1]), float(arguments[2])
    os.set_inheritable(descriptor, False)
    # Only warnings, whatever the client's log level: stderr is a file that grows while the engine runs.
    handler = logging.StreamHandler(sys.stderr)
    handler.setLevel(logging.WARNING)
    logging.basicConfig(handlers=[handler], format="%(asctime)s %(message)s")
    from buddy.compiler.engine.server import Server
    from buddy.compiler.support.files import ensure_temporary_folder
    from buddy.compiler.support.processes.lifetime import limit_memory

    limit_memory()
    ensure_temporary_folder()

    async def serve() -> int:
        return await Server(ResumableConnection(socket.socket(fileno=descriptor), patience)).serve()

    try:
        code = asyncio.run(serve())
    finally:
        path.unlink(missing_ok=True)
    if code == 0:
        with contextlib.suppress(OSError):
            log_path(path).unlink()
    return code


log = logging.getLogger("buddy.engine")
_READ_BYTES = 1 << 18
_GREETING_SECONDS = 10.0
# The time in which the relay that started the engine has to connect: enough for it to start, unless it is killed.
_UNCLAIMED_SECONDS = 60.0
# With more unconfirmed data than this, in bytes, an engine without a client exits: the data would need more memory
# than the engine itself, most of which is the IR of all stages.
_MAX_UNCONFIRMED_BYTES = 1 << 28


class ResumableConnection:
    """A `ClientConnection` over a sequence of links; `lost` is set after `patience` seconds without a link.

    The first link may take a minute even if `patience` is shorter, because the relay is still starting.
    """

    def __init__(self, listener: socket.socket, patience: float) -> None:
        self._listener, self._patience = listener, patience
        self._stream = ResumableStream()
        self._incoming: asyncio.Queue[bytes] = asyncio.Queue()
        self._link: asyncio.StreamWriter | None = None
        self._exit_timer: asyncio.TimerHandle | None = None
        self._tasks: list[Any] = []
        self.lost = asyncio.Event()

    async def open(self) -> None:
        self._tasks = [
            await asyncio.start_unix_server(self._accept_link, sock=self._listener),
            asyncio.create_task(self._send_heartbeats()),
        ]
        self._exit_unless_connected(_UNCLAIMED_SECONDS)

    async def bodies(self) -> AsyncIterator[bytes]:
        """Yields the bodies of frames as they arrive; raises `WireError` for data that are not frames."""
        buffer = FrameBuffer()
        while True:
            for body in buffer.feed(await self._incoming.get()):
                yield body

    def send(self, frame: Frame) -> None:
        record = self._stream.write(encode(frame))
        if self._link is not None:
            self._link.write(record)
        elif self._stream.unconfirmed > _MAX_UNCONFIRMED_BYTES:
            log.error("the client is disconnected, and too much data is waiting for it")
            self.lost.set()

    @property
    def backlog(self) -> int:
        """The number of bytes that the client has not confirmed yet."""
        return self._stream.unconfirmed

    async def flush(self, timeout: float) -> None:
        """Closes the link for new data, and waits up to `timeout` seconds until earlier data has been written."""
        link, self._link = self._link, None
        if link is not None:
            link.close()
            with contextlib.suppress(OSError, asyncio.TimeoutError):
                await asyncio.wait_for(link.wait_closed(), timeout)

    # ---- links --------------------------------------------------------------------------------------------------

    async def _accept_link(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Resumes the stream over a new link, and aborts the previous link, which may be dead without notice."""
        try:
            received_count, rest = await asyncio.wait_for(_read_greeting(reader), _GREETING_SECONDS)
            missing_records = self._stream.resume(received_count)
        except (ResumeError, StreamError, OSError, asyncio.TimeoutError) as error:
            writer.write(encode_rejection(str(error) or "the client sent no greeting"))
            writer.close()
            return
        if self._link is not None:
            self._drop_link(self._link)
        self._take_link(writer)
        writer.write(encode_greeting(self._stream.received) + missing_records)
        await self._listen(reader, writer, rest)

    async def _listen(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, data: bytes) -> None:
        """Receives records over a link until it ends, or another link replaces it; `data` came with the greeting."""
        try:
            while self._link is writer:
                if payload := self._stream.feed(data):
                    self._incoming.put_nowait(payload)
                if self._stream.should_confirm:
                    writer.write(self._stream.confirmation())
                data = await asyncio.wait_for(reader.read(_READ_BYTES), SILENCE_SECONDS)
                if not data:
                    break
        except (StreamError, OSError, asyncio.TimeoutError) as error:
            log.info("the link failed: %s", error or f"no data for {SILENCE_SECONDS:g} s")
        self._drop_link(writer)

    def _take_link(self, link: asyncio.StreamWriter) -> None:
        self._link = link
        if self._exit_timer is not None:
            self._exit_timer.cancel()
        log.info("the client has connected")

    def _drop_link(self, link: asyncio.StreamWriter) -> None:
        if self._link is link:
            # Closing would wait until a hanging link has sent its data, which is sent again over the next link anyway.
            link.transport.abort()
            self._link = None
            self._exit_unless_connected(self._patience)
            log.info("the client's link is lost; waiting %g s for it to reconnect", self._patience)

    def _exit_unless_connected(self, seconds: float) -> None:
        self._exit_timer = asyncio.get_running_loop().call_later(seconds, self.lost.set)

    async def _send_heartbeats(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_SECONDS)
            if self._link is not None:
                self._link.write(self._stream.confirmation())


async def _read_greeting(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """Returns the number of bytes that the client has received, and the bytes after its greeting."""
    greeting_reader = GreetingReader()
    while data := await reader.read(_READ_BYTES):
        if (greeting_and_rest := greeting_reader.feed(data)) is not None:
            return greeting_and_rest
    raise StreamError("the link ended before its greeting")
