"""What an action is, and which panes there are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from buddy.app.actions.situation import Situation

Pane = Literal["app", "any", "graph", "passes", "ir", "outputs"]
PANES: tuple[Pane, ...] = ("graph", "passes", "ir", "outputs")
PANE_TITLES: dict[Pane, str] = {"graph": "Graph", "passes": "Passes", "ir": "IR", "outputs": "Outputs"}

Blocked = Callable[[Situation], str]


@dataclass(frozen=True)
class Action:
    """`blocked` returns the reason why the action is impossible now, "" when it is possible."""

    id: str
    keys: tuple[str, ...]
    title: str
    tooltip: str
    handler: str
    pane: Pane = "app"
    blocked: Blocked = lambda situation: ""
    footer: str = ""
    anywhere: bool = False

    @property
    def key(self) -> str:
        return self.keys[0] if self.keys else ""
