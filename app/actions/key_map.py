"""User-defined keys of actions, which replace the default keys. Does not import Textual.

A key is one character (`x`, `/`), a name (`space`, `enter`, `f5`, `ctrl+g`), or two of these separated by a space.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from buddy.app.actions import ACTIONS, BY_ID, PANE_TITLES, Action, Pane, replace_keys

KEY_NAMES = (
    "space", "enter", "escape", "tab", "backspace", "delete", "insert", "home", "end", "pageup", "pagedown",
    "up", "down", "left", "right",
)  # fmt: skip
# A key: with modifiers or without, a letter, a digit or a name; or any visible character.
_KEY = re.compile(rf"(?:(?:ctrl|shift|alt)\+)*(?:[a-z0-9]|{'|'.join(KEY_NAMES)}|f\d{{1,2}})|\S")
# Actions whose keys cannot be changed: this one has ten keys, 1 to 0, and each shows another phase.
FIXED_ACTIONS = ("phase.number",)

# An entry of the table `keys` in the settings file.
KeySetting = str | Sequence[str]


def key_error(action_id: str, setting: KeySetting) -> str:
    """The error in the keys of an action, or an empty string if they are valid."""
    if action_id not in BY_ID:
        return "unknown action: `buddy-tui config --keys` lists the ids"
    if action_id in FIXED_ACTIONS:
        return "these keys cannot be changed"
    for sequence in keys_of_setting(setting):
        keys = sequence.split()
        if not 1 <= len(keys) <= 2 or not all(map(_KEY.fullmatch, keys)):
            return (
                f"{sequence!r} is not a key: use a character, a name such as space or ctrl+g, or two of them such as "
                "'g d'"
            )
    return ""


def keys_of_setting(setting: KeySetting) -> tuple[str, ...]:
    """The keys of an entry of the settings: a string or a list. An empty string stands for no key."""
    keys = [setting] if isinstance(setting, str) else setting
    return tuple(filter(None, keys))


def describe_clashes() -> list[str]:
    """One message for each user-defined key that is also a default key of another action.

    The key then performs the user's choice instead of that other action.
    """
    messages = []
    for action in ACTIONS:
        for key in action.keys if action.is_remapped else ():
            others = [other for other in _other_actions(action) if key in other.keys and not other.is_remapped]
            messages += [f"{key}: {action.title} instead of {other.title} ({_pane_text(other)})" for other in others]
    return messages


def _other_actions(action: Action) -> list[Action]:
    """The other actions whose keys are active in the same panes as those of `action`."""
    is_everywhere = action.pane in ("app", "any") or action.anywhere
    return [other for other in ACTIONS if other is not action and (is_everywhere or other.works_in(action.pane))]


def _pane_text(action: Action) -> str:
    """Where an action works, for a message: the title of its pane, or "everywhere"."""
    return PANE_TITLES.get(action.pane, "everywhere")


class Keymap:
    """Applies the keys of the settings to the actions, and looks up the actions whose keys they change."""

    def __init__(self, settings: Mapping[str, KeySetting]) -> None:
        replace_keys({action_id: keys_of_setting(setting) for action_id, setting in settings.items()})
        self._remapped = [action for action in ACTIONS if action.is_remapped]

    def action_for(self, key: str, pane: Pane) -> Action | None:
        """The action to which the settings assign `key` in a pane, or `None`."""
        remapped = (action for action in self._remapped if action.works_in(pane))
        return next((action for action in remapped if key in action.keys), None)

    def is_unassigned(self, key: str, pane: Pane) -> bool:
        """Whether `key` is the default key of actions of a pane, and the settings take it from all of them."""
        defaults = [action for action in ACTIONS if action.works_in(pane) and key in action.default_keys]
        return bool(defaults) and all(action.is_remapped for action in defaults)
