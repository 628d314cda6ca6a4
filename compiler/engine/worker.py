"""A supervised worker: a process that is restarted when it exits, and answers one request at a time.

`HostStart` decides when the host worker starts.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from buddy.compiler.protocol import Diagnostic, WorkerState
from buddy.compiler.protocol.connection import FrameDecoder, FrameError, WorkerEnd, encode
from buddy.compiler.protocol.errors import BuddyError
from buddy.compiler.protocol.worker_messages import FailureReply, LogText, Message, Ready, Reply
from buddy.compiler.support.processes.jobs import JobFailed
from buddy.compiler.support.processes.worker_process import ProcessEvents, WorkerProcess
from buddy.compiler.support.timing import main_thread_wait_seconds

# After this number of processes in sequence that exit before they are ready, no other one is started.
_MAX_FALSE_STARTS = 3
# The time in seconds in which a process has to reply to a request to stop.
_STOP_SECONDS = 3.0
# `replace_if_unstarted` replaces a process that has not started after this time in seconds; a start takes a few
# seconds. Time in which the process waits for a core does not count: its replacement would wait as long.
START_SECONDS = 10.0
_POLL_SECONDS = 0.005

log = logging.getLogger("buddy.engine")
# Handles a note: a message that a worker sends before its reply.
Handler = Callable[[Message], None]


class WorkerDied(BuddyError):
    """The process exited before it replied. `how` describes the exit; `tail` is the end of its stderr output."""

    def __init__(self, worker: str, how: str, tail: str = "") -> None:
        super().__init__(f"the {worker} worker ended: {how}")
        self.worker, self.how, self.tail = worker, how, tail


class WorkerRequestError(BuddyError):
    """The worker replied that the request failed."""

    def __init__(self, reply: FailureReply) -> None:
        super().__init__(reply.diagnostic)
        self.reply = reply


@dataclass(frozen=True)
class WorkerListener:
    """The functions that workers call.

    `on_state` gets the new state of a worker. `on_output` gets the name of a worker, the name of its stream, and the
    bytes that it has written there. While `congested` returns true, output is not read.
    """

    on_state: Callable[[WorkerState], None]
    on_output: Callable[[str, str, bytes], None]
    congested: Callable[[], bool]


class EngineWorker:
    """Starts a process that runs `function`, restarts it when it exits, and calls it.

    `function` is "module:name", and `replies` the union of all messages that the process sends. `generation` is the
    number of processes started so far; data that was sent to one process must be sent again to the next. A caller that
    makes several calls to the same process holds `lock`.
    """

    def __init__(self, name: str, function: str, replies: Any, listener: WorkerListener) -> None:
        self.name = name
        self.lock = asyncio.Lock()
        self.generation = 0
        self.state = WorkerState(name, "dead", "not started")
        self._function, self._decoder = function, FrameDecoder(replies)
        self._listener = listener
        self._process: WorkerProcess | None = None
        # Done when the current process can be called, or has exited before it could be called.
        self._ready: asyncio.Future[None] | None = None
        # The reply to the running call, and the function that handles its notes; `None` without a call.
        self._reply: asyncio.Future[Reply] | None = None
        self._handler: Handler | None = None
        self._kill_reason = ""
        self._kill_requested = False
        # The number of processes in sequence that have exited before they were ready.
        self._false_starts = 0
        self._start_time = 0.0
        self._closing = False

    # ---- start and end -------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Starts a process unless one exists."""
        if self._process is not None or self._closing:
            return
        self.generation += 1
        self._start_time = time.monotonic()
        self._kill_reason, self._kill_requested = "", False
        self._ready = _new_future()
        self._set_state("starting")
        events = ProcessEvents(
            on_body=self._receive_body,
            on_output=lambda stream, data: self._listener.on_output(self.name, stream, data),
            on_stop=self._report_stop,
            on_exit=self._handle_exit,
            is_congested=self._listener.congested,
        )
        self._process = WorkerProcess(self._function, events)

    def kill(self, reason: str) -> None:
        """Kills the process; another one starts when it has exited."""
        self._kill_requested = self._process is not None
        self._kill(reason)

    def _kill(self, reason: str) -> None:
        """Kills the process; `reason` describes its exit. Called directly if the process has misbehaved."""
        if self._process is not None:
            self._kill_reason = reason
            self._process.kill()

    def replace_if_unstarted(self) -> None:
        """Replaces a process that has not started within `START_SECONDS`, or that a signal stopped while it started."""
        if not self.is_ready and (self.state.state == "stopped" or self._starting_seconds() > START_SECONDS):
            self.kill("it did not start in time")

    def _starting_seconds(self) -> float:
        """Returns the time since the process was created, less the time in which it waited for a core."""
        pid = self._process.pid if self._process is not None else 0
        return time.monotonic() - self._start_time - main_thread_wait_seconds(pid)

    async def restart(self, reason: str) -> None:
        """Kills the process and waits until its replacement has started."""
        generation = self.generation
        self.kill(reason)
        while self.generation == generation and self._process is not None:
            await asyncio.sleep(_POLL_SECONDS)

    async def close(self) -> None:
        """Kills the process for good and waits until it has exited."""
        self._closing = True
        self.kill("the engine ends")
        while self._process is not None:
            await asyncio.sleep(_POLL_SECONDS)

    @property
    def is_ready(self) -> bool:
        return self._ready is not None and self._ready.done() and self._process is not None

    async def wait_until_ready(self) -> None:
        """Waits until the process can be called. Raises `WorkerDied` if several processes in sequence fail to start."""
        for attempt in range(1, _MAX_FALSE_STARTS + 1):
            self.start()
            assert self._ready is not None
            try:
                return await asyncio.shield(self._ready)
            except WorkerDied:
                if attempt == _MAX_FALSE_STARTS:
                    raise

    # ---- calls --------------------------------------------------------------------------------------------------

    async def call(self, request: Message, handler: Handler | None = None, stop: Message | None = None) -> Any:
        """Sends `request`, and returns the reply to it. Notes that come before the reply go to `handler`.

        If the call is cancelled, `stop` is sent, and the process is killed unless it replies within a few seconds.
        Raises `WorkerDied` if the process exits, and `WorkerRequestError` if the reply is `FailureReply`.
        """
        await self.wait_until_ready()
        assert self._process is not None
        self._reply, self._handler = _new_future(), handler
        if self.state.state != "stopped":
            self._set_state("busy")
        self._process.discard_output()
        self._process.send(encode(request))
        try:
            return _check_reply(await asyncio.shield(self._reply))
        except asyncio.CancelledError:
            await self._end_call(stop)
            raise
        finally:
            self._reply = self._handler = None
            if self.is_ready:
                self._set_state("ready")

    async def _end_call(self, stop: Message | None) -> None:
        """Ends the running call, by sending `stop` if possible, otherwise by killing the process."""
        reply, process = self._reply, self._process
        if reply is None or process is None or reply.done():
            return
        self._handler = None
        if stop is not None:
            process.send(encode(stop))
            await asyncio.wait([reply], timeout=_STOP_SECONDS)
        if not reply.done():
            self.kill("cancelled")
            await asyncio.wait([reply], timeout=_STOP_SECONDS)
        if reply.done():
            reply.exception()  # marks the exception as retrieved; asyncio logs others

    # ---- messages from the process ---------------------------------------------------------------------------------

    def _receive_body(self, body: bytes) -> None:
        try:
            message = self._decoder.decode(body)
        except FrameError as error:
            log.error("%s worker: %s", self.name, error)
            self._kill(f"it sent {error}")
            return
        if isinstance(message, Ready):
            self._mark_ready(message)
        elif isinstance(message, Reply):
            self._receive_reply(message)
        elif isinstance(message, LogText):
            log.error("%s worker: %s", self.name, message.text)
        elif self._handler is not None:
            self._handle_note(message, self._handler)

    def _handle_note(self, message: Message, handler: Handler) -> None:
        """Handles a note. If `handler` raises, kills the process, because the call would otherwise never end."""
        try:
            handler(message)
        except Exception as error:
            log.exception("%s worker: %s", self.name, type(message).__name__)
            self._kill(f"the engine could not handle its message: {error}")

    def _mark_ready(self, message: Ready) -> None:
        self._false_starts = 0
        self._set_state("ready", f"started in {message.seconds:.1f} s")
        if self._ready is not None and not self._ready.done():
            self._ready.set_result(None)

    def _receive_reply(self, message: Reply) -> None:
        assert self._process is not None
        self._process.read_output()
        if self._reply is not None and not self._reply.done():
            self._reply.set_result(message)

    def _report_stop(self, stopped: bool) -> None:
        """Reports that a signal has stopped or continued the process."""
        if stopped:
            self._set_state("stopped", "suspended by a signal; continue the process, or cancel to start a new one")
        elif self.is_ready:
            self._set_state("busy" if self._reply is not None else "ready", "continued")
        else:
            self._set_state("starting", "continued")

    def _handle_exit(self, how: str) -> None:
        """Fails the waiting calls, and starts the next process unless several have failed to start."""
        assert self._process is not None
        tail, self._process = self._process.tail, None
        had_started = self._ready is not None and self._ready.done()
        self._false_starts += not had_started
        restarts = self._false_starts < _MAX_FALSE_STARTS and not self._closing
        died = WorkerDied(self.name, self._kill_reason or how, tail)
        self._set_state("dead", died.how, self._end_kind(had_started), restarts)
        for future in (self._ready, self._reply):
            if future is not None and not future.done():
                future.set_exception(died)
                future.exception()  # marks the exception as retrieved; asyncio logs others
        if restarts:
            self.start()
        else:
            self._false_starts = 0

    def _end_kind(self, had_started: bool) -> WorkerEnd:
        """Returns the cause or time of the exit: "asked" (by `kill`), in a "request", "idle", or during the "start"."""
        if self._kill_requested:
            return "asked"
        if self._reply is not None and not self._reply.done():
            return "request"
        return "idle" if had_started else "start"

    def _set_state(self, state: Any, reason: str = "", end: WorkerEnd = "", restarts: bool = False) -> None:
        self.state = WorkerState(self.name, state, reason, end, restarts)
        log.info("%s worker: %s %s", self.name, state, reason)
        self._listener.on_state(self.state)


