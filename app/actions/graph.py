"""Actions of the graph pane."""

from __future__ import annotations

from buddy.app.actions.action import Action
from buddy.app.actions.situation import needs_captured, needs_lowering, needs_row, needs_toggle_node, needs_tree

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
        "Show only some nodes: words, op:mm shape:128x* road:eager module:encoder.*.output mem>1MB uses=0 -name:t_*",
        "ask_filter",
        "graph",
        footer="filter",
    ),
    A("graph.sort", ("s",), "Sort", "Sort by number, name, target or lowering in turn", "sort", "graph", footer="sort"),
    A("graph.pick", ("v",), "Pick", "Pick the node, or the module's nodes; space takes all picked", "pick", "graph"),
    A("graph.pick-all", ("V",), "Pick all", "Pick all nodes that are shown, or none", "pick_all", "graph"),
    A(
        "graph.pick-op",
        ("O",),
        "Pick same op",
        "Pick all nodes of the same op",
        "pick_same_op",
        "graph",
        needs_row,
    ),
    A("graph.pick-module", ("M",), "Pick module", "Pick all nodes of the same module", "pick_module", "graph"),
    A(
        "graph.tree",
        ("g m",),
        "By module",
        "The nodes as a tree of their modules, or as a flat table",
        "toggle_tree",
        "graph",
    ),
    A("graph.fold", ("z",), "Fold module", "Fold the module here, or unfold it", "toggle_fold", "graph", needs_tree),
    A(
        "graph.fold-all",
        ("Z",),
        "Fold modules",
        "Fold all modules, or unfold all",
        "toggle_all_folds",
        "graph",
        needs_tree,
    ),
    A(
        "graph.neighbours",
        ("n",),
        "Neighbours",
        "The nodes it reads and those that read it, to go to",
        "choose_neighbour",
        "graph",
        needs_row,
        "neighbours",
    ),
    A(
        "graph.draw",
        ("w",),
        "Draw neighbours",
        "Draw the nodes around this one to an SVG or DOT file",
        "ask_drawing",
        "graph",
        needs_row,
    ),
    A("graph.code", ("c",), "FX code", "The graph as Python text", "open_code", "graph", needs_captured),
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
