"""Actions that profile a run."""

from __future__ import annotations

from buddy.app.actions.action import Action
from buddy.app.actions.situation import needs_captured, needs_profile

A = Action
ACTIONS: tuple[Action, ...] = (
    A(
        "profile",
        ("g c",),
        "Profile",
        "Run instrumented code and measure the time of each node and its share of the machine's peak",
        "profile.profile_program",
        "app",
        needs_captured,
    ),
    A(
        "profile.modules",
        ("g C",),
        "Time by module",
        "Show the profile as a tree of modules with bars",
        "profile.show_flame",
        "app",
        needs_profile,
    ),
    A(
        "profile.roofline",
        ("g R",),
        "Roofline",
        "Plot the performance of each node under the roofline of the machine",
        "profile.show_roofline",
        "app",
        needs_profile,
    ),
    A(
        "profile.hot",
        ("g H",),
        "Hot instructions",
        "List the instructions with the most profile samples, with their nodes",
        "profile.show_hot",
        "app",
        needs_profile,
    ),
)
