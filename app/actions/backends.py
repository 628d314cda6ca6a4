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
        "Choose the backend that compiles the top-level IR: this compiler or IREE, whose phases become stages",
        "backend.choose_backend",
        "app",
        needs_recipe,
    ),
    A(
        "backend.flags",
        ("g I",),
        "Backend flags",
        "Edit the flags of the other backend's compiler. Type to search; the compiler checks each flag",
        "backend.choose_flag",
        "app",
        needs_other_backend,
    ),
)
