"""Actions on a recipe's backend."""

from __future__ import annotations

from buddy.app.actions.action import Action
from buddy.app.actions.situation import needs_other_backend, needs_recipe

A = Action
ACTIONS: tuple[Action, ...] = (
    A(
        "backend",
        ("g i",),
        "Backend",
        "Who takes top-level IR on: this compiler, or IREE, whose phases are stages and which runs beside it",
        "backend.choose_backend",
        "app",
        needs_recipe,
    ),
    A(
        "backend.flags",
        ("g I",),
        "Backend flags",
        "The flags of the other backend's compiler, found by typing, checked by it before they are taken",
        "backend.choose_flag",
        "app",
        needs_other_backend,
    ),
)
