"""Actions on the recipe and with the compiled program, except edits of passes: backend, export, profile, comparison."""

from __future__ import annotations

from buddy.app.actions.action import (
    Action,
    needs_captured,
    needs_editable_mlir,
    needs_native_backend,
    needs_other_compiler,
    needs_presets,
    needs_profile,
    needs_recipe,
    needs_runs,
)

# Positional arguments: id, default keys, title, tooltip, handler, pane, precondition, name in the key line.
A = Action
BACKEND_ACTIONS: tuple[Action, ...] = (
    A(
        "backend",
        ("g i",),
        "Backend",
        "Choose the backend: this compiler, or IREE or Inductor, whose phases become stages",
        "backend.choose_backend",
        "app",
        needs_recipe,
    ),
    A(
        "backend.flags",
        ("g I",),
        "Backend flags",
        "Edit the flags of IREE or the settings of Inductor, which checks each one. Type to search",
        "backend.choose_flag",
        "app",
        needs_other_compiler,
    ),
    A(
        "llvm.passes",
        ("g L",),
        "LLVM's passes",
        "Show a stage for each pass of LLVM's optimiser that changes something, or skip a pass of LLVM",
        "backend.choose_llvm_pass",
        "app",
        needs_native_backend,
    ),
)


EXPORT_ACTIONS: tuple[Action, ...] = (
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


FRONTEND_ACTIONS: tuple[Action, ...] = (
    A(
        "frontend",
        ("g F",),
        "Frontend",
        "Choose the frontend (TorchDynamo, torch.export or torch-mlir) and the dialect that ops are lowered to",
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


PROFILE_ACTIONS: tuple[Action, ...] = (
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
        "profile.show_flame_graph",
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
        "profile.show_hot_spots",
        "app",
        needs_profile,
    ),
)


ACTIONS: tuple[Action, ...] = (
    A(
        "ir.edit",
        ("E",),
        "Edit IR",
        "Edit the stage's IR in $EDITOR, verify it, and continue the compilation from there; can be undone",
        "edit_text.edit_ir",
        "ir",
        needs_editable_mlir,
        "edit",
    ),
    A(
        "ir.edit-here",
        ("g e",),
        "Edit IR here",
        "Edit the stage's IR in the built-in editor",
        "edit_text.edit_ir_built_in",
        "ir",
        needs_editable_mlir,
    ),
    A(
        "compare-recipes",
        ("B",),
        "Compare recipes",
        "Compare every stage with the same stage under a preset, an earlier edit, a recipe file, or another graph",
        "compare.choose_recipe_to_compare",
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
    A(
        "runtimes",
        ("g V",),
        "Other runtimes",
        "Choose other runtimes to run beside the compiled code, ONNX Runtime or OpenVINO, and run: compares their "
        "results with eager, and finds the first node that differs",
        "run.choose_runtimes",
        "app",
        needs_captured,
    ),
    A("timeout", (), "Time limit of a run", "Set the time limit of a run in seconds", "run.ask_timeout"),
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
        "report",
        ("g O",),
        "Report",
        "Write one HTML file with every stage, the graph and the results, which anyone can open without a network",
        "sessions.ask_report",
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
