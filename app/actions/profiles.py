"""Actions that tell where time goes."""

from __future__ import annotations

from buddy.app.actions.action import Action
from buddy.app.actions.situation import needs_captured, needs_profile

A = Action
ACTIONS: tuple[Action, ...] = (
    A(
        "profile",
        ("g c",),
        "Profile",
        "Run with counters in the code: the time of each node, and what of the machine it uses",
        "profile.profile_program",
        "app",
        needs_captured,
    ),
    A(
        "profile.modules",
        ("g C",),
        "Time by module",
        "The profile as a tree of modules with bars",
        "profile.show_flame",
        "app",
        needs_profile,
    ),
    A(
        "profile.roofline",
        ("g R",),
        "Roofline",
        "What each node reaches, under the roof of what the machine can do",
        "profile.show_roofline",
        "app",
        needs_profile,
    ),
    A(
        "profile.hot",
        ("g H",),
        "Hot instructions",
        "The instructions at which samples found the program, with their nodes",
        "profile.show_hot",
        "app",
        needs_profile,
    ),
)
