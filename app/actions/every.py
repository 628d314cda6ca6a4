"""Actions of every pane: moving and copying."""

from __future__ import annotations

from buddy.app.actions.action import Action

A = Action
ACTIONS: tuple[Action, ...] = (
    A("move.down", ("j", "down"), "Down", "One line down", "pane.move_down", "any"),
    A("move.up", ("k", "up"), "Up", "One line up", "pane.move_up", "any"),
    A("move.half-down", ("ctrl+d",), "Half a page down", "Half a page down", "pane.move_half_down", "any"),
    A("move.half-up", ("ctrl+u",), "Half a page up", "Half a page up", "pane.move_half_up", "any"),
    A("move.page-down", ("pagedown", "ctrl+f"), "Page down", "A page down", "pane.move_page_down", "any"),
    A("move.page-up", ("pageup", "ctrl+b"), "Page up", "A page up", "pane.move_page_up", "any"),
    A("move.top", ("g g", "home"), "Top", "To the first line", "pane.move_top", "any"),
    A("move.bottom", ("G", "end"), "Bottom", "To the last line", "pane.move_bottom", "any"),
    A("copy", ("y",), "Copy", "Copy the selected row or line to the terminal's clipboard (OSC 52)", "pane.copy", "any"),
)
