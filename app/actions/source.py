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
        "The graph pane, at the node that the line makes",
        "source.go_line_node",
        "source",
        needs_captured,
        "node",
    ),
    A("source.left", ("<", "left"), "Scroll left", "Show what is further left", "source.source_left", "source"),
    A("source.right", (">", "right"), "Scroll right", "Show what is further right", "source.source_right", "source"),
)
