"""Actions of the outputs pane and of the source pane."""

from __future__ import annotations

from buddy.app.actions.action import Action
from buddy.app.actions.situation import needs_captured, needs_diagnostic, needs_report

A = Action
OUTPUTS_ACTIONS: tuple[Action, ...] = (
    A(
        "outputs.numerics",
        ("g N",),
        "Compare every node",
        "Compare every node with eager: shows the first mismatch, and whether its node alone reproduces it; "
        "N does it too while no search is active",
        "screens.show_numerics",
        "outputs",
        needs_captured,
    ),
    A(
        "outputs.detail",
        ("enter",),
        "Read the diagnostic",
        "Show the full diagnostic",
        "outputs.open_diagnostic",
        "outputs",
        needs_diagnostic,
        footer="diagnostic",
    ),
    A(
        "outputs.values",
        ("v",),
        "Values",
        "Show the values of the outputs, eager's outputs, their difference and the inputs, page by page",
        "screens.show_values",
        "outputs",
        needs_report,
        footer="values",
    ),
    A(
        "outputs.map",
        ("m",),
        "Difference map",
        "Show where an output differs from eager, block by block; enter goes to the values",
        "screens.show_difference_map",
        "outputs",
        needs_report,
        footer="map",
    ),
)


SOURCE_ACTIONS: tuple[Action, ...] = (
    A(
        "source.node",
        ("enter",),
        "Go to the nodes",
        "Go to a node of this line in the graph pane, or say why no node comes from the line",
        "source.go_to_node_of_line",
        "source",
        needs_captured,
        footer="node",
    ),
    A(
        "source.extend-down",
        ("shift+down",),
        "Select down",
        "Select one more line for y",
        "source.extend_down",
        "source",
    ),
    A(
        "source.extend-up",
        ("shift+up",),
        "Select up",
        "Select one more line for y, upwards",
        "source.extend_up",
        "source",
    ),
    A("source.left", ("<", "left"), "Scroll left", "Scroll to the left", "source.source_left", "source"),
    A("source.right", (">", "right"), "Scroll right", "Scroll to the right", "source.source_right", "source"),
)

PLUGIN_ACTIONS: tuple[Action, ...] = (
    A(
        "plugin.node",
        ("enter",),
        "Go to the node",
        "Go to the node that this line is about",
        "plugin.go_to_node",
        "plugin",
        footer="node",
    ),
)
