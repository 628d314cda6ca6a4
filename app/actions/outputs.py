"""Actions of the outputs pane."""

from __future__ import annotations

from buddy.app.actions.action import Action
from buddy.app.actions.situation import needs_captured, needs_problem, needs_report

A = Action
ACTIONS: tuple[Action, ...] = (
    A(
        "outputs.numerics",
        ("N",),
        "Compare every node",
        "Hold the value of every node beside eager's: which is wrong first, and by itself or not",
        "overlays.show_numerics",
        "outputs",
        needs_captured,
    ),
    A(
        "outputs.detail",
        ("enter",),
        "Read the diagnostic",
        "The whole diagnostic",
        "outputs.open_detail",
        "outputs",
        needs_problem,
        "diagnostic",
    ),
    A(
        "outputs.values",
        ("v",),
        "Values",
        "Values of outputs, of eager's, their difference, and inputs, by pages and slices",
        "overlays.show_values",
        "outputs",
        needs_report,
        "values",
    ),
    A(
        "outputs.map",
        ("m",),
        "Difference map",
        "Where an output differs from eager, block by block; enter goes to the values",
        "overlays.show_difference_map",
        "outputs",
        needs_report,
        "map",
    ),
)
