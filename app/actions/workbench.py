"""Actions of the whole workbench."""

from __future__ import annotations

from buddy.app.actions.action import Action
from buddy.app.actions.situation import (
    needs_busy,
    needs_captured,
    needs_edited,
    needs_graphs,
    needs_problem,
    needs_recipe,
    needs_redo,
    needs_stage,
    needs_undo,
)

A = Action
ACTIONS: tuple[Action, ...] = (
    A("run", ("r",), "Run", "Compile, run, and compare with eager", "run_program", "app", needs_captured, "run"),
    A("rerun", ("R",), "Start over", "Run the script again from its beginning, in a fresh engine", "start_over"),
    A("cancel", ("ctrl+c",), "Cancel", "Stop what is under way", "cancel_jobs", "app", needs_busy),
    A("undo", ("u",), "Undo", "Take the last edit of the recipe back", "undo", "app", needs_undo, "undo"),
    A("redo", ("ctrl+r",), "Redo", "Make the undone edit again", "redo", "app", needs_redo),
    A("reset", (), "Reset recipe", "Back to the preset's recipe; can be undone", "reset", "app", needs_edited),
    A(
        "save",
        ("ctrl+s",),
        "Save recipe",
        "Write the recipe to a file that `buddy-tui run --recipe` takes",
        "ask_save",
        "app",
        needs_recipe,
    ),
    A(
        "threads",
        ("t",),
        "Threads",
        "How many threads compiled code and eager may use",
        "choose_threads",
        "app",
        needs_recipe,
    ),
    A("auto", ("A",), "Run after each edit", "Run by itself after each edit, or only on r", "toggle_auto"),
    A("graph-next", ("g t",), "Next graph", "The next graph of the program", "next_graph", "app", needs_graphs),
    A("graph-previous", ("g T",), "Previous graph", "The graph before", "previous_graph", "app", needs_graphs),
    A("graph-choose", ("g l",), "Graphs", "The program's graphs, to choose from", "choose_graph", "app", needs_graphs),
    A("run-all", (), "Run every graph", "Run all graphs, each by its own recipe", "run_all", "app", needs_graphs),
    A("phase", ("p",), "Phases", "Choose a phase of the line", "choose_phase", "app", needs_stage, "phases"),
    A(
        "phase.number",
        ("1", "2", "3", "4", "5", "6", "7", "8", "9", "0"),
        "Phase 1 to 10",
        "Show the phase of that number",
        "show_phase",
        "app",
        needs_stage,
    ),
    A(
        "diagnostic",
        ("!",),
        "Go to failure",
        "Show the IR at the failure and its diagnostic",
        "go_failure",
        "app",
        needs_problem,
    ),
    A("log", ("L",), "Log", "Everything the engine has reported, and its workers", "open_log"),
    A("next-pane", ("tab",), "Next pane", "Focus the next pane", "next_pane", footer="pane"),
    A("previous-pane", ("shift+tab",), "Previous pane", "Focus the pane before", "previous_pane"),
    A("zoom", ("+",), "Zoom", "Give the pane the whole screen, or all of them their places", "zoom", footer="zoom"),
    A("theme", ("T",), "Next theme", "Dark, light, high contrast", "next_theme"),
    A("help", ("?", "f1"), "Help", "The keys of this pane", "open_help", footer="help"),
    A("palette", ("ctrl+p",), "Commands", "All commands, found by name", "command_palette", footer="commands"),
    A("quit", ("q", "ctrl+q"), "Quit", "Leave; the recipe is kept", "leave"),
)
