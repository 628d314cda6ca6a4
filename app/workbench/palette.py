"""The command palette: a search over the actions of the registry."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from textual.command import DiscoveryHit, Hit, Hits, Provider

from buddy.app.actions import ACTIONS, PANE_TITLES, Action

if TYPE_CHECKING:
    from buddy.app.workbench.app import Workbench

HIDDEN = {"palette", "phase.number"}


class ActionCommands(Provider):
    """Enabled actions are first; disabled ones have the reason."""

    @property
    def _bench(self) -> Workbench:
        from buddy.app.workbench.app import Workbench

        assert isinstance(self.app, Workbench)
        return self.app

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
