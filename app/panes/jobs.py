"""Jobs in the background, and how many of them keep the workbench busy."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from textual.app import App
from textual.timer import Timer

from buddy.app.panes.status import Status
from buddy.app.session.requests import Requester
from buddy.app.widgets.background import start_worker
from buddy.compiler.protocol import Progress

Result = TypeVar("Result")
Work = Callable[..., Coroutine[Any, Any, None]]


class Jobs:
    """Starts jobs, counts those that the user waits for, and calls `note_busy` when that number changes."""

    def __init__(self, app: App[Any], status: Status, requester: Requester, note_busy: Callable[[], None]) -> None:
        self._app, self._status, self._requester, self._note_busy = app, status, requester, note_busy
        self.waits = 0

    @property
    def waiting(self) -> bool:
        """True while the user waits for a job."""
        return self.waits > 0

    def begin(self, group: str, work: Work, *arguments: Any) -> None:
        """Run `work` in the background, and cancel the running job of its group."""
        start_worker(self._app, group, work, *arguments)

    def later(self, seconds: float, act: Callable[[], Any]) -> Timer:
        """Call `act` after `seconds`, unless the timer is stopped or the application exits first."""
        return self._app.set_timer(seconds, act)

    @contextmanager
    def wait(self) -> Iterator[None]:
        """Mark the workbench as busy during this block; blocks may overlap."""
        self.waits += 1
        self._note_busy()
        try:
            yield
        finally:
            self.waits -= 1
            if self._app.is_running:
                self._note_busy()
                self._status.redraw()

    async def result_of(self, request: Awaitable[Result], failed: str = "", stopped: str = "") -> Result | None:
        """Wait for a request of the session. Returns its answer, or shows the reason and returns `None`.

        The reason follows the words `failed`, such as "not profiled"; for a request that the user has cancelled,
        `stopped` is shown instead.
        """
        with self.wait():
            return await self._requester.answered(request, failed, stopped)

    def single(self, group: str, under_way: str) -> SingleJob:
        """A job of which there is one at a time."""
        return SingleJob(self, self._status, group, under_way)

    def progress(self, said: Callable[[str], str]) -> Callable[[object], None]:
        """A function that takes the frames before an answer, and says of progress what `said` makes of it."""

        def came(frame: object) -> None:
            if isinstance(frame, Progress):
                self._status.say(said(frame.what))

        return came


class SingleJob:
    """A job that takes long, of which there is one at a time; `under_way` is said to who asks for another."""

    def __init__(self, jobs: Jobs, status: Status, group: str, under_way: str) -> None:
        self._jobs, self._status, self._group, self._under_way = jobs, status, group, under_way
        self.running = False

    def may_begin(self) -> bool:
        """Whether none is under way; says so where one is."""
        if self.running:
            self._status.say(self._under_way)
        return not self.running

    def begin(self, work: Work, *arguments: Any) -> None:
        """Have `work` done in the background."""
        self._jobs.begin(self._group, work, *arguments)

    async def result_of(self, request: Awaitable[Result], failed: str, stopped: str = "") -> Result | None:
        """As `Jobs.result_of`; the job is running until then."""
        self.running = True
        try:
            return await self._jobs.result_of(request, failed, stopped)
        finally:
            self.running = False
