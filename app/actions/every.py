"""Actions of every pane: moving and copying."""

from __future__ import annotations

from buddy.app.actions.action import Action

A = Action
ACTIONS: tuple[Action, ...] = (
    A("move.down", ("j", "down"), "Down", "One line down", "move_down", "any"),
    A("move.up", ("k", "up"), "Up", "One line up", "move_up", "any"),
    A("move.half-down", ("ctrl+d",), "Half a page down", "Half a page down", "move_half_down", "any"),
    A("move.half-up", ("ctrl+u",), "Half a page up", "Half a page up", "move_half_up", "any"),
    A("move.page-down", ("pagedown", "ctrl+f"), "Page down", "A page down", "move_page_down", "any"),
    A("move.page-up", ("pageup", "ctrl+b"), "Page up", "A page up", "move_page_up", "any"),
    A("move.top", ("g g", "home"), "Top", "To the first line", "move_top", "any"),
    A("move.bottom", ("G", "end"), "Bottom", "To the last line", "move_bottom", "any"),
    A("copy", ("y",), "Copy", "Copy the selected row or line to the terminal's clipboard (OSC 52)", "copy", "any"),
)
