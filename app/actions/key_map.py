"""User-defined keys of actions, which replace the default keys. No Textual.

A key is one character (`x`, `/`), a name (`space`, `enter`, `f5`, `ctrl+g`), or two of these separated by a space.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from buddy.app.actions import ACTIONS, BY_ID, PANE_TITLES, Action, Pane, replace_keys

NAMES = (
    "space", "enter", "escape", "tab", "backspace", "delete", "insert", "home", "end", "pageup", "pagedown",
    "up", "down", "left", "right",
)  # fmt: skip
_KEY = re.compile(rf"(?:(?:ctrl|shift|alt)\+)*(?:[a-z0-9]|{'|'.join(NAMES)}|f\d{{1,2}})|\S")
# One action covers the ten keys 1 to 0, one for each phase.
FIXED = ("phase.number",)

Given = str | Sequence[str]


def key_error(name: str, given: Given) -> str:
    """The error in the keys of an action, or an empty string if they are valid."""
    if name not in BY_ID:
        return "unknown action: `buddy-tui config --keys` lists the ids"
    if name in FIXED:
        return "these keys cannot be changed"
    for key in keys_of_setting(given):
        strokes = key.split()
        if not 1 <= len(strokes) <= 2 or not all(_KEY.fullmatch(stroke) for stroke in strokes):
            return (
                f"{key!r} is not a key: use a character, a name such as space or ctrl+g, or two of them such as 'g d'"
            )
    return ""


def keys_of_setting(given: Given) -> tuple[str, ...]:
    """The keys of an entry of the settings: a string or a list; the empty string gives no key."""
    return tuple(filter(None, [given] if isinstance(given, str) else given))


def describe_clashes() -> list[str]:
    """One message for each user-defined key that another action has as its default."""
    found = []
    for action in ACTIONS:
        for key in action.keys if action.remapped else ():
            others = [other for other in _other_actions(action) if key in other.keys and not other.remapped]
            found += [f"{key}: {action.title} instead of {other.title} ({_pane_text(other)})" for other in others]
    return found


def _other_actions(action: Action) -> list[Action]:
    """The other actions whose keys are active in the same panes as those of `action`."""
    everywhere = action.pane in ("app", "any") or action.anywhere
    return [
        other
        for other in ACTIONS
        if other is not action and (everywhere or other.pane in (action.pane, "app", "any") or other.anywhere)
    ]


def _pane_text(action: Action) -> str:
    return PANE_TITLES.get(action.pane, "everywhere")


class Keymap:
    """The keys that the settings change: the action that a key performs, and the default keys that no longer work."""

    def __init__(self, given: Mapping[str, Given]) -> None:
        replace_keys({name: keys_of_setting(keys) for name, keys in given.items()})
        self._changed = [action for action in ACTIONS if action.remapped]

    def action_for(self, key: str, pane: Pane) -> Action | None:
        """The action to which the settings assign `key` in a pane, or `None`."""
        return next((action for action in self._actions_in(pane) if key in action.keys), None)

    def is_dead(self, key: str, pane: Pane) -> bool:
        """True if the settings move every action that had `key` in a pane to other keys."""
        own = [action for action in ACTIONS if _reaches(action, pane) and key in action.own_keys]
        return bool(own) and all(action.remapped for action in own)

    def _actions_in(self, pane: Pane) -> list[Action]:
        return [action for action in self._changed if _reaches(action, pane)]


def _reaches(action: Action, pane: Pane) -> bool:
    return action.pane in (pane, "any", "app") or action.anywhere
