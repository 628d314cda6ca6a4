"""The registry of actions: every action has one method, keys do not conflict, and disabled actions give a reason."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from textual.binding import Binding

from buddy.app.actions import ACTIONS, PANES, Action, Situation, replace_keys, sequence_continuations
from buddy.app.reports.progress_texts import cancelled_text
from buddy.app.screens.detail import help_screen
from buddy.app.widgets.prompt import KEYS as PROMPT_KEYS
from buddy.app.widgets.textual_helpers import pane_bindings, screen_bindings
from buddy.app.workbench.app import Workbench
from buddy.app.workbench.border_lines import key_cells, prompt_cells, prompt_key_at
from buddy.app.workbench.dispatch import UNLISTED_ACTIONS, DispatchError, is_listed, methods_of_actions
from buddy.app.workspace.settings import Settings
from buddy.compiler.protocol import Assignment, NodeRow

NODE = NodeRow(7, "mm.0", "call_function", "mm", "aten.mm.default", "(a, b)", "{}")


@pytest.fixture
def app(tmp_path: Path) -> Workbench:
    return Workbench(str(tmp_path / "none.py"), store=tmp_path / "kept", settings=Settings())


def test_every_action_has_exactly_one_method(app: Workbench) -> None:
    methods = methods_of_actions(ACTIONS, app.targets(), app.panes, lambda: "ir")
    assert list(methods) == [action.id for action in ACTIONS]
    objects = dict([*app.targets(), *app.panes.items()])
    for action in ACTIONS:
        if action.target != "pane":
            assert methods[action.id] == getattr(objects[action.target], action.method)


def test_names_of_targets_are_unique_and_each_is_the_target_of_an_action(app: Workbench) -> None:
    names = [name for name, _ in [*app.targets(), *app.panes.items()]]
    assert Counter(names) == Counter({*names})
    assert {*names, "pane"} == {action.target for action in ACTIONS}


def test_an_action_of_every_pane_runs_in_the_focused_pane(app: Workbench) -> None:
    focused = "graph"
    methods = methods_of_actions(ACTIONS, app.targets(), app.panes, lambda: focused)
    copied: list[str] = []
    for pane_id, pane in app.panes.items():
        pane.text_to_copy = partial(str, pane_id)  # type: ignore[method-assign]
    app.context.dialogs.copy = copied.append  # type: ignore[method-assign]
    for focused in PANES:  # noqa: B007
        methods["copy"]()
    assert copied == list(PANES)


@pytest.mark.parametrize("handler", ["recipe.nothing", "nobody.undo", "pane.toggle_wrap", "recipe", "app.pane_id"])
def test_an_action_without_a_method_fails_at_start(app: Workbench, handler: str) -> None:
    action = Action("some", (), "Some", "Does it", handler)
    with pytest.raises(DispatchError, match=r"some \("):
        methods_of_actions([action], app.targets(), app.panes, lambda: "ir")


def test_an_action_with_two_methods_fails_at_start(app: Workbench) -> None:
    undo = Action("some", (), "Some", "Does it", "recipe.undo")
    twice = [*app.targets(), ("recipe", app.context.edits)]
    with pytest.raises(DispatchError, match="some"):
        methods_of_actions([undo], twice, app.panes, lambda: "ir")
    with pytest.raises(DispatchError, match="some"):
        methods_of_actions([undo, undo], app.targets(), app.panes, lambda: "ir")


@pytest.mark.parametrize("action", ACTIONS, ids=lambda action: action.id)
def test_every_action_has_a_description(action: Action) -> None:
    assert action.title
    assert action.tooltip


@pytest.mark.parametrize("pane", PANES)
def test_no_key_has_two_actions_in_a_pane(pane: str) -> None:
    here = [action for action in ACTIONS if action.pane in (pane, "any", "app") or action.anywhere]
    keys = Counter(key for action in here for key in action.keys)
    assert [key for key, count in keys.items() if count > 1] == []


def test_ids_are_unique() -> None:
    assert len({action.id for action in ACTIONS}) == len(ACTIONS)


def reason(action_id: str, **situation: object) -> str:
    action = next(action for action in ACTIONS if action.id == action_id)
    return action.blocked(Situation(**situation))  # type: ignore[arg-type]


@pytest.mark.parametrize("pane", PANES)
def test_the_help_of_a_pane_lists_every_action_with_its_keys(pane: str) -> None:
    lines = ["".join(part for part, _ in line) for line in help_screen(pane, Situation())._lines]
    here = [action for action in ACTIONS if action.pane in (pane, "any", "app") or action.anywhere]
    missing = [action.id for action in here if not any(action.tooltip in line for line in lines)]
    assert missing == []


def test_every_action_has_a_key_or_a_place_in_the_palette() -> None:
    assert [action.id for action in ACTIONS if action.id in UNLISTED_ACTIONS and not action.keys] == []
    assert [action.id for action in ACTIONS if not action.keys and not is_listed(action)] == []
    # What the palette leaves out is moving about, the palette itself, and ten keys that are one action.
    left_out = [action for action in ACTIONS if not is_listed(action)]
    assert all(action.id.startswith("move.") or action.id in UNLISTED_ACTIONS for action in left_out)


@pytest.mark.parametrize("action", [action for action in ACTIONS if action.default_keys], ids=lambda action: action.id)
def test_every_key_of_an_action_reaches_it(action: Action) -> None:
    panes = [pane for pane in PANES if action.pane in (pane, "any", "app") or action.anywhere]
    for pane in panes:
        single = {key for call, key in bound(pane) if f"'{action.id}'" in call}
        for key in action.default_keys:
            first, *second = key.split()
            if second:
                assert dict(sequence_continuations(first, pane))[second[0]] is action
            else:
                assert spelled_out(key) in single


def bound(pane: str) -> list[tuple[str, str]]:
    """The action that each key of a pane performs."""
    bindings = [*pane_bindings(pane), *screen_bindings()]  # type: ignore[arg-type]
    made = Binding.make_bindings(bindings)
    return [(binding.action, binding.key) for binding in made]


def spelled_out(key: str) -> str:
    """The name of a key in bindings."""
    return next(iter(Binding.make_bindings([Binding(key, "x")]))).key


def test_a_disabled_action_has_a_reason() -> None:
    assert reason("run") == "the engine is starting"
    assert reason("run", engine="ready", has_recipe=True) == "no graph has been captured yet"
    assert reason("undo") == "nothing to undo"
    assert "press R to restart it" in reason("run", engine="lost")
    assert reason("run", engine="ready", has_recipe=True, captured=True) == ""


@pytest.fixture
def other_keys() -> Iterator[None]:
    """Other keys for two actions, and none for a third."""
    replace_keys({"run": ("x",), "ir.next": ("g n",), "rerun": ()})
    yield
    replace_keys({})


@pytest.mark.usefixtures("other_keys")
def test_messages_name_the_keys_in_use() -> None:
    ready = {"engine": "ready", "has_recipe": True, "captured": True}
    assert reason("runs", **ready) == "no run yet: press x to run the program"
    assert cancelled_text() == "Cancelled. Press 'Start over' in the palette to run the script again"
    line = "".join(text for text, _ in key_cells("ir", Situation(), 300))
    assert " [ g n step " in line


def test_the_keys_of_a_prompt_can_be_clicked() -> None:
    line = "".join(text for text, _ in prompt_cells(PROMPT_KEYS, 80))
    assert line.strip() == "enter accepts  escape cancels"
    for key, effect in PROMPT_KEYS:
        start = line.index(f"{key} {effect}")
        assert {prompt_key_at(PROMPT_KEYS, start + offset) for offset in range(len(f"{key} {effect}"))} == {key}
    assert prompt_key_at(PROMPT_KEYS, len(line)) == prompt_key_at(PROMPT_KEYS, 0) == ""


def test_no_message_names_a_default_key() -> None:
    root = Path(__file__).resolve().parents[3] / "app"
    # Keys that no setting changes: of the terminal's server, and while a screen opens.
    fixed = {"web.py", "key_queue.py", "editor.py"}
    key = re.compile(r"[Pp]ress (?:[^\W\d_]|[!/?]|g [^\W\d_]|space|enter|ctrl\+\w)[ \"]")
    found = [
        f"{path.name}: {line.strip()}"
        for path in root.rglob("*.py")
        for line in path.read_text(encoding="utf-8").splitlines()
        if path.name not in fixed and key.search(line)
    ]
    assert found == []


def test_the_toggle_of_a_node_without_lowerings_is_disabled_with_a_reason() -> None:
    ready = {"engine": "ready", "has_recipe": True, "captured": True, "node": NODE}
    only_eager = Assignment("mm.0", "eager", ("eager",))
    assert "no registry lowers aten.mm.default" in reason("graph.toggle", **ready, assignment=only_eager)
    assert reason("graph.toggle", **ready, assignment=Assignment("mm.0", "eager", ("linalg", "eager"))) == ""
    assert "has no lowering" in reason("graph.toggle", **ready)


def test_continuations_of_a_key_sequence_are_found_by_its_first_key() -> None:
    in_ir = {key: action.id for key, action in sequence_continuations("g", "ir")}
    assert {key: in_ir[key] for key in "gdut"} == {
        "g": "move.top",
        "d": "ir.definition",
        "u": "ir.uses",
        "t": "graph-next",
    }
    in_graph = {key: action.id for key, action in sequence_continuations("g", "graph")}
    assert in_graph["g"] == "move.top"
    assert in_graph["f"] == "ir.first-stage", "what works from every pane"
    assert "d" not in in_graph


def test_help_lists_the_keys_of_the_pane_and_why_some_do_not_work() -> None:
    text = "\n".join("".join(part for part, _ in line) for line in help_screen("passes", Situation())._lines)
    assert "Insert a pass from the catalogue" in text
    assert "disabled: the engine is starting" in text
    assert "Run the node in eager" not in text
