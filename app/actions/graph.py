"""Actions of the graph pane."""

from __future__ import annotations

from buddy.app.actions.action import Action
from buddy.app.actions.situation import needs_lowering, needs_toggle_node

A = Action
ACTIONS: tuple[Action, ...] = (
    A(
        "graph.toggle",
        ("space",),
        "Compiled or eager",
        "Take the node out of compiled code, or back in",
        "toggle",
        "graph",
        needs_toggle_node,
        "toggle",
    ),
    A(
        "graph.lowering",
        ("enter",),
        "Choose lowering",
        "Choose the registry that lowers the node",
        "choose_lowering",
        "graph",
        needs_lowering,
        "lowering",
    ),
    A(
        "graph.filter",
        ("f",),
        "Filter",
        "Show only nodes whose row holds a text",
        "ask_filter",
        "graph",
        footer="filter",
    ),
    A("graph.sort", ("s",), "Sort", "Sort by number, name, target or lowering in turn", "sort", "graph", footer="sort"),
    A(
        "graph.details",
        ("o",),
        "Node details",
        "All of the node's row, and what each pass did to it",
        "details",
        "graph",
        footer="details",
    ),
)
