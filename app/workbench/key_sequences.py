"""Delivers keys, and starts actions from key sequences and from the command palette."""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, ClassVar, NamedTuple, Protocol, cast

from textual import events
from textual.app import App
from textual.binding import Binding, BindingType
from textual.command import CommandPalette, DiscoveryHit, Hit, Hits, Provider
from textual.message_pump import MessagePump
from textual.widget import Widget
from textual.widgets import Input, TextArea

from buddy.app import actions
from buddy.app.actions import ACTIONS, PANE_TITLES, Action, Situation
from buddy.app.actions.key_map import Keymap
from buddy.app.panes.pane import Pane
from buddy.app.reports.formatting import Glyphs
from buddy.app.widgets.cursor_view import CursorView

# Seconds between checks whether a job has opened its screen, until a message says what the keys wait for, and until
# a key counts as delivered although a widget is still busy with it.
OPENING_CHECK_SECONDS = 0.02
OPENING_MESSAGE_SECONDS = 0.5
DELIVERY_SECONDS = 2.0
# Passes through the queues after a key. A binding may post a message, so two are the minimum.
_MIN_PASSES, _MAX_PASSES = 2, 10
_CANCEL_KEYS = ("ctrl+c", "escape")


class OpeningJobs(Protocol):
    """The jobs that open a screen when they have an answer of the engine."""

    @property
    def opening(self) -> bool: ...
    def cancel_opening(self) -> None: ...


class _Passage(NamedTuple):
    """A place in the way of a key through the queues. Textual inspects the signature of a method only once."""

    rest: list[MessagePump]
    generation: int
    pass_through: Callable[[list[MessagePump], int], Awaitable[None]]

    async def go_on(self) -> None:
        await self.pass_through(self.rest, self.generation)


class KeyQueue:
    """Delivers keys and pasted text one at a time: each after all effects of the previous one.

    Textual passes a key through the queue of the widget that has focus and of all its parents before it looks up the
    binding, and moves the focus and mounts a screen later still. Without this queue, keys that arrive in one burst
    would all go to the widget that had focus at the first of them.
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
        self._generation = self._passes = 0
        self._focus: tuple[object, object] = (None, None)
        self._time_limit: asyncio.TimerHandle | None = None

    def use(self, jobs: OpeningJobs, say: Callable[[str], object]) -> None:
        """Wait for other jobs, and show messages by `say`, after another program was opened."""
        self._jobs, self._say = jobs, say

    async def take(self, event: events.Key | events.Paste) -> None:
        """Deliver a key or a paste now, or after the ones before it."""
        if self._jobs.opening and isinstance(event, events.Key) and event.key in _CANCEL_KEYS:
            self._waiting.clear()
            self._jobs.cancel_opening()
        self._waiting.append(event)
        if not self._delivering:
            self._delivering = True
            await self._deliver_next()

    async def _deliver_next(self, waited: float = 0.0) -> None:
        """Deliver the first event that waits, unless a job is about to open the screen that it is meant for."""
        if not self._waiting:
            self._delivering = False
            return
        if self._jobs.opening:
            if waited < OPENING_MESSAGE_SECONDS <= waited + OPENING_CHECK_SECONDS:
                self._say("Keys wait until the screen opens. Press ctrl+c to cancel")
            self._app.set_timer(OPENING_CHECK_SECONDS, partial(self._deliver_next, waited + OPENING_CHECK_SECONDS))
            return
        path = self._path()
        self._passes = 0
        self._generation += 1
        self._limit_time()
        event = self._waiting.popleft()
        await self._deliver(event)
        while self._waiting and self._is_complete(event):
            event = self._waiting.popleft()
            await self._deliver(event)
        await self._pass_through(path, self._generation)

    def _is_complete(self, event: events.Event) -> bool:
        """Whether the next event need not wait: the focus stays, and what is in the queues changes at most a text."""
        app = self._app
        if (app.screen, app.focused) != self._focus or self._jobs.opening or app._exit:
            return False
        if isinstance(app.focused, CursorView):
            return True
        typed = isinstance(event, events.Paste) or (isinstance(event, events.Key) and event.is_printable)
        return typed and isinstance(app.focused, Input | TextArea)

    def _limit_time(self) -> None:
        loop = asyncio.get_running_loop()
        self._time_limit = loop.call_later(DELIVERY_SECONDS, self._give_up, self._generation)

    def _path(self) -> list[MessagePump]:
        """The widget that has focus, its parents, the screen and the application: the way of a key."""
        screen, focused = self._app.screen, self._app.focused
        self._focus = (screen, focused)
        return [*(node for node in (focused or screen).ancestors_with_self if node is not self._app), self._app]

    async def _pass_through(self, path: list[MessagePump], generation: int) -> None:
        """Wait for what is in the queues of `path`, one after the other. A screen handles its queue once mounted."""
        if generation != self._generation:
            return  # given up
        for place, pump in enumerate(path):
            passage = _Passage(path[place + 1 :], generation, self._pass_through)
            if pump.post_message(events.Callback(callback=passage.go_on)):
                return
        self._passes += 1
        now = (self._app.screen, self._app.focused)
        if self._passes < _MIN_PASSES or (now != self._focus and self._passes < _MAX_PASSES):
            await self._pass_through(self._path(), generation)
            return
        if self._time_limit is not None:
            self._time_limit.cancel()
        await self._deliver_next()

    def _give_up(self, generation: int) -> None:
        """Deliver the next key although a widget has not finished with this one, unless a screen is being mounted."""
        if generation != self._generation or not self._app.is_running:
            return
        if self._app.screen.is_mounted:
            self._generation += 1
            self._app.call_later(self._deliver_next)
        else:
            self._limit_time()


class ActionHost(Protocol):
    """The members of the workbench that start an action."""

    glyphs: Glyphs
    keymap: Keymap

    @property
    def focused(self) -> Widget | None: ...
    @property
    def pane(self) -> Pane: ...

    def situation(self) -> Situation: ...
    async def perform(self, action: Action) -> None: ...
    def update_chrome(self) -> None: ...
    def pane_commands(self) -> list[tuple[str, str, Callable[[], None]]]: ...


class KeySequences:
    """Handles keys before Textual's bindings. After the first key of a sequence, `hint` lists the second keys."""

    def __init__(self, bench: ActionHost) -> None:
        self._bench = bench
        self._prefix = ""
        self.hint = ""

    async def handle(self, event: events.Key) -> bool:
        """Handle a key of a sequence or of the settings. Returns false for other keys, which are left to bindings."""
        if self._prefix:
            await self._handle_second(event)
            return True
        return isinstance(self._bench.focused, Pane) and await self._handle_first(key_name(event))

    async def _handle_first(self, key: str) -> bool:
        """Handle the first key of a sequence, or a key of the settings. Returns whether it was consumed."""
        bench, pane = self._bench, self._bench.pane.pane_id
        remapped = bench.keymap.action_for(key, pane)
        if self._bench.pane.take_key(key):
            pass
        elif remapped is not None:
            await bench.perform(remapped)
        elif actions.sequence_continuations(key, pane):
            self.begin(key)
        elif not bench.keymap.is_dead(key, pane):
            return False
        return True

    def begin(self, key: str) -> None:
        """Handle the first key of a sequence, and show the possible second keys."""
        self._prefix = key
        glyphs, situation = self._bench.glyphs, self._bench.situation()
        continuations = actions.sequence_continuations(key, self._bench.pane.pane_id)
        enabled = [(second, action) for second, action in continuations if not action.blocked(situation)]
        texts = (f"{key}{second} {action.title.lower()}" for second, action in enabled)
        self.hint = f"{key}{glyphs.ellipsis}  " + f" {glyphs.dot} ".join(texts)
        self._bench.update_chrome()

    async def _handle_second(self, event: events.Key) -> None:
        continuations = dict(actions.sequence_continuations(self._prefix, self._bench.pane.pane_id))
        self._prefix = self.hint = ""
        action = continuations.get(key_name(event))
        if action is not None:
            await self._bench.perform(action)
        self._bench.update_chrome()


