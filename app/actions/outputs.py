"""Actions of the outputs pane and of the source pane."""

from __future__ import annotations

from buddy.app.actions.action import Action
from buddy.app.actions.situation import needs_captured, needs_problem, needs_report

A = Action
ACTIONS: tuple[Action, ...] = (
    A(
        "outputs.numerics",
        ("N",),
        "Compare every node",
        "Compare the value of every node with eager: the first mismatch, and whether the node alone reproduces it",
        "overlays.show_numerics",
        "outputs",
        needs_captured,
    ),
    A(
        "outputs.detail",
        ("enter",),
        "Read the diagnostic",
        "Show the full diagnostic",
        "outputs.open_detail",
        "outputs",
        needs_problem,
        "diagnostic",
    ),
    A(
        "outputs.values",
        ("v",),
        "Values",
        "Show the values of the outputs, eager's outputs, their difference and the inputs, page by page",
        "overlays.show_values",
        "outputs",
        needs_report,
        "values",
    ),
    A(
        "outputs.map",
        ("m",),
        "Difference map",
        "Show where an output differs from eager, block by block; enter goes to the values",
        "overlays.show_difference_map",
        "outputs",
        needs_report,
        "map",
    ),
)


SOURCE_ACTIONS: tuple[Action, ...] = (
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
