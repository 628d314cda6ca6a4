"""Work that goes on beside the keys, and whether any of it is waited for."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

from textual.app import App
from textual.timer import Timer

from buddy.app.panes.status import Status
from buddy.app.widgets.background import begin


class Jobs:
    """Starts jobs, counts those that are waited for, and calls `note_busy` when that number changes."""

    def __init__(self, app: App[Any], status: Status, note_busy: Callable[[], None]) -> None:
        self._app, self._status, self._note_busy = app, status, note_busy
        self.waits = 0

    @property
    def waiting(self) -> bool:
        """Whether a job in the background is waited for."""
        return self.waits > 0

    def begin(self, group: str, work: Callable[..., Coroutine[Any, Any, None]], *arguments: Any) -> None:
        """Have `work` done in the background, in place of whatever its group is at."""
        begin(self._app, group, work, *arguments)

    def later(self, seconds: float, act: Callable[[], Any]) -> Timer:
        """Do `act` after some seconds, unless the timer is stopped before or the application ends."""
        return self._app.set_timer(seconds, act)

    @contextmanager
    def wait(self) -> Iterator[None]:
        """Be busy until the job of this block has ended; several may be under way at once."""
        self.waits += 1
        self._note_busy()
        try:
            yield
        finally:
            self.waits -= 1
            if self._app.is_running:
                self._note_busy()
                self._status.redraw()