def key_name(event: events.Key) -> str:
    """A key in the notation of the action registry: its character, or its name if the character is not visible."""
    return event.character if event.character and event.is_printable and event.character != " " else event.key


class Palette(CommandPalette):
    """The command palette, which ctrl+c closes like every other screen."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("ctrl+c", "escape", show=False, priority=True)]


# The palette does not list itself, nor an action that needs the number of a phase.
UNLISTED_ACTIONS = {"palette", "phase.number"}


class ActionCommands(Provider):
    """The entries of the command palette: enabled actions, then disabled ones with the reason, then plug-ins' panes."""

    @property
    def _bench(self) -> ActionHost:
        return cast(ActionHost, self.app)

    async def discover(self) -> Hits:
        for action in self._sorted_actions():
            yield DiscoveryHit(command_title(action), partial(self._bench.perform, action), help=self._help(action))
        for title, text, show in self._bench.pane_commands():
            yield DiscoveryHit(title, show, help=text)

    async def search(self, query: str) -> Hits:
        matcher = self.matcher(query)
        for action in self._sorted_actions():
            title = command_title(action)
            score = command_score(action, query) or matcher.match(title) / _FUZZY_DIVISOR
            if score > 0:
                command = partial(self._bench.perform, action)
                yield Hit(score, matcher.highlight(title), command, text=title, help=self._help(action))
        for title, text, show in self._bench.pane_commands():
            if matcher.match(title) > 0:
                yield Hit(matcher.match(title), matcher.highlight(title), show, text=title, help=text)

    def _sorted_actions(self) -> list[Action]:
        situation = self._bench.situation()
        return sorted(filter(is_listed, ACTIONS), key=lambda action: bool(action.blocked(situation)))

    def _help(self, action: Action) -> str:
        reason = action.blocked(self._bench.situation())
        keys = f"  ({', '.join(action.keys)})" if action.keys else ""
        return f"{action.tooltip}{keys}" + (f". Disabled: {reason}" if reason else "")


def is_listed(action: Action) -> bool:
    """Whether the palette lists an action. Cursor movements are not listed either."""
    return action.id not in UNLISTED_ACTIONS and not action.id.startswith("move.")


# Textual's scores for similar titles are below 1000; divided by this, below any score of `command_score`.
_FUZZY_DIVISOR = 1000.0


def command_score(action: Action, query: str) -> float:
    """How well the words of a query match an action, 0 if a word matches nothing.

    The key of an action counts most, then words at the start of a word of the title, of a synonym, of the description.
    """
    typed = query.strip()
    if typed and any(typed in (key, key.replace(" ", "")) for key in action.keys):
        return 5.0
    texts = (command_title(action), " ".join(action.synonyms), action.tooltip)
    scored_words = [(4.0 - place, word) for place, text in enumerate(texts) for word in _words(text)]
    best: list[float] = []
    for part in dict.fromkeys(_words(typed)):
        best.append(max((score for score, word in scored_words if word.startswith(part)), default=0.0))
        if not best[-1]:
            return 0.0
    return sum(best) / len(best) if best else 0.0


def _words(text: str) -> list[str]:
    return re.findall(r"[^\s,:;()`]+", text.lower())


def command_title(action: Action) -> str:
    pane = PANE_TITLES.get(action.pane)
    return f"{pane}: {action.title}" if pane else action.title
