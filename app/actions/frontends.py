"""Actions on the road that the program comes in by."""

from __future__ import annotations

from buddy.app.actions.action import Action
from buddy.app.actions.situation import needs_captured, needs_presets

A = Action
ACTIONS: tuple[Action, ...] = (
    A(
        "frontend",
        ("g F",),
        "Frontend",
        "Who captures and imports the program, and to which dialect: TorchDynamo, torch.export or torch-mlir",
        "frontend.choose_frontend",
        "app",
        needs_presets,
    ),
    A(
        "graph.beside",
        ("g B",),
        "Beside torch-mlir",
        "The node in this compiler's top-level IR beside torch-mlir's: torch, and linalg, TOSA or StableHLO",
        "frontend.show_beside",
        "graph",
        needs_captured,
        anywhere=True,
    ),
)