def describe_death(died: WorkerDied, what: str, where: str, todo: str) -> Diagnostic:
    """Returns the diagnostic of a worker's exit: `what`, followed by how the process exited in parentheses."""
    return Diagnostic(f"{what} ({died.how})", where, todo, detail=died.tail)


async def wait_for_start(worker: EngineWorker, failure: Diagnostic) -> None:
    """Waits until `worker` can be called. Raises `JobFailed` with `failure`, and how the process exited."""
    try:
        await worker.wait_until_ready()
    except WorkerDied as died:
        raise JobFailed(_death_diagnostic(died, failure)) from died


async def call_for_job(
    worker: EngineWorker,
    request: Message,
    failure: Diagnostic,
    handler: Handler | None = None,
    stop: Message | None = None,
) -> Any:
    """Returns the result of `EngineWorker.call`. Raises `JobFailed`, with `failure` if the process exits."""
    try:
        return await worker.call(request, handler, stop)
    except WorkerRequestError as error:
        raise JobFailed(error.diagnostic) from error
    except WorkerDied as died:
        raise JobFailed(_death_diagnostic(died, failure)) from died


def _death_diagnostic(died: WorkerDied, failure: Diagnostic) -> Diagnostic:
    return describe_death(died, failure.what, failure.where, failure.todo)


