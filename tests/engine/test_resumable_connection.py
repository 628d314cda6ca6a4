"""The engine's end of links that come and go: which of them it keeps, and what it lets go of."""

from __future__ import annotations

import asyncio
import socket
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from buddy.compiler.engine.resumable_connection import ResumableConnection
from buddy.compiler.protocol import Printout
from buddy.compiler.protocol.connection import encode
from buddy.compiler.protocol.resumable_stream import GreetingReader, ResumableStream, ResumeError, encode_greeting

# More than the buffers of a socket take.
LONG = Printout("x" * (8 << 20))
Link = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Engine:
    """A connection that listens in a folder, as in an engine that has been started for somebody else."""

    def __init__(self, folder: Path) -> None:
        self._path = str(folder / "socket")
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(self._path)
        listener.listen(4)
        self.connection = ResumableConnection(listener, 30.0)

    async def link(self, received: int = 0) -> Link:
        reader, writer = await asyncio.open_unix_connection(self._path)
        writer.write(encode_greeting(received))
        return reader, writer


@pytest_asyncio.fixture
async def engine() -> AsyncIterator[Engine]:
    # Not `tmp_path`: the path of a socket has 107 bytes at most.
    with tempfile.TemporaryDirectory(prefix="kept") as folder:
        found = Engine(Path(folder))
        await found.connection.open()
        yield found


async def greeted(link: Link) -> bytes:
    """What comes behind the engine's greeting."""
    search = GreetingReader()
    while (found := search.feed(await asyncio.wait_for(link[0].read(1 << 16), 120))) is None:
        continue
    return found[1]


async def rest(link: Link) -> int:
    """How many bytes come until the link ends."""
    count = 0
    try:
        while data := await asyncio.wait_for(link[0].read(1 << 20), 120):
            count += len(data)
    except ConnectionResetError:
        pass
    return count


@pytest.mark.asyncio
async def test_a_link_that_is_no_continuation_does_not_end_the_one_there_is(engine: Engine) -> None:
    good = await engine.link()
    await greeted(good)
    with pytest.raises(ResumeError, match="this side can resume at"):
        await greeted(await engine.link(received=99))
    engine.connection.send(Printout("hello"))
    stream = ResumableStream()
    assert stream.feed(await asyncio.wait_for(good[0].read(1 << 16), 120)) == encode(Printout("hello"))


@pytest.mark.asyncio
async def test_a_link_that_hangs_is_let_go_of_with_all_that_waits_for_it(engine: Engine) -> None:
    hanging = await engine.link()
    await greeted(hanging)
    hanging[1].transport.pause_reading()  # type: ignore[attr-defined]
    engine.connection.send(LONG)
    again = await engine.link()
    stream, frame = ResumableStream(), encode(LONG)
    came = stream.feed(await greeted(again))
    while len(came) < len(frame):
        came += stream.feed(await asyncio.wait_for(again[0].read(1 << 20), 120))
    assert came == frame
    hanging[1].transport.resume_reading()  # type: ignore[attr-defined]
    assert await rest(hanging) < len(frame) // 2


@pytest.mark.asyncio
async def test_the_last_that_is_said_arrives(engine: Engine) -> None:
    link = await engine.link()
    await greeted(link)
    engine.connection.send(LONG)
    _, count = await asyncio.gather(engine.connection.flush(120.0), rest(link))
    assert count > len(encode(LONG))
