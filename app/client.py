"""The client's side of the engine: starts it, sends requests, hands back frames, and says why when it is gone."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import IO, Any, Literal, TypeVar

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
    Found,
    Hello,
    IrChecked,
    Lines,
    Ran,
    Run,
    Search,
    Shutdown,
    Text,
    TriedAll,
    TryPasses,
    Welcome,
)
from buddy.compiler.recipe import PassStep, Recipe
from buddy.compiler.run_report import OWN_INPUTS, InputChoice
from buddy.compiler.wire import FrameBuffer, FrameDecoder, FrameError, WireError, encode

Answer = TypeVar("Answer")
Interim = Callable[[Any], None]
_READ = 1 << 18
_TAIL = 4000
_PATIENCE = 3.0


class EngineLost(Exception):
    """The engine could not be started, or has ended; the text says how, and `detail` is the end of its log."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(reason)
        self.reason, self.detail = reason, detail


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
    """One engine process at a time, here or behind a command such as `ssh HOST buddy-tui engine`.

    Frames that answer a `fetch_…`, `search`, `find_node` or `compare` call go to its caller alone; all others come out
    of `frames`.
    """

    def __init__(self, command: Sequence[str] | None = None, log: Path | None = None) -> None:
        self._command = list(command) if command else default_command()
        self._log = log
        self._numbers = 0
        self._process: asyncio.subprocess.Process | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._waiting: dict[int, tuple[asyncio.Future[Any], type, Interim]] = {}
        self._frames: asyncio.Queue[Any] = asyncio.Queue()
        self._lost: EngineLost | None = None
        self._tail = bytearray()
        self.welcome: Welcome | None = None

    # ---- life ---------------------------------------------------------------------------------------------------

    async def start(self) -> Welcome:
        """Start the engine and greet it.

        Raises `EngineLost` when it does not start, does not greet back, or is of another version.
        """
        self._lost, self._frames, self._tail = None, asyncio.Queue(), bytearray()
        process = self._process = await self._spawned()
        log = self._open_log()
        greeted: asyncio.Future[Welcome] = asyncio.get_running_loop().create_future()
        errors = asyncio.create_task(self._read_log(process, log))
        self._tasks = [errors, asyncio.create_task(self._read_frames(process, greeted, errors))]
        self.send(Hello())
        self.welcome = await greeted
        return self.welcome

    async def restart(self) -> Welcome:
        """End the engine, whatever it is doing, and start another one."""
        await self.close()
        return await self.start()

    async def close(self) -> None:
        """End the engine and its workers, kindly at first; returns when the process is gone."""
        process, self._process = self._process, None
        if process is None:
            return
        self._write(process, Shutdown())
        with contextlib.suppress(OSError, RuntimeError):
            process.stdin.close()  # type: ignore[union-attr]
        try:
            await asyncio.wait_for(process.wait(), _PATIENCE)
        except asyncio.TimeoutError:
            _kill_group(process.pid)
            await process.wait()
        await self._end_tasks()
        self._lose(EngineLost("the engine was closed"))

    async def _end_tasks(self) -> None:
        _, late = await asyncio.wait(self._tasks, timeout=0.5) if self._tasks else (set(), set())
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)
        self._tasks = []

    async def _spawned(self) -> asyncio.subprocess.Process:
        pipe = asyncio.subprocess.PIPE
        try:
            return await asyncio.create_subprocess_exec(
                *self._command, stdin=pipe, stdout=pipe, stderr=pipe, limit=_READ << 4, start_new_session=True
            )
        except OSError as error:
            raise EngineLost(f"the engine does not start: {self._command[0]}: {error.strerror or error}") from error

    def _open_log(self) -> IO[bytes] | None:
        try:
            return self._log.open("ab", buffering=0) if self._log else None
        except OSError as error:
            self._kill()
            raise EngineLost(f"the log cannot be written: {self._log}: {error.strerror or error}") from error

    def _kill(self) -> None:
        if self._process is not None:
            _kill_group(self._process.pid)

    # ---- requests -----------------------------------------------------------------------------------------------

    def next_request(self) -> int:
        """A number that no request has had."""
        self._numbers += 1
        return self._numbers

    def send(self, frame: Any) -> None:
        """Send a frame. Raises `EngineLost` when there is no engine to send it to."""
        if self._lost is not None or self._process is None:
            raise self._lost or EngineLost("the engine has not been started")
        self._write(self._process, frame)

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

        Raises `RequestFailed` and `EngineLost`.
        """
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[frame.request] = future, answer, interim
        try:
            self.send(frame)
            found = await future
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

    async def compare(self, before: str, after: str, how: Literal["line", "structural"], language: str) -> Compared:
        """Where the text `after` differs from `before`."""
        return await self.ask_patiently(Compare(self.next_request(), before, after, how, language), Compared)

    async def check_ir(self, content: str) -> IrChecked:
        """What is wrong with a module."""
        return await self.ask_patiently(CheckIr(self.next_request(), content), IrChecked)

    async def compile_beside(self, recipe: Recipe) -> Compiled:
        """All stages of a recipe that is compared with others."""
        return await self.ask_patiently(Compile(self.next_request(), recipe, beside=True), Compiled)

    async def run_beside(
        self, recipe: Recipe, repeats: int = 10, inputs: InputChoice = OWN_INPUTS, values: bool = False
    ) -> Ran:
        """What running a recipe that is compared with others gives; with `values`, inputs and outputs, too."""
        frame = Run(self.next_request(), recipe, repeats, beside=True, inputs=inputs, values=values)
        return await self.ask_patiently(frame, Ran)

    async def try_passes(
        self, text: str, candidates: tuple[PassStep, ...], threads: int, came: Interim, seconds: float = 60.0
    ) -> TriedAll:
        """What each candidate would do to a stage: `came` gets a `Tried` for each."""
        frame = TryPasses(self.next_request(), text, candidates, threads, timeout=seconds)
        return await self.ask_patiently(frame, TriedAll, came)

    async def ask_patiently(self, frame: Any, answer: type[Answer], interim: Interim = lambda _frame: None) -> Answer:
        """As `ask`, for what takes long: the engine stops when the caller no longer waits."""
        try:
            return await self.ask(frame, answer, interim)
        except asyncio.CancelledError:
            with contextlib.suppress(EngineLost):
                self.send(Cancel(frame.request))
            raise

    # ---- the wire -----------------------------------------------------------------------------------------------

    def _write(self, process: asyncio.subprocess.Process, frame: Any) -> None:
        assert process.stdin is not None
        if not process.stdin.is_closing():
            process.stdin.write(encode(frame))

    async def _read_frames(
        self, process: asyncio.subprocess.Process, greeted: asyncio.Future[Welcome], errors: asyncio.Task[None]
    ) -> None:
        """Read to the end of the stream, then say why it ended."""
        assert process.stdout is not None
        buffer, decoder, reason = FrameBuffer(), FrameDecoder(EngineFrame), ""
        try:
            while data := await process.stdout.read(_READ):
                for body in buffer.feed(data):
                    reason = self._frame_came(decoder.decode(body), greeted) or reason
            buffer.finish()
        except (WireError, FrameError) as error:
            reason = reason or f"what came from the engine is not the engine's: {error}{_hint(self._command)}"
            _kill_group(process.pid)
        await asyncio.wait([errors], timeout=0.5)
        code = await process.wait()
        lost = EngineLost(reason or self._how_it_ended(code), self._tail.decode(errors="replace").strip())
        if process is self._process or not greeted.done():
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

    def _how_it_ended(self, code: int) -> str:
        how = f"exit code {code}" if code >= 0 else signal.Signals(-code).name
        last = self._tail.decode(errors="replace").strip().rpartition("\n")[2]
        return f"the engine ended ({how})" + (f": {last}" if last else "")

    def _lose(self, lost: EngineLost) -> None:
        self._lost = lost
        self._frames.put_nowait(lost)
        for future, _, _ in self._waiting.values():
            if not future.done():
                future.set_exception(lost)

    async def _read_log(self, process: asyncio.subprocess.Process, log: IO[bytes] | None) -> None:
        assert process.stderr is not None
        while data := await process.stderr.read(_READ):
            self._tail = (self._tail + data)[-_TAIL:]
            if log is not None:
                log.write(data)
        if log is not None:
            log.close()


def default_command() -> list[str]:
    """The engine of this installation; the current folder is kept off its import path."""
    safe = ["-P"] if sys.version_info >= (3, 11) else []
    return [sys.executable, *safe, "-m", "buddy.compiler.engine"]


def _hint(command: Sequence[str]) -> str:
    if Path(command[0]).name not in ("ssh", "mosh"):
        return ""
    return " · does the remote shell print something at login? It must be silent when it is not interactive"


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
