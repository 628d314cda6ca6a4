"""The client's side of the engine: starts it, sends requests, hands back frames, and says why when it is gone."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

from buddy.app.session.log_file import NO_LOG, Log
from buddy.app.session.resuming_transport import ResumingTransport
from buddy.app.session.ssh import Remote
from buddy.app.session.transport import EngineLost as EngineLost
from buddy.app.session.transport import ProcessTransport, Transport
from buddy.compiler.protocol import (
    PROTOCOL_VERSION,
    Cancel,
    CheckIr,
    Compare,
    Compared,
    Compile,
    Compiled,
    Diagnostic,
    EngineFrame,
    Failed,
    FetchLines,
    FetchText,
    FindNode,
    FindPlace,
    Found,
    Hello,
    IrChecked,
    Lines,
    Ping,
    Ran,
    Run,
    Search,
    Shutdown,
    Text,
    TriedAll,
    TryPasses,
    Welcome,
)
from buddy.compiler.protocol.recipe import PassStep, Recipe
from buddy.compiler.protocol.run_report import OWN_INPUTS, InputChoice
from buddy.compiler.protocol.wire import FrameBuffer, FrameDecoder, FrameError, WireError, encode

Answer = TypeVar("Answer")
Interim = Callable[[Any], None]
# Where an engine is: a command that starts one, or a machine that ssh reaches.
Place = Sequence[str] | Remote


class RequestFailed(Exception):
    """A request that was waited for came back as `Failed`."""

    def __init__(self, failed: Failed) -> None:
        super().__init__(str(failed.diagnostic))
        self.failed = failed

    @property
    def diagnostic(self) -> Diagnostic:
        return self.failed.diagnostic

    @property
    def cancelled(self) -> bool:
        """Whether somebody has stopped it, so that it says nothing of the program."""
        return self.failed.cancelled


class EngineClient:
    """One engine at a time: a process here, one behind a command such as `ssh HOST buddy-tui engine`, or a `Remote`.

    Frames that answer a `fetch_…`, `search`, `find_node` or `compare` call go to its caller alone; all others come out
    of `frames`. `link_changed` hears what is wrong with the link to a `Remote`, and "" once it is well again.
    """

    def __init__(
        self,
        place: Place | None = None,
        log: Log = NO_LOG,
        link_changed: Callable[[str], None] = lambda _what: None,
    ) -> None:
        self._place: Place = place or default_command()
        self._log, self._link_changed = log, link_changed
        self._numbers = 0
        self._transport: Transport | None = None
        self._opening: asyncio.Future[None] | None = None
        self._given_up = False
        self._reading: asyncio.Task[None] | None = None
        self._waiting: dict[int, tuple[asyncio.Future[Any], type, Interim]] = {}
        self._frames: asyncio.Queue[Any] = asyncio.Queue()
        self._lost: EngineLost | None = None
        self.welcome: Welcome | None = None
        self.received_bytes = 0
        self.heard = time.monotonic()

    # ---- life ----------------------------------------------------------------------------------------------------

    async def start(self) -> Welcome:
        """Start the engine and greet it.

        Raises `EngineLost` when it does not start, does not greet back, or is of another version.
        """
        self._lost, self._frames, self.heard = None, asyncio.Queue(), time.monotonic()
        transport = self._way()
        await self._opened(transport)
        self._transport = transport
        greeted: asyncio.Future[Welcome] = asyncio.get_running_loop().create_future()
        self._reading = asyncio.create_task(self._read_frames(transport, greeted))
        self.send(Hello(log=self._log.level))
        self.welcome = await greeted
        return self.welcome

    def _way(self) -> Transport:
        if isinstance(self._place, Remote):
            return ResumingTransport(self._place, self._log, self._link_changed)
        return ProcessTransport(self._place, self._log)

    async def _opened(self, transport: Transport) -> None:
        """A way to an engine elsewhere takes as long as a login does; `close` gives it up. Raises `EngineLost`."""
        self._given_up = False
        self._opening = asyncio.ensure_future(transport.open())
        try:
            await self._opening
        except asyncio.CancelledError:
            if self._given_up:
                raise EngineLost("the engine was closed") from None
            raise
        finally:
            self._opening = None

    async def restart(self) -> Welcome:
        """End the engine, whatever it is doing, and start another one."""
        await self.close()
        return await self.start()

    @property
    def greeted(self) -> bool:
        """Whether the engine has said who it is."""
        return self.welcome is not None

    def ping(self) -> None:
        """Ask for a sign of life, after which `heard` is later."""
        with contextlib.suppress(EngineLost):
            self.send(Ping(self.next_request()))

    def kill(self) -> None:
        """End the engine at once, which answers nothing any more; `frames` ends as with any engine that is gone."""
        if self._transport is not None:
            self._transport.kill()

    @property
    def unanswered(self) -> int:
        """For how many seconds an engine elsewhere that can be reached has said nothing."""
        return self._transport.silent if isinstance(self._transport, ResumingTransport) else 0

    def hurry(self) -> None:
        """Try at once to mend a link that is lost."""
        if isinstance(self._transport, ResumingTransport):
            self._transport.hurry()

    async def close(self) -> None:
        """End the engine and its workers, kindly at first; returns when the process is gone."""
        if self._opening is not None:
            self._given_up = True
            self._opening.cancel()
        transport, self._transport = self._transport, None
        if transport is None:
            return
        await transport.close(encode(Shutdown()))
        await self._end_reading()
        self._lose(EngineLost("the engine was closed"))

    async def _end_reading(self) -> None:
        if self._reading is not None:
            _, late = await asyncio.wait([self._reading], timeout=0.5)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    # ---- requests ------------------------------------------------------------------------------------------------

    def next_request(self) -> int:
        """A number that no request has had."""
        self._numbers += 1
        return self._numbers

    def send(self, frame: Any) -> None:
        """Send a frame. Raises `EngineLost` when there is no engine to send it to."""
        if self._lost is not None or self._transport is None:
            raise self._lost or EngineLost("the engine has not been started")
        self._transport.write(encode(frame))

    async def frames(self) -> AsyncIterator[Any]:
        """Frames as they come; ends by raising `EngineLost` when the engine is gone."""
        frames = self._frames
        while True:
            frame = await frames.get()
            if isinstance(frame, EngineLost):
                raise frame
            yield frame

    async def ask(self, frame: Any, answer: type[Answer], interim: Interim = lambda _frame: None) -> Answer:
        """Send a request and wait for the frame that ends it; `interim` gets those before it.

        The engine stops working on what its caller no longer waits for. Raises `RequestFailed` and `EngineLost`.
        """
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[frame.request] = future, answer, interim
        try:
            self.send(frame)
            found = await future
        except asyncio.CancelledError:
            if not future.done() or future.cancelled():
                with contextlib.suppress(EngineLost):
                    self.send(Cancel(frame.request))
            raise
        finally:
            self._waiting.pop(frame.request, None)
        if isinstance(found, Failed):
            raise RequestFailed(found)
        assert isinstance(found, answer)
        return found

    async def fetch_lines(self, text: str, start: int, count: int) -> Lines:
        """At most `count` lines of `text` from line `start`, counted from 0."""
        return await self.ask(FetchLines(self.next_request(), text, start, count), Lines)

    async def fetch_text(self, text: str) -> str:
        """The whole of `text`."""
        return (await self.ask(FetchText(self.next_request(), text), Text)).content

    async def search(
        self, text: str, pattern: str, *, regex: bool = False, ignore_case: bool = False, limit: int = 10_000
    ) -> Found:
        """The lines of `text`, counted from 0, that hold `pattern`."""
        return await self.ask(Search(self.next_request(), text, pattern, regex, ignore_case, limit), Found)

    async def find_node(self, text: str, node: str) -> Found:
        """The lines of `text`, counted from 0, that come from the FX node with the stable name `node`."""
        return await self.ask(FindNode(self.next_request(), text, node), Found)

    async def find_place(self, text: str, node: str, page: int, around: int, came: Interim) -> Found:
        """The line of `text` that is most the own one of `node`; `came` gets the `Lines` around it."""
        return await self.ask(FindPlace(self.next_request(), text, node, page, around), Found, came)

    async def compare(self, before: str, after: str, how: Literal["line", "structural"], language: str) -> Compared:
        """Where the text `after` differs from `before`."""
        return await self.ask(Compare(self.next_request(), before, after, how, language), Compared)

    async def check_ir(self, content: str) -> IrChecked:
        """What is wrong with a module."""
        return await self.ask(CheckIr(self.next_request(), content), IrChecked)

    async def compile_beside(self, recipe: Recipe, came: Interim = lambda _frame: None) -> Compiled:
        """All stages of a recipe that is compared with others."""
        return await self.ask(Compile(self.next_request(), recipe, beside=True), Compiled, came)

    async def run_beside(
        self, recipe: Recipe, repeats: int = 10, inputs: InputChoice = OWN_INPUTS, values: bool = False,
        equal_nan: bool = False,
    ) -> Ran:  # fmt: skip
        """What running a recipe that is compared with others gives; with `values`, inputs and outputs, too."""
        request = self.next_request()
        frame = Run(request, recipe, repeats, beside=True, inputs=inputs, values=values, equal_nan=equal_nan)
        return await self.ask(frame, Ran)

    async def try_passes(
        self, text: str, candidates: tuple[PassStep, ...], threads: int, came: Interim, seconds: float = 60.0
    ) -> TriedAll:
        """What each candidate would do to a stage: `came` gets a `Tried` for each."""
        frame = TryPasses(self.next_request(), text, candidates, threads, timeout=seconds)
        return await self.ask(frame, TriedAll, came)

    # ---- the wire ------------------------------------------------------------------------------------------------

    async def _read_frames(self, transport: Transport, greeted: asyncio.Future[Welcome]) -> None:
        """Read to the end of the stream, then say why it ended."""
        buffer, decoder, reason = FrameBuffer(), FrameDecoder(EngineFrame), ""
        try:
            while data := await transport.read():
                self.received_bytes += len(data)
                self.heard = time.monotonic()
                for body in buffer.feed(data):
                    reason = self._frame_came(decoder.decode(body), greeted) or reason
            buffer.finish()
        except (WireError, FrameError) as error:
            reason = reason or f"what came from the engine is not the engine's: {error}{self._hint()}"
            transport.kill()
        lost = await transport.ended()
        # An engine that refuses the greeting, or does not know it, would do so again.
        lasting = lost.lasting or (bool(reason) and not greeted.done())
        lost = EngineLost(reason or lost.reason, lost.detail, lasting=lasting)
        if transport is self._transport or not greeted.done():
            self._lose(lost)
        if not greeted.done():
            greeted.set_exception(lost)

    def _frame_came(self, frame: Any, greeted: asyncio.Future[Welcome]) -> str:
        """Pass a frame on; the reason why the engine is about to end, where the frame is one."""
        if not greeted.done():
            return self._greeting_came(frame, greeted)
        waiting = self._waiting.get(getattr(frame, "request", 0))
        if waiting is None:
            self._frames.put_nowait(frame)
            return ""
        future, answer, interim = waiting
        if not isinstance(frame, (answer, Failed)):
            interim(frame)
        elif not future.done():
            future.set_result(frame)
        return ""

    def _greeting_came(self, frame: Any, greeted: asyncio.Future[Welcome]) -> str:
        if isinstance(frame, Failed):
            return str(frame.diagnostic)
        if not isinstance(frame, Welcome):
            raise FrameError(f"it did not greet but sent {type(frame).__name__}")
        if frame.version != PROTOCOL_VERSION:
            raise FrameError(f"it speaks protocol {frame.version}, this client {PROTOCOL_VERSION}")
        greeted.set_result(frame)
        return ""

    def _lose(self, lost: EngineLost) -> None:
        self._lost = lost
        self._frames.put_nowait(lost)
        for future, _, _ in self._waiting.values():
            if not future.done():
                future.set_exception(lost)

    def _hint(self) -> str:
        if isinstance(self._place, Remote) or Path(self._place[0]).name not in ("ssh", "mosh"):
            return ""
        return " · does the remote shell print something at login? It must be silent when it is not interactive"


def default_command() -> list[str]:
    """The engine of this installation."""
    return module_command("buddy.compiler.engine")


def module_command(module: str) -> list[str]:
    """The command that runs a module of this installation; the current folder is kept off its import path."""
    safe = ["-P"] if sys.version_info >= (3, 11) else []
    return [sys.executable, *safe, "-m", module]
