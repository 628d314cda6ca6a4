"""Keys on their way to bindings: those of two strokes, and those that the user's settings have changed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual import events

from buddy.app import actions
from buddy.app.panes.pane import Pane

if TYPE_CHECKING:
    from buddy.app.workbench.app import Workbench


class Strokes:
    """Takes keys before any binding sees them; `hint` says what may follow the first of two strokes."""

    def __init__(self, bench: Workbench) -> None:
        self._bench = bench
        self._prefix = ""
        self.hint = ""

    async def take(self, event: events.Key) -> bool:
        """Whether a key was taken. Both of two strokes are: bindings run later than the next key comes."""
        if self._prefix:
            await self._second(event)
            return True
        return isinstance(self._bench.focused, Pane) and await self._own(stroke(event))

    async def _own(self, key: str) -> bool:
        """Whether a key was taken: the first of two strokes, or one that the settings have changed."""
        bench, pane = self._bench, self._bench.pane.pane_id
        remapped = bench.keymap.action_for(key, pane)
        if remapped is not None:
            await bench.do(remapped)
        elif actions.continuations(key, pane):
            self.begin(key)
        elif not bench.keymap.is_dead(key, pane):
            return False
        return True

    def begin(self, key: str) -> None:
        """Take the first of two strokes, and show what may follow."""
        self._prefix = key
        glyphs, situation = self._bench.glyphs, self._bench.situation()
        here = actions.continuations(key, self._bench.pane.pane_id)
        choices = [(second, action) for second, action in here if not action.blocked(situation)]
        texts = (f"{key}{second} {action.title.lower()}" for second, action in choices)
        self.hint = f"{key}{glyphs.ellipsis}  " + f" {glyphs.dot} ".join(texts)
        self._bench.update_chrome()

    async def _second(self, event: events.Key) -> None:
        prefix, self._prefix, self.hint = self._prefix, "", ""
        found = dict(actions.continuations(prefix, self._bench.pane.pane_id)).get(stroke(event))
        if found is not None:
            await self._bench.do(found)
        self._bench.update_chrome()


def stroke(event: events.Key) -> str:
    """A key as the registry writes it: its character, or its name where it has none that is seen."""
    return event.character if event.character and event.is_printable and event.character != " " else event.key
