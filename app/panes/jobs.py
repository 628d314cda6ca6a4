"""Work in the background: jobs, the messages on the status line about them, and requests about the texts of stages."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, TypeVar

from textual.app import App
from textual.screen import Screen
from textual.timer import Timer
from textual.worker import Worker

from buddy.app.reports.text.search_hits import Pattern
from buddy.app.session.requests import Requester
from buddy.app.widgets.textual_helpers import start_worker
from buddy.compiler import protocol as p
from buddy.compiler.protocol import Progress

# The time that a message stays on the status line.
MESSAGE_SECONDS = 6.0
# The number of messages that the log keeps.
MAX_MESSAGES = 200


def _ignore(_message: str) -> None:
    pass


class Status:
    """Shows a message for `MESSAGE_SECONDS`. `redraw` updates the header, the status line and the keys."""

    def __init__(self, app: App[Any], redraw: Callable[[], None]) -> None:
        self._app = app
        self._clear_timer: Timer | None = None
        self.redraw = redraw
        self.message = ""
        # Called with each message of `say`.
        self.on_message: Callable[[str], None] = _ignore
        # Called with each message of `show_progress`.
        self.on_progress: Callable[[str], None] = _ignore
        # The log: the times at which messages were shown, as `HH:MM:SS`, and the messages.
        self.messages: list[tuple[str, str]] = []

    def say(self, message: str) -> None:
        """Shows a message for `MESSAGE_SECONDS`. It replaces the current message. The log keeps it."""
        self.messages.append((time.strftime("%H:%M:%S"), message))
        del self.messages[:-MAX_MESSAGES]
        self.on_message(message)
        self._show(message)

    def show_progress(self, message: str) -> None:
        """Shows a message about the progress of a job for `MESSAGE_SECONDS`. The log does not keep the message."""
        self.on_progress(message)
        self._show(message)

    def _show(self, message: str) -> None:
        self.message = message
        if self._clear_timer is not None:
            self._clear_timer.stop()
        self._clear_timer = self._app.set_timer(MESSAGE_SECONDS, self.clear)
        self.redraw()

    def clear(self) -> None:
        self.message = ""
        self.redraw()


Result = TypeVar("Result")
Work = Callable[..., Coroutine[Any, Any, None]]


class Jobs:
    """Starts jobs (asynchronous functions that run as workers), and counts those that the user waits for.

    A job belongs to a group; starting another one of the group cancels it. `update_busy` is called when the number of
    jobs that the user waits for has changed.
    """

    def __init__(self, app: App[Any], status: Status, requester: Requester, update_busy: Callable[[], None]) -> None:
        self._app, self._status, self._requester, self._update_busy = app, status, requester, update_busy
        self.busy_count = 0
        # The job of `begin_opening`, and the screen that was on top when it started.
        self._opening: tuple[Worker[None], Screen[Any]] | None = None

    @property
    def is_busy(self) -> bool:
        """Whether the user waits for a job, in a block of `busy`."""
        return self.busy_count > 0

    def begin(self, group: str, work: Work, *arguments: object) -> None:
        """Runs `work(*arguments)` in the background, after cancelling the running job of `group`."""
        start_worker(self._app, group, work, *arguments)

    def begin_opening(self, group: str, work: Work, *arguments: object) -> None:
        """Runs `work(*arguments)`, which opens a screen, in the background. Keys wait until the screen is open."""
        self._opening = (start_worker(self._app, group, work, *arguments), self._app.screen)

    @property
    def is_opening(self) -> bool:
        """Whether the job of `begin_opening` is running and has not opened its screen yet."""
        if self._opening is None:
            return False
        worker, screen = self._opening
        if worker.is_finished or self._app.screen is not screen:
            self._opening = None
        return self._opening is not None

    def cancel_opening(self) -> None:
        """Cancels the job of `begin_opening`, so that keys no longer wait."""
        if self._opening is not None:
            self._opening[0].cancel()
            self._opening = None

    def call_later(self, seconds: float, callback: Callable[[], object]) -> Timer:
        """Calls `callback` after `seconds`, unless the returned timer is stopped or the application exits first."""
        return self._app.set_timer(seconds, callback)

    @contextmanager
    def busy(self) -> Iterator[None]:
        """Shows that the workbench is busy during this block; blocks may overlap."""
        self.busy_count += 1
        self._update_busy()
        self._status.redraw()
        try:
            yield
        finally:
            self.busy_count -= 1
            if self._app.is_running:
                self._update_busy()
                self._status.redraw()

    async def result_of(self, request: Awaitable[Result], failed: str = "", stopped: str = "") -> Result | None:
        """Waits for the answer to a request of the session. If the request fails, shows the reason and returns `None`.

        The message is `failed`, such as "not profiled", and the reason, or `stopped` if the user has cancelled.
        """
        with self.busy():
            return await self._requester.await_answer(request, failed, stopped)

    def single_job(self, group: str, busy_message: str) -> SingleJob:
        """Creates a job that runs at most once at a time. Its `may_begin` shows `busy_message` while it runs."""
        return SingleJob(self, self._status, group, busy_message)

    def progress_callback(self, describe: Callable[[str], str]) -> Callable[[object], None]:
        """Creates a callback for the frames before an answer. It shows `describe(activity)` for each `Progress`."""

        def show_progress(frame: object) -> None:
            if isinstance(frame, Progress):
                self._status.show_progress(describe(frame.activity))

        return show_progress


class SingleJob:
    """A long job that runs at most once at a time. `running` is true from its request until the answer."""

    def __init__(self, jobs: Jobs, status: Status, group: str, busy_message: str) -> None:
        self._jobs, self._status, self._group, self._busy_message = jobs, status, group, busy_message
        self.running = False

    def may_begin(self) -> bool:
        """Returns whether the job is not running. If it is running, shows `busy_message`."""
        if self.running:
            self._status.say(self._busy_message)
        return not self.running

    def begin(self, work: Work, *arguments: object) -> None:
        self._jobs.begin(self._group, work, *arguments)

    async def result_of(self, request: Awaitable[Result], failed: str, stopped: str = "") -> Result | None:
        """Like `Jobs.result_of`. The job is `running` until the answer arrives."""
        self.running = True
        try:
            return await self._jobs.result_of(request, failed, stopped)
        finally:
            self.running = False


# ---- requests about the texts of stages ------------------------------------------------------------------------------


class StageQueries(Requester):
    """Sends requests about texts to the engine. `text` is the name of a text there: the hash of its content.

    If a request fails, shows the reason, and returns `None`, an empty result or -1. Cancelling the task that awaits a
    method cancels its request. The first field of a request, 0 here, is its number, which the session sets.
    """

    async def load_lines(self, text: str, start: int, count: int) -> bool:
        """Loads lines into the cache. Returns whether the request succeeded."""

        async def load() -> bool:
            await self._session.cache.load(text, start, count)
            return True

        return await self.await_answer(load()) is not None

    async def compare(
        self, before: str, after: str, how: Literal["line", "structural"], language: str
    ) -> p.Compared | None:
        """Returns the differences between the texts `before` and `after`."""
        return await self.request(p.Compare(0, before, after, how, language))

    async def find_main_line(self, text: str, node: str, fallback_nodes: tuple[str, ...] = ()) -> int:
        """Returns the main line of `node` in `text`, or else of the first of `fallback_nodes` with one, or else -1."""
        line = await self.await_answer(self._session.find_main_line(text, node, fallback_nodes)) if node else None
        return -1 if line is None else line

    async def find_first_line(self, text: str, node: str) -> tuple[int, int] | None:
        """Returns the first line of `text` that comes from `node` (0 if none does), and the number of its lines."""
        page = await self.request(p.FetchLines(0, text, 0, 1))
        if not page:
            return None
        answer = await self.request(p.FindNode(0, text, node)) if node else None
        first_line = answer.lines[0] if answer and answer.lines else 0
        return first_line, page.line_count

    async def find_lines_of_node(self, text: str, node: str) -> tuple[int, ...]:
        """Returns the lines of `text` that come from `node`."""
        answer = await self.request(p.FindNode(0, text, node)) if node else None
        return answer.lines if answer is not None else ()

    async def fetch_text(self, text: str) -> str | None:
        """Returns the full text, in which no constants are elided."""
        return await self.await_answer(self._session.fetch_text(text))

    async def search(self, text: str, pattern: Pattern) -> p.SearchResult | None:
        """Returns the lines of a text that match a pattern."""
        return await self.request(p.Search(0, text, pattern.source, pattern.regex, pattern.ignore_case))

    async def search_each(
        self, texts: Sequence[str], pattern: Pattern, on_frame: Callable[[Any], object] = lambda _frame: None
    ) -> p.FoundEach | None:
        """Returns the lines of each of `texts` that match a pattern. Repeated texts are searched once.

        `on_frame` is called with the progress of a long search.
        """
        frame = p.SearchEach(0, tuple(texts), pattern.source, pattern.regex, pattern.ignore_case)
        return await self.request(frame, on_frame)

    async def list_symbols(self, text: str, language: str) -> tuple[p.Symbol, ...]:
        """Returns the functions, globals and graphs of a text."""
        answer = await self.request(p.ListSymbols(0, text, language))
        return answer.symbols if answer is not None else ()

    async def list_types(self, text: str) -> tuple[p.LongType, ...] | None:
        """Returns the long types that an MLIR text contains several times."""
        answer = await self.request(p.ListTypes(0, text))
        return answer.types if answer is not None else None

    async def find_region(self, text: str, line: int) -> p.Region | None:
        """Returns the region that a line opens, or else the innermost region that contains the line."""
        return await self.request(p.FindRegion(0, text, line))

    async def find_jumps(self, text: str, line: int) -> p.Jumps | None:
        """Returns the jumps of the assembly function that contains a line."""
        return await self.request(p.FindJumps(0, text, line))

    async def find_origins(self, text: str, first: int, last: int) -> tuple[p.LineOrigins, ...]:
        """Returns the nodes that the lines `first` to `last` (inclusive) come from, the node with most lines first."""
        answer = await self.request(p.FindOrigins(0, text, first, last))
        return answer.origins if answer is not None else ()

    async def fetch_characters(self, text: str, line: int, start: int, count: int) -> p.Characters | None:
        """Returns `count` characters, from `start` on, of a line with its constants in full."""
        return await self.request(p.FetchCharacters(0, text, line, start, count))

    async def reprint(self, text: str) -> p.Reprinted | None:
        """Prints an MLIR text in the generic form. The answer names the new text."""
        return await self.request(p.Reprint(0, text))

    async def describe_op(self, name: str) -> str | None:
        """Returns the documentation of an op from its dialect; "" if the bindings have none."""
        answer = await self.request(p.DescribeOp(0, name))
        return answer.text if answer is not None else None
