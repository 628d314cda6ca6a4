"""Actions of the outputs pane."""

from __future__ import annotations

from buddy.app.actions.action import Action
from buddy.app.actions.situation import needs_problem

A = Action
ACTIONS: tuple[Action, ...] = (
    A(
        "outputs.detail",
        ("enter",),
        "Read the diagnostic",
        "The whole diagnostic",
        "open_detail",
        "outputs",
        needs_problem,
        "diagnostic",
    ),
)
