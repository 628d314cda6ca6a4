"""Actions of the source pane."""

from __future__ import annotations

from buddy.app.actions.action import Action
from buddy.app.actions.situation import needs_captured

A = Action
ACTIONS: tuple[Action, ...] = (
    A(
        "source.node",
        ("enter",),
        "Go to the node",
        "Go to the node of the line in the graph pane",
        "source.go_line_node",
        "source",
        needs_captured,
        "node",
    ),
    A("source.left", ("<", "left"), "Scroll left", "Scroll to the left", "source.source_left", "source"),
    A("source.right", (">", "right"), "Scroll right", "Scroll to the right", "source.source_right", "source"),
)
