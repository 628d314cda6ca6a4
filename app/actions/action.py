"""What an action is, and which panes there are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from buddy.app.actions.situation import Situation

Pane = Literal["app", "any", "graph", "passes", "ir", "source", "outputs"]
PANES: tuple[Pane, ...] = ("graph", "passes", "ir", "source", "outputs")
PANE_TITLES: dict[Pane, str] = {
    "graph": "Graph", "passes": "Passes", "ir": "IR", "source": "Source", "outputs": "Outputs",
}  # fmt: skip

Blocked = Callable[[Situation], str]

# The keys that the user's settings give to actions, by their ids.
_replaced: dict[str, tuple[str, ...]] = {}


def replace_keys(keys: Mapping[str, tuple[str, ...]]) -> None:
    """Give actions other keys than their own, and all others their own again."""
    _replaced.clear()
    _replaced.update(keys)


@dataclass(frozen=True)
class Action:
    """`blocked` returns the reason why the action is impossible now, "" when it is possible.

    `own_keys` are those it has unless the user's settings say otherwise. `handler` is `TARGET.METHOD`: a method of a
    pane by the pane's id, of `pane`, which is the one that has the keys, or of a target of `Workbench.targets`.
    """

    id: str
    own_keys: tuple[str, ...]
    title: str
    tooltip: str
    handler: str
    pane: Pane = "app"
    blocked: Blocked = lambda situation: ""
    footer: str = ""
    anywhere: bool = False

    @property
    def keys(self) -> tuple[str, ...]:
        return _replaced.get(self.id, self.own_keys)

    @property
    def target(self) -> str:
        """The name of the object whose method does the action."""
        return self.handler.partition(".")[0]

    @property
    def method(self) -> str:
        return self.handler.partition(".")[2]

    @property
    def remapped(self) -> bool:
        return self.id in _replaced

    @property
    def key(self) -> str:
        return self.keys[0] if self.keys else ""
