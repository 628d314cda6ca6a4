"""Actions that export compiled code and choose its target."""

from __future__ import annotations

from buddy.app.actions.action import Action
from buddy.app.actions.situation import needs_captured, needs_recipe

A = Action
ACTIONS: tuple[Action, ...] = (
    A(
        "export",
        ("g x",),
        "Export",
        "Export the compiled program as C, a library, assembly, LLVM IR, MLIR or a wheel, like `buddy-tui export`",
        "export.ask_export",
        "app",
        needs_captured,
    ),
    A(
        "target",
        ("g X",),
        "Target",
        "Choose the target of code generation: the host, a baseline of its architecture, or another architecture",
        "export.choose_target",
        "app",
        needs_recipe,
    ),
)
