"""Actions that make code for elsewhere."""

from __future__ import annotations

from buddy.app.actions.action import Action
from buddy.app.actions.situation import needs_captured, needs_recipe

A = Action
ACTIONS: tuple[Action, ...] = (
    A(
        "export",
        ("g x",),
        "Export",
        "Write the compiled program as C, a library, assembly, LLVM IR, MLIR or a wheel, as `buddy-tui export` does",
        "export.ask_export",
        "app",
        needs_captured,
    ),
    A(
        "target",
        ("g X",),
        "Target",
        "The machine that code is for: this one, a lesser one of its kind, or another, whose vectors kernels then use",
        "export.choose_target",
        "app",
        needs_recipe,
    ),
)
