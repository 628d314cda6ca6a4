"""Several graphs of one program: the line of graph tabs, and the separate state of each graph."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from textual.app import App, ComposeResult

from buddy.app.commands.graphs import graph_break_text, graph_cells, graph_of_tab_at, graph_status
from buddy.app.reports import formatting
from buddy.app.session.state import State
from buddy.app.widgets.look import CellLine, cells_length
from buddy.app.workspace.workspace import Workspace
from buddy.compiler import protocol as p
from buddy.compiler.protocol.recipe import Recipe
from tests.support.engine_processes import command, everything_below

Open = Callable[..., Any]
RECOMPILING = Path(__file__).parents[2] / "tools" / "explain" / "data" / "model.py"
BROKEN = p.GraphInfo("Gate", (), break_reason="a branch on a tensor's value", break_line="/home/me/two.py:13")
TIMING = p.Timing(0.1, 0.09, 0.11, 10)


def program(*graphs: p.GraphInfo) -> State:
    state = State()
    state.record_start("open", 1)
    state.apply(p.Captured(1, graphs))
    return state


@pytest.fixture
def state() -> State:
    return program(BROKEN, p.GraphInfo("Gate #2", ()), p.GraphInfo("Head", ()))


@pytest.fixture
def workspace(tmp_path: Path, recipe: Recipe) -> Workspace:
    made = Workspace("two.py", (), tmp_path)
    made.load(recipe)
    return made


def report(graph: int, verdict: Any = "ok", in_eager: int = 0) -> p.RunReport:
    output = p.OutputReport("out", (4,), "f32", 0.0, 0.0, verdict)
    return p.RunReport(graph, (output,), TIMING, TIMING, 3, in_eager, 0.1)


def run(state: State, workspace: Workspace, graph: int, **result: Any) -> None:
    request = 100 + graph
    state.record_start("run", request, workspace.recipe_of(graph))
    state.apply(p.Compiled(request, graph, (), 0.1))
    state.apply(p.Ran(request, report(graph, **result)))


def line(state: State, workspace: Workspace, width: int = 80) -> str:
    return "".join(text for text, _ in graph_cells(state, workspace, width, formatting.UNICODE))


# ---- how each stands -------------------------------------------------------------------------------------------------


def test_a_graph_has_a_status_word(state: State, workspace: Workspace) -> None:
    assert graph_status(state, workspace, 0)[0] == ""
    state.record_start("compile", 2, workspace.recipe_of(0))
    assert graph_status(state, workspace, 0)[0] == "compiling"
    state.apply(p.Assigned(2, 0, (p.Assignment("a", "eager"), p.Assignment("b", "linalg"))))
    state.apply(p.Compiled(2, 0, (), 0.1))
    assert graph_status(state, workspace, 0)[0] == "1 in eager"
    run(state, workspace, 0)
    run(state, workspace, 1, verdict="mismatch")
    run(state, workspace, 2, in_eager=1)
    assert [graph_status(state, workspace, k)[0] for k in range(3)] == ["ok", "MISMATCH", "ok, 1 in eager"]
    workspace.edit(workspace.recipe.toggled(0), "off")
    assert [graph_status(state, workspace, k)[0] for k in range(3)] == ["stale", "MISMATCH", "ok, 1 in eager"]
    state.record_start("compile", 9, workspace.recipe)
    state.apply(p.Failed(9, p.Diagnostic("no")))
    assert [graph_status(state, workspace, k)[0] for k in range(2)] == ["failed", "MISMATCH"]


def test_a_graph_break_has_a_place_and_a_reason() -> None:
    assert graph_break_text(BROKEN) == "graph break at two.py:13: a branch on a tensor's value"
    assert graph_break_text(p.GraphInfo("whole", ())) == ""


def test_the_line_of_graphs_lists_all_and_brackets_the_shown_one(state: State, workspace: Workspace) -> None:
    run(state, workspace, 2)
    assert line(state, workspace) == " graphs [0 Gate] 1 Gate #2  2 Head ok "


@pytest.mark.parametrize("shown", [0, 15, 31])
@pytest.mark.parametrize("width", [80, 120])
def test_a_full_line_of_graphs_shows_the_neighbours_of_the_shown_one(
    workspace: Workspace, shown: int, width: int
) -> None:
    state = program(*(p.GraphInfo(f"SomeRatherLongName #{number}", ()) for number in range(32)))
    state.graph = shown
    cells = graph_cells(state, workspace, width, formatting.UNICODE)
    assert cells_length(cells) <= width
    assert f"[{shown} SomeRatherLongName #{shown}]" in line(state, workspace, width)


def drawn_at(state: State, workspace: Workspace) -> list[int | None]:
    """For each column of the line, the number of the tab drawn there; `None` without a tab."""
    found: list[int | None] = []
    for text, _ in graph_cells(state, workspace, 80, formatting.UNICODE):
        number = re.match(r"[ [](\d+)", text)
        found += [int(number.group(1)) if number else None] * len(text)
    return found


def clicked(state: State, workspace: Workspace) -> list[int | None]:
    """For each column of the screen, the graph that a click on the line of graph tabs shows."""
    return [graph_of_tab_at(state, workspace, 80, formatting.UNICODE, x) for x in range(80)]


@pytest.mark.parametrize("shown", [0, 1, 2])
def test_a_click_on_any_column_of_a_tab_finds_its_graph(state: State, workspace: Workspace, shown: int) -> None:
    run(state, workspace, 2)
    state.graph = shown
    drawn = drawn_at(state, workspace)
    assert [number for number, _ in groupby(drawn)] == [None, 0, 1, 2]
    assert clicked(state, workspace) == drawn + [None] * (80 - len(drawn))


@pytest.mark.parametrize("shown", [0, 15, 31])
def test_a_click_on_the_ellipsis_finds_no_graph(workspace: Workspace, shown: int) -> None:
    state = program(*(p.GraphInfo(f"SomeRatherLongName #{number}", ()) for number in range(32)))
    state.graph = shown
    drawn = drawn_at(state, workspace)
    assert clicked(state, workspace) == drawn + [None] * (80 - len(drawn))
    left_out = [x for x, character in enumerate(line(state, workspace)) if character == "…"]
    assert len(left_out) == (shown > 0) + (shown < 31)
    assert {drawn[x] for x in left_out} == {None}


async def test_a_line_of_cells_reports_the_column_that_is_clicked() -> None:
    reported: list[tuple[int, int]] = []

    class OneLine(App[None]):
        CSS = "CellLine { height: 1; margin-left: 3 }"

        def compose(self) -> ComposeResult:
            yield CellLine(
                lambda width: [("x" * width, "tab")],
                "line",
                on_column_clicked=lambda x, width: reported.append((x, width)),
            )

    async with OneLine().run_test(size=(20, 3)) as pilot:
        for column in (2, 3, 4, 19):
            await pilot.click(offset=(column, 0))
    assert reported == [(0, 17), (1, 17), (16, 17)]


def test_frames_of_one_graph_do_not_change_the_others(state: State, workspace: Workspace) -> None:
    for graph in (0, 1):
        state.record_start("compile", 10 + graph, workspace.recipe_of(graph))
    state.apply(p.StageDone(10, 0, p.Stage(0, "fx", "torch", "t0", 3)))
    state.apply(p.Failed(11, p.Diagnostic("no")))
    assert state.problem is None
    assert [row.stage.text for row in state.board.rows()] == ["t0"]
    state.graph = 1
    assert state.problem is not None
    assert state.board.rows() == []


# ---- on the screen ---------------------------------------------------------------------------------------------------


async def names(bench: Any) -> list[str]:
    return [info.name for info in bench.app.state.graphs]


@pytest.mark.slow
async def test_each_graph_has_its_own_recipe_stages_result_and_undo(workbench: Open) -> None:
    async with workbench("two_models.py", size=(160, 50)) as bench:
        app = bench.app
        assert await names(bench) == ["Gate", "Gate #2", "Gate #3", "Head"]
        await bench.sees("graphs [0 Gate compiled] 1 Gate #2  2 Gate #3  3 Head")
        first = [row.name for row in app.graph.rows]
        await bench.press("space", "r")
        await bench.until(lambda: app.state.report is not None, "the report")
        await bench.settled()
        in_eager = app.workspace.recipe
        assert app.state.report.nodes_eager == 1
        text = app.ir.document.text

        await bench.press("g", "t")
        await bench.settled()
        await bench.sees("[1 Gate #2 compiled]")
        await bench.sees("graph break at two_models.py:17: a branch on a tensor's value")
        assert app.workspace.recipe.choices == ()
        assert app.state.report is None
        assert not app.workspace.can_undo, "an edit of another graph is not undone here"
        assert [row.name for row in app.graph.rows] != first
        assert app.ir.document.text != text
        await bench.press("r")
        await bench.until(lambda: app.state.report is not None, "the report")
        assert app.state.report.graph == 1

        await bench.press("g", "T")
        await bench.settled()
        assert [row.name for row in app.graph.rows] == first
        assert app.workspace.recipe == in_eager
        assert app.state.report.graph == 0
        await bench.sees("[0 Gate ok, 1 in eager] 1 Gate #2 ok ")
        await bench.press("u")
        await bench.settled()
        assert app.workspace.recipe.choices == ()
        await bench.sees("[0 Gate stale]")


@pytest.mark.slow
async def test_each_graph_has_its_own_filter(workbench: Open) -> None:
    async with workbench("two_models.py", size=(160, 50)) as bench:
        graph = bench.app.graph
        await bench.press("f", *"mean", "enter")
        filtered = [row.name for row in graph.rows]
        await bench.press("g", "t")
        await bench.settled()
        assert graph.filter_text == ""
        assert len(graph.rows) == len(bench.app.state.info.rows), "all nodes of the next graph are shown"
        await bench.press("g", "T")
        await bench.settled()
        assert (graph.filter_text, [row.name for row in graph.rows]) == ("mean", filtered)


@pytest.mark.slow
async def test_a_graph_is_chosen_with_the_mouse_from_the_list_and_from_the_palette(workbench: Open) -> None:
    async with workbench("two_models.py", size=(120, 40)) as bench:
        for label, column, graph in ((" 3 Head", 0, 3), (" 1 Gate #2", -1, 0)):
            # The first column of a tab, or the last one of the tab before.
            text = next(row for row in bench.screen if row.startswith(" graphs "))
            await bench.pilot.click("#graphs", offset=(text.index(label) + column, 0))
            await bench.settled()
            assert (bench.app.state.graph, bench.app.workspace.recipe.graph) == (graph, graph)
        await bench.press("g", "l")
        await bench.sees("graph break at two_models.py:16: Unsupported Tensor.item()")
        await bench.type("#3")
        await bench.press("enter")
        await bench.settled()
        assert bench.app.state.graph == 2
        await bench.press("ctrl+p")
        await bench.type("next graph")
        await bench.until(lambda: bench.shows("Show the next graph of the program"), "the command")
        await bench.press("enter")
        await bench.until(lambda: bench.app.state.graph == 3, "the next graph")


@pytest.mark.slow
async def test_the_shown_stage_stays_when_the_graph_changes(workbench: Open) -> None:
    async with workbench("two_models.py") as bench:
        await bench.press("8")
        await bench.drawn()
        key = bench.app.ir.chosen_key
        await bench.press("g", "t")
        await bench.settled()
        assert bench.app.ir.chosen_key == key
        await bench.press("g", "T")
        await bench.settled()
        assert bench.app.ir.chosen_key == key


# A script that ends only if it is opened for its graphs, not if it is run like Python does.
LOOPING = """\
import torch

