"""The `Action` dataclass and the list of panes."""

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

# Action id to the keys that the user's settings assign to it.
_replaced: dict[str, tuple[str, ...]] = {}


def replace_keys(keys: Mapping[str, tuple[str, ...]]) -> None:
    """Assign `keys` to the actions with these ids, and restore the default keys of all others."""
    _replaced.clear()
    _replaced.update(keys)


@dataclass(frozen=True)
class Action:
    """A command of the workbench.

    `blocked` returns the reason why the action is disabled, or an empty string. `own_keys` are the default keys.
    `handler` is `TARGET.METHOD`; the target is the id of a pane, `pane` for the pane that has focus, or a name in
    `Workbench.targets`.
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
        """The name of the object whose method performs the action."""
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
