"""Other keys for actions than those that the registry gives them. No Textual.

A key is one character (`x`, `/`), a name (`space`, `enter`, `f5`, `ctrl+g`), or two of these with a space between them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from buddy.app.actions import ACTIONS, BY_ID, PANE_TITLES, Action, Pane, replace_keys

NAMES = (
    "space", "enter", "escape", "tab", "backspace", "delete", "insert", "home", "end", "pageup", "pagedown",
    "up", "down", "left", "right",
)  # fmt: skip
_STROKE = re.compile(rf"(?:(?:ctrl|shift|alt)\+)*(?:[a-z0-9]|{'|'.join(NAMES)}|f\d{{1,2}})|\S")
# The keys 1 to 0 stand for ten phases at once.
FIXED = ("phase.number",)

Given = str | Sequence[str]


def wrong(name: str, given: Given) -> str:
    """What is wrong with keys given to an action, "" if nothing is."""
    if name not in BY_ID:
        return "no action has this id: `buddy-tui config --keys` lists them"
    if name in FIXED:
        return "these keys cannot be changed"
    for key in spelled(given):
        strokes = key.split()
        if not 1 <= len(strokes) <= 2 or not all(_STROKE.fullmatch(stroke) for stroke in strokes):
            return f"{key!r} is no key: a character, a name such as space or ctrl+g, or two of them such as 'g d'"
    return ""


def spelled(given: Given) -> tuple[str, ...]:
    """The keys of an entry of the settings: one, or several; none for ""."""
    return tuple(filter(None, [given] if isinstance(given, str) else given))


def clashes() -> list[str]:
    """What keys given to one action take from others, in words."""
    found = []
    for action in ACTIONS:
        for key in action.keys if action.remapped else ():
            others = [other for other in _beside(action) if key in other.keys and not other.remapped]
            found += [f"{key}: {action.title} instead of {other.title} ({_where(other)})" for other in others]
    return found


def _beside(action: Action) -> list[Action]:
    """The actions whose keys work where those of `action` do."""
    everywhere = action.pane in ("app", "any") or action.anywhere
    return [
        other
        for other in ACTIONS
        if other is not action and (everywhere or other.pane in (action.pane, "app", "any") or other.anywhere)
    ]


def _where(action: Action) -> str:
    return PANE_TITLES.get(action.pane, "everywhere")


class Keymap:
    """The keys that the settings have changed: which action a key does now, and which it does no longer."""

    def __init__(self, given: Mapping[str, Given]) -> None:
        replace_keys({name: spelled(keys) for name, keys in given.items()})
        self._changed = [action for action in ACTIONS if action.remapped]

    def action_for(self, key: str, pane: Pane) -> Action | None:
        """The action that has got `key` in a pane."""
        return next((action for action in self._here(pane) if key in action.keys), None)

    def is_dead(self, key: str, pane: Pane) -> bool:
        """Whether all that `key` did in a pane has other keys now."""
        own = [action for action in ACTIONS if _reaches(action, pane) and key in action.own_keys]
        return bool(own) and all(action.remapped for action in own)

    def _here(self, pane: Pane) -> list[Action]:
        return [action for action in self._changed if _reaches(action, pane)]


def _reaches(action: Action, pane: Pane) -> bool:
    return action.pane in (pane, "any", "app") or action.anywhere
