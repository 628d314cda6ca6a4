"""The registry of actions: every key leads somewhere, no two to different places, and what is impossible says why."""

from __future__ import annotations

from collections import Counter

import pytest
from textual.binding import Binding

from buddy.app.actions import ACTIONS, PANES, Action, Situation, continuations
from buddy.app.commands.backend import Backends
from buddy.app.commands.compare import Versus
from buddy.app.commands.edit_text import TextEditing
from buddy.app.commands.export import Exporting
from buddy.app.commands.frontend import Frontends
from buddy.app.commands.graphs import Graphs
from buddy.app.commands.overlays import Overlays
from buddy.app.commands.profile import Profiling
from buddy.app.commands.provenance import Provenance
from buddy.app.commands.recipe_edits import Editing
from buddy.app.commands.run import Running
from buddy.app.commands.sessions import Sessions
from buddy.app.commands.subgraphs import Parting
from buddy.app.commands.tune import Tuner
from buddy.app.panes.graph import GraphPane
from buddy.app.panes.ir import IrPane
from buddy.app.panes.layout import Layout
from buddy.app.panes.outputs import OutputsPane
from buddy.app.panes.passes import PassesPane
from buddy.app.panes.source import SourcePane
from buddy.app.screens.help import help_screen
from buddy.app.session.recipe_editor import RecipeEditor
from buddy.app.widgets.bindings import pane_bindings, screen_bindings
from buddy.app.workbench.app import Workbench
from buddy.app.workbench.palette import HIDDEN, listed
from buddy.compiler.protocol import Assignment, NodeRow

CLASSES: dict[str, list[type]] = {
    "app": [
        Workbench,
        Layout,
        Editing,
        RecipeEditor,
        Overlays,
        Graphs,
        Versus,
        TextEditing,
        Running,
        Sessions,
        Parting,
        Profiling,
        Provenance,
        Tuner,
        Backends,
        Frontends,
        Exporting,
    ],
    "any": [GraphPane, PassesPane, IrPane, SourcePane, OutputsPane],
    "graph": [GraphPane],
    "passes": [PassesPane],
    "ir": [IrPane],
    "source": [SourcePane],
    "outputs": [OutputsPane],
}
NODE = NodeRow(7, "mm.0", "call_function", "mm", "aten.mm.default", "(a, b)", "{}")


@pytest.mark.parametrize("action", ACTIONS, ids=lambda action: action.id)
def test_every_action_has_its_handler_and_says_what_it_does(action: Action) -> None:
    found = [callable(getattr(cls, action.handler, None)) for cls in CLASSES[action.pane]]
    others = [callable(getattr(cls, action.handler, None)) for cls in CLASSES["app"]]
    assert all(found) if action.pane == "any" else any(found) or any(others)
    assert action.title
    assert action.tooltip


@pytest.mark.parametrize("pane", PANES)
def test_no_key_means_two_things_in_a_pane(pane: str) -> None:
    here = [action for action in ACTIONS if action.pane in (pane, "any", "app") or action.anywhere]
    keys = Counter(key for action in here for key in action.keys)
    assert [key for key, count in keys.items() if count > 1] == []


def test_ids_are_unique() -> None:
    assert len({action.id for action in ACTIONS}) == len(ACTIONS)


def reason(action_id: str, **situation: object) -> str:
    action = next(action for action in ACTIONS if action.id == action_id)
    return action.blocked(Situation(**situation))  # type: ignore[arg-type]


@pytest.mark.parametrize("pane", PANES)
def test_every_action_is_in_the_help_of_its_pane_and_says_its_keys(pane: str) -> None:
    lines = ["".join(part for part, _ in line) for line in help_screen(pane, Situation())._lines]
    here = [action for action in ACTIONS if action.pane in (pane, "any", "app") or action.anywhere]
    missing = [action.id for action in here if not any(action.tooltip in line for line in lines)]
    assert missing == []


def test_every_action_has_a_key_or_a_place_in_the_palette() -> None:
    assert [action.id for action in ACTIONS if action.id in HIDDEN and not action.keys] == []
    assert [action.id for action in ACTIONS if not action.keys and not listed(action)] == []
    # What the palette leaves out is moving about, the palette itself, and ten keys that are one action.
    left_out = [action for action in ACTIONS if not listed(action)]
    assert all(action.id.startswith("move.") or action.id in HIDDEN for action in left_out)


@pytest.mark.parametrize("action", [action for action in ACTIONS if action.own_keys], ids=lambda action: action.id)
def test_every_key_of_an_action_reaches_it(action: Action) -> None:
    panes = [pane for pane in PANES if action.pane in (pane, "any", "app") or action.anywhere]
    for pane in panes:
        single = {key for call, key in bound(pane) if f"'{action.id}'" in call}
        for key in action.own_keys:
            first, *second = key.split()
            if second:
                assert dict(continuations(first, pane))[second[0]] is action
            else:
                assert spelled_out(key) in single


def bound(pane: str) -> list[tuple[str, str]]:
    """What each key of a pane calls."""
    bindings = [*pane_bindings(pane), *screen_bindings()]  # type: ignore[arg-type]
    made = Binding.make_bindings(bindings)
    return [(binding.action, binding.key) for binding in made]


def spelled_out(key: str) -> str:
    """A key by the name that bindings have it under."""
    return next(iter(Binding.make_bindings([Binding(key, "x")]))).key


def test_a_disabled_action_says_why() -> None:
    assert reason("run") == "the engine is starting"
    assert reason("run", engine="ready", recipe=True) == "no graph has been captured yet"
    assert reason("undo") == "nothing to undo"
    assert "R restarts it" in reason("run", engine="lost")
    assert reason("run", engine="ready", recipe=True, captured=True) == ""


def test_a_node_that_no_registry_lowers_stays_in_eager_and_says_so() -> None:
    ready = {"engine": "ready", "recipe": True, "captured": True, "node": NODE}
    only_eager = Assignment("mm.0", "eager", ("eager",))
    assert "no registry lowers aten.mm.default" in reason("graph.toggle", **ready, assignment=only_eager)
    assert reason("graph.toggle", **ready, assignment=Assignment("mm.0", "eager", ("linalg", "eager"))) == ""
    assert "not lowered" in reason("graph.toggle", **ready)


def test_two_strokes_are_found_by_the_first() -> None:
    in_ir = {key: action.id for key, action in continuations("g", "ir")}
    assert {key: in_ir[key] for key in "gdut"} == {
        "g": "move.top",
        "d": "ir.definition",
        "u": "ir.uses",
        "t": "graph-next",
    }
    in_graph = {key: action.id for key, action in continuations("g", "graph")}
    assert in_graph["g"] == "move.top"
    assert in_graph["f"] == "ir.first-stage", "what works from every pane"
    assert "d" not in in_graph


def test_help_lists_the_keys_of_the_pane_and_why_some_do_not_work() -> None:
    text = "\n".join("".join(part for part, _ in line) for line in help_screen("passes", Situation())._lines)
    assert "Insert a pass from the catalogue" in text
    assert "not now: the engine is starting" in text
    assert "Take the node out" not in text
