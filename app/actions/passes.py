"""Actions of the passes pane."""

from __future__ import annotations

from buddy.app.actions.action import Action
from buddy.app.actions.situation import needs_insert, needs_options, needs_presets, needs_recipe, needs_step

A = Action
ACTIONS: tuple[Action, ...] = (
    A(
        "passes.toggle",
        ("space",),
        "Pass on or off",
        "Switch the pass on or off",
        "toggle",
        "passes",
        needs_step,
        "toggle",
    ),
    A(
        "passes.options",
        ("E", "enter"),
        "Options",
        "Edit the pass's options",
        "edit_options",
        "passes",
        needs_options,
        "options",
    ),
    A(
        "passes.insert",
        ("i",),
        "Insert pass",
        "Insert a pass from the catalogue below this one",
        "insert",
        "passes",
        needs_insert,
        "insert",
    ),
    A("passes.duplicate", ("Y",), "Duplicate pass", "Run the pass once more, below", "duplicate", "passes", needs_step),
    A(
        "passes.anchor",
        ("a",),
        "Runs on",
        "Run the pass on the module, or on each function",
        "turn_anchor",
        "passes",
        needs_step,
    ),
    A(
        "passes.pipeline",
        ("e",),
        "Pipeline as text",
        "Edit all passes as text, in MLIR's syntax for pipelines",
        "edit_pipeline",
        "passes",
        needs_insert,
        "as text",
    ),
    A(
        "passes.try",
        ("w",),
        "What would change",
        "Try every pass of the catalogue on this snapshot, in the background, and insert one that changes something",
        "try_passes",
        "passes",
        needs_insert,
    ),
    A("passes.details", ("o",), "Pass details", "What the pass did, op by op, and said of nodes", "details", "passes"),
    A("passes.delete", ("delete", "x"), "Remove pass", "Take the pass out of the list", "delete", "passes", needs_step),
    A(
        "passes.down",
        ("J",),
        "Move pass down",
        "Let the pass run later",
        "move_step_down",
        "passes",
        needs_step,
        "move",
    ),
    A("passes.up", ("K",), "Move pass up", "Let the pass run earlier", "move_step_up", "passes", needs_step),
    A("passes.flavour", ("F",), "Flavour", "Lower by linalg or by TOSA first", "next_flavour", "passes", needs_recipe),
    A("passes.preset", ("P",), "Preset", "Start again from another preset", "choose_preset", "passes", needs_presets),
    A(
        "passes.tune",
        ("f",),
        "Fastest recipe",
        "Search for the fastest recipe that gives eager's results",
        "ask_tuning",
        "passes",
        needs_recipe,
    ),
)
