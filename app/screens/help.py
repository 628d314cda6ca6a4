"""The help: the keys that work in a pane, and the marks of nodes and passes."""

from __future__ import annotations

from buddy.app.actions import ACTIONS, PANE_TITLES, Action, Pane, Situation, actions_of_pane
from buddy.app.screens.detail import DetailScreen
from buddy.app.widgets.look import Cells

# The keys that are shown for an action without a key: those of the command palette, which lists all actions.
PALETTE_KEYS = ("ctrl+p",)
# The marks of nodes and passes, each with its meaning.
MARKS = (
    ("[x]", "on"),
    ("[ ]", "disabled, or in eager"),
    ("[!]", "failed"),
    ("[=]", "changed nothing"),
    ("[~]", "out of date: not compiled again yet"),
)


def help_screen(pane: Pane, situation: Situation) -> DetailScreen:
    """Returns a screen with the keys that work in `pane`; keys that are disabled now have the reason."""
    lines = _section(f"In {PANE_TITLES[pane]}", actions_of_pane(pane), situation)
    lines += _section("Moving", actions_of_pane("any"), situation)
    actions_of_other_panes = [action for action in ACTIONS if action.anywhere and action.pane != pane]
    lines += _section("From other panes", actions_of_other_panes, situation) if actions_of_other_panes else []
    lines += _section("Everywhere", actions_of_pane("app"), situation)
    lines += [[("Marks", "title")], *([(f"  {mark:<18}", "key"), (text, "text")] for mark, text in MARKS)]
    return DetailScreen(f"Help: {PANE_TITLES[pane]}", lines)


def _section(title: str, actions: list[Action], situation: Situation) -> list[Cells]:
    """Returns a title, a line for each action, and an empty line."""
    rows = [_action_line(action, situation) for action in actions]
    return [[(title, "title")], *rows, []]


def _action_line(action: Action, situation: Situation) -> Cells:
    """Returns the keys of an action and what it does; if it is disabled, also the reason."""
    reason = action.blocked(situation)
    # Of many keys, such as 1 to 9 and 0, show only the first and the last.
    has_many_keys = len(action.keys) > 3
    keys = f"{action.keys[0]}{action.keys[-1].rjust(2)}" if has_many_keys else ", ".join(action.keys or PALETTE_KEYS)
    line: Cells = [(f"  {keys:<18}", "faint" if reason else "key"), (action.tooltip, "dim" if reason else "text")]
    return [*line, (f"  (disabled: {reason})", "faint")] if reason else line
