"""Actions on a recipe beyond its list of passes: IR edited by hand, comparisons, runs, sessions."""

from __future__ import annotations

from buddy.app.actions.action import Action
from buddy.app.actions.situation import needs_captured, needs_mlir, needs_runs

A = Action
ACTIONS: tuple[Action, ...] = (
    A(
        "ir.edit",
        ("E",),
        "Edit IR",
        "Edit the stage's IR in $EDITOR, verify it, and compile on from there; can be undone",
        "edit_text.edit_ir",
        "ir",
        needs_mlir,
        "edit",
    ),
    A(
        "ir.edit-here",
        ("g e",),
        "Edit IR here",
        "Edit the stage's IR in the workbench's own editor",
        "edit_text.edit_ir_here",
        "ir",
        needs_mlir,
    ),
    A(
        "compare-recipes",
        ("B",),
        "Compare recipes",
        "A/B: compare every stage with the same stage by a preset, an earlier edit, a recipe file, or another graph",
        "compare.choose_other",
        "app",
        needs_captured,
    ),
    A(
        "compare-presets",
        ("g p",),
        "Compare presets",
        "Compile by every preset, and show time, ops and code size side by side",
        "compare.compare_presets",
        "app",
        needs_captured,
    ),
    A(
        "runs",
        ("H",),
        "Runs",
        "The runs so far, of this session and those before: run one again, or compare its stages",
        "run.show_runs",
        "app",
        needs_runs,
    ),
    A(
        "inputs",
        ("I",),
        "Inputs",
        "Run on the script's own inputs, on random ones by a seed, or on those of a .npy, .npz or .pt",
        "run.choose_inputs",
        "app",
        needs_captured,
    ),
    A("timeout", (), "Time of a run", "After how many seconds a run that does not end is stopped", "run.ask_timeout"),
    A(
        "reproducer",
        ("S",),
        "Reproducer",
        "Write a folder with script, recipe, every stage, inputs and outputs, which `buddy-tui replay` does again",
        "sessions.ask_reproducer",
        "app",
        needs_captured,
    ),
    A(
        "copy-command",
        ("g y",),
        "Copy command line",
        "Copy the command that gives without a screen what is on it",
        "sessions.copy_command",
        "app",
        needs_captured,
    ),
)