net = torch.nn.Linear(4, 4)
compiled = torch.compile(lambda x: net(x), backend="eager", dynamic=False)
compiled(torch.ones(2, 4))
compiled(torch.ones(3, 4))
import sys, time
while "buddy.compiler.tools.explain.recorder" in sys.modules:
    time.sleep(0.05)
"""


async def test_the_list_of_fallbacks_leads_to_nodes_and_lines(workbench: Open) -> None:
    async with workbench("two_models.py", size=(120, 40)) as bench:
        app = bench.app
        app.graph.move_to(next(k for k, row in enumerate(app.graph.rows) if row.opcode.startswith("call")))
        node = app.graph.current.stable
        await bench.press("space")
        await bench.settled()
        await bench.press("g", "E")
        await bench.sees("4 graphs")
        await bench.until(lambda: "not compiled yet" not in app.screen._title_text(), "the other graphs")
        rows = app.screen._table.rows
        assert [(row.node, row.graph) for row in rows if row.kind == "eager"] == [(node, 0)]
        assert any(row.kind == "break" and row.line.endswith("two_models.py:16") for row in rows)
        app.graph.move_to(0)
        await bench.press("enter")
        await bench.until(lambda: app.graph.current.stable == node, "the node")
        await bench.press("g", "E")
        await bench.until(lambda: type(app.screen).__name__ == "FallbacksScreen", "the list")
        place = next(k for k, row in enumerate(app.screen._table.rows) if row.kind == "break")
        await bench.press(*["down"] * place, "enter")
        await bench.until(lambda: app.focused is app.source, "the Python line")
        assert app.source.text_to_copy().strip().startswith("print(f")
        assert app.state.graph == 0


@pytest.mark.slow
async def test_the_list_of_recompilations_leads_to_python_lines(workbench: Open) -> None:
    async with workbench(RECOMPILING, size=(140, 40)) as bench:
        app = bench.app
        await bench.press("g", "D")
        await bench.sees("2 graph breaks")
        rows = app.screen._table.rows
        changes = [(row.function, row.change) for row in rows if row.kind == "recompiled"]
        assert ("forward", "[2, 4] -> [3, 4]") in changes
        assert ("<lambda>", "3 -> 4") in changes
        await bench.press("f")
        await bench.sees("only graph breaks")
        assert {row.kind for row in app.screen._table.rows} == {"break"}
        await bench.press("f", "f")
        await bench.sees("only guards")
        assert {row.kind for row in app.screen._table.rows} == {"guard"}
        await bench.press("f", "enter")
        await bench.until(lambda: app.focused is app.source, "the Python line")
        assert app.source.text_to_copy().strip() == 'print("scaled")'


@pytest.mark.slow
async def test_closing_the_list_of_recompilations_stops_the_script(workbench: Open, tmp_path: Path) -> None:
    script = tmp_path / "looping.py"
    script.write_text(LOOPING)

    def recorders() -> list[int]:
        return [pid for pid in everything_below(os.getpid()) if "explain.recorder" in command(pid)]

    async with workbench(script, size=(120, 40)) as bench:
        await bench.press("g", "D")
        await bench.until(lambda: any(row.kind == "recompiled" for row in bench.app.screen._table.rows), "a row")
        assert recorders()
        await bench.press("q")
        await bench.until(lambda: not recorders(), "the end of the script")


@pytest.mark.slow
async def test_all_graphs_are_run_by_one_command(workbench: Open) -> None:
    async with workbench("two_models.py") as bench:
        bench.app.graph_commands.run_all()
        await bench.until(lambda: all(bench.app.state.graph_state_of(k).report for k in range(4)), "the reports")
        assert all(bench.app.state.graph_state_of(k).report.ok for k in range(4))
        await bench.until(lambda: bench.shows("3 Head ok"), "the list of graphs")


@pytest.mark.slow
async def test_the_next_session_shows_the_same_graph_with_its_recipe(workbench: Open) -> None:
    async with workbench("two_models.py") as bench:
        await bench.press("g", "T")
        await bench.settled()
        assert bench.app.state.graph == 3
        await bench.press("space")
        await bench.settled()
        recipes = [bench.app.workspace.recipe_of(number) for number in range(4)]
    async with workbench("two_models.py") as bench:
        assert bench.app.state.graph == 3
        assert [bench.app.workspace.recipe_of(number) for number in range(4)] == recipes
        assert bench.app.workspace.origin == "restored"
        await bench.sees("recipe: restored")


@pytest.mark.slow
async def test_a_program_with_one_graph_has_no_line_of_graphs(workbench: Open) -> None:
    async with workbench("arith_add.py") as bench:
        assert not bench.shows("graphs [")
        await bench.press("g", "t")
        await bench.sees("the program has only one graph")
