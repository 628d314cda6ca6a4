"""Actions of the outputs pane."""

from __future__ import annotations

from buddy.app.actions.action import Action
from buddy.app.actions.situation import needs_captured, needs_problem

A = Action
ACTIONS: tuple[Action, ...] = (
    A(
        "outputs.numerics",
        ("N",),
        "Compare every node",
        "Hold the value of every node beside eager's: which is wrong first, and by itself or not",
        "show_numerics",
        "outputs",
        needs_captured,
    ),
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
