"""Actions on a recipe other than edits of its passes: manual IR edits, comparisons, runs, reproducers."""

from __future__ import annotations

from buddy.app.actions.action import Action
from buddy.app.actions.situation import needs_captured, needs_mlir, needs_runs

A = Action
ACTIONS: tuple[Action, ...] = (
    A(
        "ir.edit",
        ("E",),
        "Edit IR",
        "Edit the stage's IR in $EDITOR, verify it, and continue the compilation from there; can be undone",
        "edit_text.edit_ir",
        "ir",
        needs_mlir,
        "edit",
    ),
    A(
        "ir.edit-here",
        ("g e",),
        "Edit IR here",
        "Edit the stage's IR in the built-in editor",
        "edit_text.edit_ir_here",
        "ir",
        needs_mlir,
    ),
    A(
        "compare-recipes",
        ("B",),
        "Compare recipes",
        "Compare every stage with the same stage under a preset, an earlier edit, a recipe file, or another graph",
        "compare.choose_other",
        "app",
        needs_captured,
    ),
    A(
        "compare-presets",
        ("g p",),
        "Compare presets",
        "Compile with every preset, and show time, ops and code size side by side",
        "compare.compare_presets",
        "app",
        needs_captured,
    ),
    A(
        "runs",
        ("H",),
        "Runs",
        "List the runs of this and earlier sessions: repeat one, or compare its stages",
        "run.show_runs",
        "app",
        needs_runs,
    ),
    A(
        "inputs",
        ("I",),
        "Inputs",
        "Choose the inputs of a run: the script's, random ones from a seed, or those of a .npy, .npz or .pt file",
        "run.choose_inputs",
        "app",
        needs_captured,
    ),
    A("timeout", (), "Time of a run", "Set the time limit of a run in seconds", "run.ask_timeout"),
    A(
        "reproducer",
        ("S",),
        "Reproducer",
        "Write a folder with script, recipe, all stages, inputs and outputs, for `buddy-tui replay`",
        "sessions.ask_reproducer",
        "app",
        needs_captured,
    ),
    A(
        "copy-command",
        ("g y",),
        "Copy command line",
        "Copy the headless command that prints what the screen shows",
        "sessions.copy_command",
        "app",
        needs_captured,
    ),
)
