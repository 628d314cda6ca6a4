"""Actions that choose the frontend and compare with torch-mlir."""

from __future__ import annotations

from buddy.app.actions.action import Action
from buddy.app.actions.situation import needs_captured, needs_presets

A = Action
ACTIONS: tuple[Action, ...] = (
    A(
        "frontend",
        ("g F",),
        "Frontend",
        "Choose the frontend (TorchDynamo, torch.export or torch-mlir) and the dialect that it imports to",
        "frontend.choose_frontend",
        "app",
        needs_presets,
    ),
    A(
        "graph.beside",
        ("g B",),
        "Compare with torch-mlir",
        "Show the node in this compiler's top-level IR and in torch-mlir's IR: torch, then linalg, TOSA or StableHLO",
        "frontend.compare_node",
        "graph",
        needs_captured,
        anywhere=True,
    ),
)
