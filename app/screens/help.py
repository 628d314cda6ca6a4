"""The help screen: the keys of a pane and of the whole workbench, from the registry of actions."""

from __future__ import annotations

from buddy.app.actions import ACTIONS, PANE_TITLES, Action, Pane, Situation, actions_of_pane
from buddy.app.screens.detail import DetailScreen
from buddy.app.widgets.look import Cells

# Actions without a key are in the command palette.
PALETTE = ("ctrl+p",)
MARKS = (
    ("[x]", "on"),
    ("[ ]", "disabled, or in eager"),
    ("[!]", "failed"),
    ("[=]", "changed nothing"),
    ("[~]", "out of date: not compiled again yet"),
)


def help_screen(pane: Pane, situation: Situation) -> DetailScreen:
    """The keys that work in `pane`, with the reason for those that are disabled now."""
    lines = _section(f"In {PANE_TITLES[pane]}", actions_of_pane(pane), situation)
    lines += _section("Moving", actions_of_pane("any"), situation)
    beyond = [action for action in ACTIONS if action.anywhere and action.pane != pane]
    lines += _section("From other panes", beyond, situation) if beyond else []
    lines += _section("Everywhere", actions_of_pane("app"), situation)
    lines += [[("Marks", "title")], *([(f"  {mark:<18}", "key"), (text, "text")] for mark, text in MARKS)]
    return DetailScreen(f"Help: {PANE_TITLES[pane]}", lines)


def _section(title: str, actions: list[Action], situation: Situation) -> list[Cells]:
    rows = [_row(action, situation) for action in actions]
    return [[(title, "title")], *rows, []]


def _row(action: Action, situation: Situation) -> Cells:
    reason = action.blocked(situation)
    keys = f"{action.keys[0]}{action.keys[-1].rjust(2)}" if len(action.keys) > 3 else ", ".join(action.keys or PALETTE)
    row: Cells = [(f"  {keys:<18}", "faint" if reason else "key"), (action.tooltip, "dim" if reason else "text")]
    return [*row, (f"  (disabled: {reason})", "faint")] if reason else row
