"""Actions on a recipe beyond its list of passes: IR edited by hand, comparisons, runs, sessions."""

from __future__ import annotations

from buddy.app.actions.action import Action
from buddy.app.actions.situation import needs_captured, needs_mlir

A = Action
ACTIONS: tuple[Action, ...] = (
    A(
        "ir.edit",
        ("E",),
        "Edit IR",
        "Edit the stage's IR in $EDITOR, verify it, and compile on from there; can be undone",
        "edit_ir",
        "ir",
        needs_mlir,
        "edit",
    ),
    A(
        "ir.edit-here",
        ("g e",),
        "Edit IR here",
        "Edit the stage's IR in the workbench's own editor",
        "edit_ir_here",
        "ir",
        needs_mlir,
    ),
    A(
        "compare-recipes",
        ("B",),
        "Compare recipes",
        "A/B: compare every stage with the same stage by a preset, an earlier edit, a recipe file, or another graph",
        "choose_other",
        "app",
        needs_captured,
    ),
    A(
        "compare-presets",
        ("g p",),
        "Compare presets",
        "Compile by every preset, and show time, ops and code size side by side",
        "compare_presets",
        "app",
        needs_captured,
    ),
)
