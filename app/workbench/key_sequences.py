"""Starts actions from key sequences and from the command palette."""

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
    async def perform(self, action: Action) -> None: ...
    def update_chrome(self) -> None: ...


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
        if remapped is not None:
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


# The palette does not list itself, nor an action that needs the number of a phase.
UNLISTED_ACTIONS = {"palette", "phase.number"}


class ActionCommands(Provider):
    """The entries of the command palette: enabled actions, then disabled ones with the reason."""

    @property
    def _bench(self) -> ActionHost:
        return cast(ActionHost, self.app)

    async def discover(self) -> Hits:
        for action in self._sorted_actions():
            yield DiscoveryHit(command_title(action), partial(self._bench.perform, action), help=self._help(action))

    async def search(self, query: str) -> Hits:
        matcher = self.matcher(query)
        for action in self._sorted_actions():
            title = command_title(action)
            score = matcher.match(title)
            if score > 0:
                command = partial(self._bench.perform, action)
                yield Hit(score, matcher.highlight(title), command, help=self._help(action))

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


def command_title(action: Action) -> str:
    pane = PANE_TITLES.get(action.pane)
    return f"{pane}: {action.title}" if pane else action.title
