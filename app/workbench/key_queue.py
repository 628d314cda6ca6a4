"""Delivers keys and pasted text one at a time: each when the previous one has had all its effects."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, NamedTuple, Protocol

from textual import events
from textual.app import App
from textual.message_pump import MessagePump
from textual.widgets import Input, TextArea

from buddy.app.widgets.cursor_view import CursorView

# How often it is checked whether a job has opened its screen.
OPENING_CHECK_SECONDS = 0.02
# After this time, a message says that the keys wait for the screen.
OPENING_MESSAGE_SECONDS = 0.5
# After this time, the next key is delivered although a widget is still busy with the previous one.
DELIVERY_SECONDS = 2.0
# The number of rounds through the message queues after which the effects of a key are complete. At least two, because a
# binding may post a message; more while the focus moves, up to the maximum.
_MIN_ROUNDS, _MAX_ROUNDS = 2, 10
# The keys that cancel the job that the keys wait for.
_CANCEL_KEYS = ("ctrl+c", "escape")


class OpeningJobs(Protocol):
    """The jobs that open a screen when the engine has answered. `is_opening` says whether one is running."""

    @property
    def is_opening(self) -> bool: ...
    def cancel_opening(self) -> None: ...


class _Passage(NamedTuple):
    """A callback in the queue of one object of a path. When it is called, the messages before it have been handled.

    `remaining` are the next objects of the path, `generation` is the number of the key whose effects are awaited. The
    callback is a method, because Textual inspects the signature of a method only once, but of a `partial` each time.
    """

    remaining: list[MessagePump]
    generation: int
    pass_through: Callable[[list[MessagePump], int], Awaitable[None]]

    async def go_on(self) -> None:
        """Passes through the remaining queues."""
        await self.pass_through(self.remaining, self.generation)


class KeyQueue:
    """Delivers keys and pasted text one at a time: each after all effects of the previous one.

    Textual passes a key through the queues of the focused widget and of all its parents, and then looks up the binding.
    Later still, it moves the focus and mounts screens. Without this queue, keys that arrive in one burst would all go
    to the widget that has focus at the first key.
    """

    def __init__(
        self,
        app: App[Any],
        jobs: OpeningJobs,
        deliver: Callable[[events.Event], Awaitable[None]],
        say: Callable[[str], object],
    ) -> None:
        self._app, self._jobs, self._deliver, self._say = app, jobs, deliver, say
        self._waiting: deque[events.Event] = deque()
        self._delivering = False
        # The number of the key whose effects are awaited, and of the rounds through the queues since it was delivered.
        self._generation = self._rounds = 0
        # The screen and the focused widget when the last round began.
        self._focus: tuple[object, object] = (None, None)
        # Calls `_give_up`.
        self._time_limit: asyncio.TimerHandle | None = None

    def use(self, jobs: OpeningJobs, say: Callable[[str], object]) -> None:
        """Replaces the jobs to wait for, and the function that shows messages, after another program was opened."""
        self._jobs, self._say = jobs, say

    async def take(self, event: events.Key | events.Paste) -> None:
        """Delivers a key or a paste now, or after the effects of the previous ones.

        A cancel key first cancels the job that the waiting keys wait for, and drops them.
        """
        if self._jobs.is_opening and isinstance(event, events.Key) and event.key in _CANCEL_KEYS:
            self._waiting.clear()
            self._jobs.cancel_opening()
        self._waiting.append(event)
        if not self._delivering:
            self._delivering = True
            await self._deliver_next()

    async def _deliver_next(self, waited: float = 0.0) -> None:
        """Delivers the first waiting event. While a job is about to open a screen, checks again later instead.

        `waited` is the time in seconds that the event has waited for that screen.
        """
        if not self._waiting:
            self._delivering = False
            return
        if self._jobs.is_opening:
            if waited < OPENING_MESSAGE_SECONDS <= waited + OPENING_CHECK_SECONDS:
                self._say("Keys wait until the screen opens. Press ctrl+c to cancel")
            self._app.set_timer(OPENING_CHECK_SECONDS, partial(self._deliver_next, waited + OPENING_CHECK_SECONDS))
            return
        path = self._path()
        self._rounds = 0
        self._generation += 1
        self._limit_time()
        event = self._waiting.popleft()
        await self._deliver(event)
        while self._waiting and self._can_deliver_next(event):
            event = self._waiting.popleft()
            await self._deliver(event)
        await self._pass_through(path, self._generation)

    def _can_deliver_next(self, event: events.Event) -> bool:
        """Whether the next event need not wait for the effects of `event`.

        True if the focus has not moved, and the messages in the queues change at most a text.
        """
        app = self._app
        if (app.screen, app.focused) != self._focus or self._jobs.is_opening or app._exit:
            return False
        if isinstance(app.focused, CursorView):
            return True
        typed = isinstance(event, events.Paste) or (isinstance(event, events.Key) and event.is_printable)
        return typed and isinstance(app.focused, Input | TextArea)

    def _limit_time(self) -> None:
        """Gives up waiting for the effects of the current key after `DELIVERY_SECONDS`."""
        loop = asyncio.get_running_loop()
        self._time_limit = loop.call_later(DELIVERY_SECONDS, self._give_up, self._generation)

    def _path(self) -> list[MessagePump]:
        """Returns the objects whose queues a key passes: the focused widget, its parents, the screen, the application.

        Records the focus.
        """
        screen, focused = self._app.screen, self._app.focused
        self._focus = (screen, focused)
        return [*(node for node in (focused or screen).ancestors_with_self if node is not self._app), self._app]

    async def _pass_through(self, path: list[MessagePump], generation: int) -> None:
        """Delivers the next key when the queues of `path` have handled their messages, one after the other.

        A screen handles its queue once it is mounted.
        """
        if generation != self._generation:
            return  # `_give_up` has delivered the next key
        for index, pump in enumerate(path):
            passage = _Passage(path[index + 1 :], generation, self._pass_through)
            if pump.post_message(events.Callback(callback=passage.go_on)):
                return
        self._rounds += 1
        focus = (self._app.screen, self._app.focused)
        if self._rounds < _MIN_ROUNDS or (focus != self._focus and self._rounds < _MAX_ROUNDS):
            await self._pass_through(self._path(), generation)
            return
        if self._time_limit is not None:
            self._time_limit.cancel()
        await self._deliver_next()

    def _give_up(self, generation: int) -> None:
        """Delivers the next key although a widget has not finished with this one, unless a screen is being mounted."""
        if generation != self._generation or not self._app.is_running:
            return
        if self._app.screen.is_mounted:
            self._generation += 1
            self._app.call_later(self._deliver_next)
        else:
            self._limit_time()
