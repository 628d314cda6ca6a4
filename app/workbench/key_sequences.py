"""How a sequence of keys, or an entry of the command palette, starts an action."""

from __future__ import annotations

from functools import partial
from typing import Protocol, cast

from textual import events
from textual.command import DiscoveryHit, Hit, Hits, Provider
from textual.widget import Widget

from buddy.app import actions
from buddy.app.actions import ACTIONS, PANE_TITLES, Action, Situation
from buddy.app.actions.key_map import Keymap
from buddy.app.panes.pane import Pane
from buddy.app.reports.formatting import Glyphs


class ActionHost(Protocol):
    """The members of the workbench that start an action."""

    glyphs: Glyphs
    keymap: Keymap

    @property
    def focused(self) -> Widget | None: ...
    @property
    def pane(self) -> Pane: ...

    def situation(self) -> Situation: ...
    async def do(self, action: Action) -> None: ...
    def update_chrome(self) -> None: ...


class KeySequences:
    """Handles keys before bindings; `hint` shows the possible second keys of a sequence."""

    def __init__(self, bench: ActionHost) -> None:
        self._bench = bench
        self._prefix = ""
        self.hint = ""

    async def handle(self, event: events.Key) -> bool:
        """Handle a key. Returns whether it was consumed, as both keys of a sequence are. Bindings run later."""
        if self._prefix:
            await self._handle_second(event)
            return True
        return isinstance(self._bench.focused, Pane) and await self._handle_first(key_name(event))

    async def _handle_first(self, key: str) -> bool:
        """Handle the first key of a sequence, or a key of the settings. Returns whether it was consumed."""
        bench, pane = self._bench, self._bench.pane.pane_id
        remapped = bench.keymap.action_for(key, pane)
        if remapped is not None:
            await bench.do(remapped)
        elif actions.sequence_continuations(key, pane):
            self.begin(key)
        elif not bench.keymap.is_dead(key, pane):
            return False
        return True

    def begin(self, key: str) -> None:
        """Handle the first key of a sequence, and show the possible second keys."""
        self._prefix = key
        glyphs, situation = self._bench.glyphs, self._bench.situation()
        here = actions.sequence_continuations(key, self._bench.pane.pane_id)
        choices = [(second, action) for second, action in here if not action.blocked(situation)]
        texts = (f"{key}{second} {action.title.lower()}" for second, action in choices)
        self.hint = f"{key}{glyphs.ellipsis}  " + f" {glyphs.dot} ".join(texts)
        self._bench.update_chrome()

    async def _handle_second(self, event: events.Key) -> None:
        prefix, self._prefix, self.hint = self._prefix, "", ""
        found = dict(actions.sequence_continuations(prefix, self._bench.pane.pane_id)).get(key_name(event))
        if found is not None:
            await self._bench.do(found)
        self._bench.update_chrome()


def key_name(event: events.Key) -> str:
    """A key in the notation of the registry: its character, or its name if it has no visible one."""
    return event.character if event.character and event.is_printable and event.character != " " else event.key


HIDDEN = {"palette", "phase.number"}


class ActionCommands(Provider):
    """Enabled actions are first; disabled ones have the reason."""

    @property
    def _bench(self) -> ActionHost:
        return cast(ActionHost, self.app)

    async def discover(self) -> Hits:
        for action in self._sorted_actions():
            yield DiscoveryHit(command_title(action), partial(self._bench.do, action), help=self._help(action))

    async def search(self, query: str) -> Hits:
        matcher = self.matcher(query)
        for action in self._sorted_actions():
            title = command_title(action)
            score = matcher.match(title)
            if score > 0:
                yield Hit(score, matcher.highlight(title), partial(self._bench.do, action), help=self._help(action))

    def _sorted_actions(self) -> list[Action]:
        situation = self._bench.situation()
        return sorted(filter(is_listed, ACTIONS), key=lambda action: bool(action.blocked(situation)))

    def _help(self, action: Action) -> str:
        reason = action.blocked(self._bench.situation())
        keys = f"  ({', '.join(action.keys)})" if action.keys else ""
        return f"{action.tooltip}{keys}" + (f". Disabled: {reason}" if reason else "")


def is_listed(action: Action) -> bool:
    """Whether the palette lists an action. It omits cursor movement and itself."""
    return action.id not in HIDDEN and not action.id.startswith("move.")


def command_title(action: Action) -> str:
    pane = PANE_TITLES.get(action.pane)
    return f"{pane}: {action.title}" if pane else action.title
