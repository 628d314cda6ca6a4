"""Defines `Action`, a command with its keys; the panes; and the keys that the user's settings assign."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from buddy.app.actions.synonyms import SYNONYMS

if TYPE_CHECKING:
    from buddy.app.actions.situation import Situation

# Where an action works: in one pane, in the pane that has focus whichever it is ("any"), or in the whole workbench
# ("app").
Pane = Literal["app", "any", "graph", "passes", "ir", "source", "plugin", "outputs"]
PANES: tuple[Pane, ...] = ("graph", "passes", "ir", "source", "plugin", "outputs")
PANE_TITLES: dict[Pane, str] = {
    "graph": "Graph", "passes": "Passes", "ir": "IR", "source": "Source", "plugin": "Plug-in",
    "outputs": "Outputs",
}  # fmt: skip

# Returns the reason why an action is disabled in a situation; empty if it is enabled.
Precondition = Callable[["Situation"], str]

# All actions by id. `buddy.app.actions` fills it: it imports the modules that define them, and these import this one.
BY_ID: dict[str, Action] = {}
# The keys that the user's settings assign, by action id.
_user_keys: dict[str, tuple[str, ...]] = {}


def replace_keys(keys: Mapping[str, tuple[str, ...]]) -> None:
    """Assign `keys` to the actions with these ids, and restore the default keys of all others."""
    _user_keys.clear()
    _user_keys.update(keys)


@dataclass(frozen=True)
class Action:
    """A command of the workbench.

    `blocked` returns the reason why the action is disabled, or an empty string. `handler` is `TARGET.METHOD`; the
    target is the id of a pane, `pane` for the pane that has focus, or a name in `Workbench.targets`. With `footer`, the
    key line lists the action under this name. With `anywhere`, the keys work in all panes. `instead` maps a pane to the
    id of another action, which is performed while that pane has focus and this action is disabled.
    """

    id: str
    default_keys: tuple[str, ...]
    title: str
    tooltip: str
    handler: str
    pane: Pane = "app"
    blocked: Precondition = lambda situation: ""
    footer: str = ""
    anywhere: bool = False
    instead: Mapping[Pane, str] = field(default_factory=dict, compare=False)

    @property
    def synonyms(self) -> tuple[str, ...]:
        """More words by which the palette finds the action."""
        return tuple(SYNONYMS.get(self.id, "").split())

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys in use: those of the user's settings, or the default keys."""
        return _user_keys.get(self.id, self.default_keys)

    @property
    def target(self) -> str:
        """The name of the object whose method performs the action."""
        return self.handler.partition(".")[0]

    @property
    def method(self) -> str:
        """The name of the method that performs the action."""
        return self.handler.partition(".")[2]

    def works_in(self, pane: str) -> bool:
        """Whether the keys of the action work while `pane` has focus."""
        return self.pane in (pane, "any", "app") or self.anywhere

    @property
    def is_remapped(self) -> bool:
        """Whether the user's settings assign the keys, perhaps none."""
        return self.id in _user_keys

    @property
    def key(self) -> str:
        """The first key in use, or an empty string."""
        return self.keys[0] if self.keys else ""


def key_of(action_id: str) -> str:
    """The first key in use of an action, for a message; without a key, the title that the palette lists."""
    action = BY_ID[action_id]
    return action.key or f"{action.title!r} in the palette"
