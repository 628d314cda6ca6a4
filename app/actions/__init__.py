"""The registry of all actions, which keys, palette, footer and help read. Does not import Textual.

An action has the pane where it works (`pane`; with `anywhere`, its keys work from the other panes too), the object and
the method that perform it (`handler`), and a precondition (`blocked`). A key sequence is written with a space: `g g`.
"""

from __future__ import annotations

from dataclasses import replace

from buddy.app.actions import ir, panes, recipes, workbench
from buddy.app.actions.action import (
    BY_ID,
    PANE_TITLES,
    PANES,
    PIPELINE_ACTIONS,
    Action,
    Pane,
    Precondition,
    Situation,
    key_of,
    needs_pipeline,
    replace_keys,
)

__all__ = [
    "ACTIONS",
    "BY_ID",
    "PANES",
    "PANE_TITLES",
    "Action",
    "Pane",
    "Precondition",
    "Situation",
    "actions_of_pane",
    "key_of",
    "replace_keys",
    "sequence_continuations",
    "sequence_prefixes",
]  # fmt: skip

# In the order in which the palette and the help list them.
_ACTIONS: tuple[Action, ...] = (
    *workbench.PANE_ACTIONS, *panes.GRAPH_ACTIONS, *panes.PASSES_ACTIONS, *ir.ACTIONS, *panes.SOURCE_ACTIONS,
    *panes.PLUGIN_ACTIONS, *panes.OUTPUTS_ACTIONS,
    *recipes.ACTIONS, *recipes.FRONTEND_ACTIONS, *recipes.BACKEND_ACTIONS, *recipes.EXPORT_ACTIONS,
    *recipes.PROFILE_ACTIONS, *workbench.ACTIONS,
)  # fmt: skip


def _disabled_for_dumps(action: Action) -> Action:
    """`action`, with a precondition that disables it for a dump, in addition to its own precondition."""
    return replace(action, blocked=lambda situation: needs_pipeline(situation) or action.blocked(situation))


ACTIONS = tuple(_disabled_for_dumps(action) if action.id in PIPELINE_ACTIONS else action for action in _ACTIONS)

BY_ID.update((action.id, action) for action in ACTIONS)


def actions_of_pane(pane: str) -> list[Action]:
    """The actions whose `pane` is exactly this one; excludes those of "any" and "app" for another pane."""
    return [action for action in ACTIONS if action.pane == pane]


def sequence_continuations(prefix: str, pane: str) -> list[tuple[str, Action]]:
    """The second keys of the sequences that start with `prefix` in `pane`, with their actions."""
    return [(second, action) for first, second, action in _sequences(pane) if first == prefix]


def sequence_prefixes(pane: str) -> list[str]:
    """The first keys of the sequences of `pane`, each once."""
    return list(dict.fromkeys(first for first, _, _ in _sequences(pane)))


def _sequences(pane: str) -> list[tuple[str, str, Action]]:
    """The first key, the second key and the action of each key sequence that works in `pane`."""
    active = [action for action in ACTIONS if action.works_in(pane)]
    split_keys = [(key.split(), action) for action in active for key in action.keys]
    return [(keys[0], keys[1], action) for keys, action in split_keys if len(keys) == 2]
