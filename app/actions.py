"""The one registry of what the workbench can do: keys, palette, footer and help all read it. No Textual.

An action says where it works (`pane`; `anywhere` if its keys reach that pane from the others too), which method does it
(`handler`), and, through `blocked`, why it cannot be done now. Keys of two strokes are written with a space: `g g`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from buddy.compiler.protocol import Assignment, NodeRow, Stage
from buddy.compiler.recipe import PassStep

Pane = Literal["app", "any", "graph", "passes", "ir", "outputs"]
PANES: tuple[Pane, ...] = ("graph", "passes", "ir", "outputs")
PANE_TITLES: dict[Pane, str] = {"graph": "Graph", "passes": "Passes", "ir": "IR", "outputs": "Outputs"}


@dataclass(frozen=True)
class Situation:
    """What decides whether an action is possible."""

    engine: str = "starting"
    busy: bool = False
    captured: bool = False
    recipe: bool = False
    graphs: int = 0
    can_undo: bool = False
    can_redo: bool = False
    node: NodeRow | None = None
    assignment: Assignment | None = None
    step: PassStep | None = None
    stage: Stage | None = None
    catalogue: bool = False
    presets: bool = False
    found: bool = False
    diff: bool = False
    problem: bool = False
    edited: bool = False


Blocked = Callable[[Situation], str]


@dataclass(frozen=True)
class Action:
    """`blocked` returns the reason why the action is impossible now, "" when it is possible."""

    id: str
    keys: tuple[str, ...]
    title: str
    tooltip: str
    handler: str
    pane: Pane = "app"
    blocked: Blocked = lambda situation: ""
    footer: str = ""
    anywhere: bool = False

    @property
    def key(self) -> str:
        return self.keys[0] if self.keys else ""


def _engine(s: Situation) -> str:
    return (
        ""
        if s.engine == "ready"
        else f"the engine is {'starting' if s.engine == 'starting' else 'gone: R restarts it'}"
    )


def _recipe(s: Situation) -> str:
    return _engine(s) or ("" if s.recipe else "the engine has not sent its presets yet")


def _captured(s: Situation) -> str:
    return _recipe(s) or ("" if s.captured else "no graph has been captured yet")


def _node(s: Situation) -> str:
    if s.node is None:
        return "no node is selected"
    return "" if s.assignment else f"{s.node.name} is a {s.node.opcode}, which is not lowered"


def _toggle_node(s: Situation) -> str:
    if reason := _captured(s) or _node(s):
        return reason
    assert s.node is not None
    assert s.assignment is not None
    if s.assignment.lowering == "eager" and not _compiled_choices(s.assignment):
        return f"no registry lowers {s.node.target}, so it stays in eager"
    return ""


def _lowering(s: Situation) -> str:
    if reason := _captured(s) or _node(s):
        return reason
    assert s.node is not None
    assert s.assignment is not None
    return "" if s.assignment.choices else f"{s.node.target} has no other lowering"


def _compiled_choices(assignment: Assignment) -> list[str]:
    return [choice for choice in assignment.choices if choice != "eager"]


def _step(s: Situation) -> str:
    return _recipe(s) or ("" if s.step else "this row is a step of the line itself, which is always there")


def _options(s: Situation) -> str:
    return _step(s) or ("" if s.catalogue else "the pass catalogue has not arrived yet")


def _insert(s: Situation) -> str:
    return _recipe(s) or ("" if s.catalogue else "the pass catalogue has not arrived yet")


def _stage(s: Situation) -> str:
    return "" if s.stage else "there is no IR yet"


def _engine_stage(s: Situation) -> str:
    return _stage(s) or _engine(s)


def _found(s: Situation) -> str:
    return "" if s.found or s.diff else "nothing has been searched for: / searches"


def _diff(s: Situation) -> str:
    return "" if s.diff else "there is no diff on the screen: d shows one"


def _busy(s: Situation) -> str:
    return "" if s.busy else "nothing is under way"


def _undo(s: Situation) -> str:
    return "" if s.can_undo else "nothing to undo"


def _redo(s: Situation) -> str:
    return "" if s.can_redo else "nothing to redo"


def _graphs(s: Situation) -> str:
    return _captured(s) or ("" if s.graphs > 1 else "the program has one graph")


def _presets(s: Situation) -> str:
    return _recipe(s) or ("" if s.presets else "the engine has not sent its presets yet")


def _edited(s: Situation) -> str:
    return _recipe(s) or ("" if s.edited else "the recipe is the preset's")


def _problem(s: Situation) -> str:
    return "" if s.problem else "nothing has failed"


A = Action
ACTIONS: tuple[Action, ...] = (
    # every pane
    A("move.down", ("j", "down"), "Down", "One line down", "move_down", "any"),
    A("move.up", ("k", "up"), "Up", "One line up", "move_up", "any"),
    A("move.half-down", ("ctrl+d",), "Half a page down", "Half a page down", "move_half_down", "any"),
    A("move.half-up", ("ctrl+u",), "Half a page up", "Half a page up", "move_half_up", "any"),
    A("move.page-down", ("pagedown", "ctrl+f"), "Page down", "A page down", "move_page_down", "any"),
    A("move.page-up", ("pageup", "ctrl+b"), "Page up", "A page up", "move_page_up", "any"),
    A("move.top", ("g g", "home"), "Top", "To the first line", "move_top", "any"),
    A("move.bottom", ("G", "end"), "Bottom", "To the last line", "move_bottom", "any"),
    A("copy", ("y",), "Copy", "Copy the selected row or line to the terminal's clipboard (OSC 52)", "copy", "any"),
    # graph
    A(
        "graph.toggle",
        ("space",),
        "Compiled or eager",
        "Take the node out of compiled code, or back in",
        "toggle",
        "graph",
        _toggle_node,
        "toggle",
    ),
    A(
        "graph.lowering",
        ("enter",),
        "Choose lowering",
        "Choose the registry that lowers the node",
        "choose_lowering",
        "graph",
        _lowering,
        "lowering",
    ),
    A(
        "graph.filter",
        ("f",),
        "Filter",
        "Show only nodes whose row holds a text",
        "ask_filter",
        "graph",
        footer="filter",
    ),
    A("graph.sort", ("s",), "Sort", "Sort by number, name, target or lowering in turn", "sort", "graph", footer="sort"),
    A(
        "graph.details",
        ("o",),
        "Node details",
        "All of the node's row, and what each pass did to it",
        "details",
        "graph",
        footer="details",
    ),
    # passes
    A("passes.toggle", ("space",), "Pass on or off", "Switch the pass on or off", "toggle", "passes", _step, "toggle"),
    A(
        "passes.options",
        ("E", "enter"),
        "Options",
        "Edit the pass's options",
        "edit_options",
        "passes",
        _options,
        "options",
    ),
    A(
        "passes.insert",
        ("i",),
        "Insert pass",
        "Insert a pass from the catalogue below this one",
        "insert",
        "passes",
        _insert,
        "insert",
    ),
    A("passes.delete", ("delete", "x"), "Remove pass", "Take the pass out of the list", "delete", "passes", _step),
    A("passes.down", ("J",), "Move pass down", "Let the pass run later", "move_step_down", "passes", _step, "move"),
    A("passes.up", ("K",), "Move pass up", "Let the pass run earlier", "move_step_up", "passes", _step),
    A("passes.flavour", ("F",), "Flavour", "Lower by linalg or by TOSA first", "next_flavour", "passes", _recipe),
    A("passes.preset", ("P",), "Preset", "Start again from another preset", "choose_preset", "passes", _presets),
    # ir
    A("ir.previous", ("[",), "Previous snapshot", "The IR one pass earlier", "previous", "ir", _stage, anywhere=True),
    A("ir.next", ("]",), "Next snapshot", "The IR one pass later", "next", "ir", _stage, "step", anywhere=True),
    A(
        "ir.previous-changed",
        ("{",),
        "Previous change",
        "The last earlier snapshot that differs",
        "previous_changed",
        "ir",
        _stage,
        anywhere=True,
    ),
    A(
        "ir.next-changed",
        ("}",),
        "Next change",
        "The next later snapshot that differs",
        "next_changed",
        "ir",
        _stage,
        anywhere=True,
    ),
    A(
        "ir.diff",
        ("d",),
        "Diff",
        "What changed since the stage before: off, line by line, or structural, which sees no renumbering",
        "next_diff",
        "ir",
        _engine_stage,
        "diff",
        anywhere=True,
    ),
    A("ir.mark", ("m",), "Mark stage", "Mark the stage, to compare others with it", "mark_stage", "ir", _stage),
    A(
        "ir.diff-against",
        ("D",),
        "Diff against",
        "Compare with the marked stage, with this stage before the last edit, or with the stage before, in turn",
        "next_against",
        "ir",
        _engine_stage,
        anywhere=True,
    ),
    A("ir.next-hunk", ("c",), "Next difference", "The next change of the diff", "next_hunk", "ir", _diff),
    A("ir.previous-hunk", ("C",), "Last difference", "The change of the diff above", "previous_hunk", "ir", _diff),
    A("ir.fold", ("z",), "Unfold", "Unfold the equal lines here, or fold them again", "toggle_fold", "ir", _diff),
    A("ir.search", ("/",), "Search", "Search for a regular expression", "ask_search", "ir", _engine_stage, "search"),
    A(
        "ir.next-match",
        ("n",),
        "Next match",
        "The next line that matches; the next change where nothing is searched for",
        "next_match",
        "ir",
        _found,
    ),
    A(
        "ir.previous-match",
        ("N",),
        "Previous match",
        "The line before that matches, or the change before",
        "previous_match",
        "ir",
        _found,
    ),
    A(
        "ir.same-value",
        ("*",),
        "Same value",
        "Search for the SSA value this line defines",
        "search_value",
        "ir",
        _engine_stage,
    ),
    A(
        "ir.definition",
        ("g d",),
        "Definition",
        "To the definition of the line's operands, one after another",
        "go_definition",
        "ir",
        _engine_stage,
    ),
    A("ir.uses", ("g u",), "Uses", "To the next use of the value this line defines", "go_uses", "ir", _engine_stage),
    A("ir.back", ("ctrl+o",), "Back", "To where the cursor was before a jump", "go_back", "ir"),
    A("ir.forward", (")",), "Forward", "Back again, forward", "go_forward", "ir"),
    A("ir.line", (":",), "Go to line", "Go to a line by its number", "ask_line", "ir", _stage, "line"),
    A("ir.left", ("<", "left"), "Sideways left", "Scroll to the left", "scroll_lines_left", "ir"),
    A("ir.right", (">", "right"), "Sideways right", "Scroll to the right", "scroll_lines_right", "ir"),
    A(
        "ir.node",
        ("enter",),
        "Go to node",
        "Select the line's graph node, or read the diagnostic where a pass failed",
        "open_line",
        "ir",
        _stage,
        "node",
    ),
    A(
        "ir.write",
        ("w",),
        "Write to file",
        "Write the stage's text to a file",
        "ask_write",
        "ir",
        _engine_stage,
        "write",
    ),
    # outputs
    A(
        "outputs.detail",
        ("enter",),
        "Read the diagnostic",
        "The whole diagnostic",
        "open_detail",
        "outputs",
        _problem,
        "diagnostic",
    ),
    # everywhere
    A("run", ("r",), "Run", "Compile, run, and compare with eager", "run_program", "app", _captured, "run"),
    A("rerun", ("R",), "Start over", "Run the script again from its beginning, in a fresh engine", "start_over"),
    A("cancel", ("ctrl+c",), "Cancel", "Stop what is under way", "cancel_jobs", "app", _busy),
    A("undo", ("u",), "Undo", "Take the last edit of the recipe back", "undo", "app", _undo, "undo"),
    A("redo", ("ctrl+r",), "Redo", "Make the undone edit again", "redo", "app", _redo),
    A("reset", (), "Reset recipe", "Back to the preset's recipe; can be undone", "reset", "app", _edited),
    A(
        "save",
        ("S",),
        "Save recipe",
        "Write the recipe to a file that `buddy-tui run --recipe` takes",
        "ask_save",
        "app",
        _recipe,
    ),
    A(
        "threads",
        ("t",),
        "Threads",
        "How many threads compiled code and eager may use",
        "choose_threads",
        "app",
        _recipe,
    ),
    A("auto", ("A",), "Run after each edit", "Run by itself after each edit, or only on r", "toggle_auto"),
    A("graph-next", ("g t",), "Next graph", "The next graph of the program", "next_graph", "app", _graphs),
    A("graph-previous", ("g T",), "Previous graph", "The graph before", "previous_graph", "app", _graphs),
    A("graph-choose", ("g l",), "Graphs", "The program's graphs, to choose from", "choose_graph", "app", _graphs),
    A("run-all", (), "Run every graph", "Run all graphs, each by its own recipe", "run_all", "app", _graphs),
    A("phase", ("p",), "Phases", "Choose a phase of the line", "choose_phase", "app", _stage, "phases"),
    A(
        "phase.number",
        ("1", "2", "3", "4", "5", "6", "7", "8", "9", "0"),
        "Phase 1 to 10",
        "Show the phase of that number",
        "show_phase",
        "app",
        _stage,
    ),
    A(
        "diagnostic",
        ("!",),
        "Go to failure",
        "Show the IR at the failure and its diagnostic",
        "go_failure",
        "app",
        _problem,
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

BY_ID: dict[str, Action] = {action.id: action for action in ACTIONS}


def of_pane(pane: str) -> list[Action]:
    """What can be done in a pane beyond what works everywhere."""
    return [action for action in ACTIONS if action.pane == pane]


def continuations(prefix: str, pane: str) -> list[tuple[str, Action]]:
    """The second strokes after `prefix` that mean something in `pane`, with their actions."""
    here = [action for action in ACTIONS if action.pane in (pane, "any", "app")]
    pairs = [(key.split(), action) for action in here for key in action.keys]
    return [(key[1], action) for key, action in pairs if len(key) == 2 and key[0] == prefix]