def _check_reply(reply: Reply) -> Reply:
    if isinstance(reply, FailureReply):
        raise WorkerRequestError(reply)
    return reply


def _new_future() -> asyncio.Future[Any]:
    return asyncio.get_running_loop().create_future()


# ---- the start of the host -------------------------------------------------------------------------------------------


# The delay of the host's start, in seconds, in which the client may connect and ask to open a program.
_DELAY_SECONDS = 0.3


class HostStart:
    """Starts the host, at once or after a delay.

    The start waits while the client draws a program of an earlier session. The compiler worker is started elsewhere: by
    the first request that needs it or opens a new program. The results of an earlier session need no compiler.
    """

    def __init__(self, start_host: Callable[[], None]) -> None:
        self._start_host = start_host
        self._timer: asyncio.TimerHandle | None = None
        self._may_start = asyncio.Event()
        self._may_start.set()

    def schedule(self) -> None:
        """Starts the host after `_DELAY_SECONDS`, so that it is ready when the client needs it."""
        self._timer = asyncio.get_running_loop().call_later(_DELAY_SECONDS, self.start_now)

    def start_now(self) -> None:
        """Starts the host, unless it runs."""
        self._stop_timer()
        self._start_host()

    @contextmanager
    def postponed(self) -> Iterator[None]:
        """Cancels a scheduled start. `wait_until_allowed` waits until the `with` block ends."""
        self._stop_timer()
        self._may_start.clear()
        try:
            yield
        finally:
            self._may_start.set()

    async def wait_until_allowed(self) -> None:
        """Waits until no `postponed` block is active."""
        await self._may_start.wait()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
