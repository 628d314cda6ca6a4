"""Extracted subgraphs, their scripts, and bisection in the workbench."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from buddy.app.commands.reduce import _Bisection
from buddy.app.reports.results import USE
from buddy.app.reports.searches import bisection_lines, parse_criterion, write_bisection
from buddy.app.screens.results import ResultScreen
from buddy.app.workbench.app import Workbench
from buddy.app.workspace.settings import Settings
from buddy.compiler.protocol import BisectionResult, Captured, Criterion, Culprit, GraphInfo
from buddy.compiler.protocol.recipe import PassStep, Recipe, from_toml
from buddy.compiler.tools.reduce.failure import Failure
from buddy.compiler.tools.reduce.reduction import Reduction

Open = Callable[..., Any]
FOUND = BisectionResult(
    "flip-one-sign (plug.py) is at fault",
    Recipe(steps=(PassStep("flip-one-sign", enabled=False),)),
    failure="its results differ from eager's",
    steps=(Culprit(0, PassStep("flip-one-sign"), "plug.py"),),
    nodes=("norm/native_layer_norm.0",),
    confirmed=True,
    name="reduced.mlir",
    before="module {}\n",
    after="module {\n}\n",
    command="python -m buddy.compiler.driver.one_pass reduced.mlir --pass flip-one-sign",
    trials=7,
    seconds=3.21,
)


@pytest.mark.slow
async def test_an_extract_is_a_separate_graph_with_a_way_back(workbench: Open, tmp_path: Path) -> None:
    """`x` extracts a node, `X` saves it as a Python script, `g b` goes back; `b` finds no failure."""
    async with workbench("mlp.py") as bench:
        whole = bench.app.state.graphs
        bench.app.graph.show_node(next(row.stable for row in whole[0].rows if row.target == "aten.gelu.default"))
        await bench.press("x")
        await bench.until(lambda: len(bench.app.state.graphs) == len(whole) + 1, "the extract")
        await bench.settled()
        assert bench.app.state.graph == len(whole)
        assert [row.opcode for row in bench.app.state.info.rows] == ["placeholder", "call_function", "output"]
        await bench.sees("gelu")

        await bench.press("r")
        await bench.until(lambda: bench.app.state.report is not None, "the run")
        assert bench.app.state.report.ok

        bench.app.subgraph_commands._save_script(str(tmp_path / "gelu.v2"))
        await bench.until((tmp_path / "gelu.v2.py").exists, "the script")
        said = subprocess.run(
            [sys.executable, str(tmp_path / "gelu.v2.py")], capture_output=True, text=True, check=True
        )
        assert "torch.float32" in said.stdout

        bench.app.bisect_commands._begin_bisection("any", "1, 200 s")
        await bench.until(lambda: isinstance(bench.app.screen, ResultScreen), "the answer")
        await bench.until(lambda: bench.shows("nothing to search for"), "its text")
        await bench.press("q", "g", "b")
        assert bench.app.state.graph == 0


@pytest.fixture
def app(tmp_path: Path) -> Workbench:
    """A workbench without an engine, whose program has a graph and an extract of it, which was bisected."""
    app = Workbench(str(tmp_path / "none.py"), store=tmp_path / "kept", settings=Settings())
    app.state.graphs = graphs("forward", "extract")
    app.state.graph = 1
    extract = app.state.graphs[1]
    app.subgraph_commands._origins[1] = extract, 0
    app.bisect_commands._latest = _Bisection(replace(FOUND, recipe=replace(FOUND.recipe, graph=1)), extract)
    return app


def graphs(*names: str) -> tuple[GraphInfo, ...]:
    return tuple(GraphInfo(name, ()) for name in names)


@pytest.mark.parametrize("names", [("forward",), ("forward", "extract")])
def test_extracts_and_results_are_of_the_program_that_is_open(app: Workbench, names: tuple[str, ...]) -> None:
    subgraphs, bisections = app.subgraph_commands, app.bisect_commands
    assert subgraphs.is_extract
    bisection = bisections._latest
    assert bisection is not None
    assert bisections._is_current(bisection)
    app.state.apply(Captured(0, graphs(*names)))
    assert not subgraphs.is_extract
    assert not bisections._is_current(bisection)
    said: list[str] = []
    app.context.status.say = said.append  # type: ignore[method-assign]
    bisections._use_answer(bisection, USE)
    assert said == ["the program was opened again: the result of the bisection is out of date"]


def test_saving_a_result_asks_before_it_overwrites(app: Workbench, tmp_path: Path) -> None:
    asked: list[str] = []
    app.context.dialogs.confirm = lambda question, act: asked.append(question)  # type: ignore[method-assign]
    app.context.status.say = lambda message: None  # type: ignore[method-assign]
    folder = tmp_path / "bisected"
    for _ in range(2):
        app.bisect_commands._save_result(FOUND, str(folder))
    assert asked == [f"{folder} already has right.toml and reduced.mlir and reduced.after.mlir. Overwrite?"]
    assert len(list(folder.iterdir())) == 3


def test_a_result_that_is_shown_again_from_the_log_is_used_itself(
    app: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not the recipe of the latest bisection, which another result may have replaced."""
    edited: list[Recipe] = []
    bisections, results, info = app.bisect_commands, app.context.results, app.state.graphs[1]
    monkeypatch.setattr(results, "show", results.add)
    app.context.edits.edit = lambda recipe, title, merge_key="": edited.append(recipe)  # type: ignore[method-assign]
    recipes = [replace(FOUND.recipe, graph=1, threads=threads) for threads in (1, 2)]
    for recipe in recipes:
        bisections._latest = _Bisection(replace(FOUND, recipe=recipe), info)
        bisections._show(bisections._latest)
    for logged in results.logged:
        assert logged.use_answer is not None
        logged.use_answer(USE)
    assert edited == recipes


def test_a_reduction_that_is_shown_again_from_the_log_is_saved_itself(
    app: Workbench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not the module of the latest reduction."""
    asked: list[Callable[[str], object]] = []
    results, reductions = app.context.results, app.reduce_commands
    monkeypatch.setattr(results, "show", results.add)
    monkeypatch.setattr(app.context.dialogs, "ask", lambda title, initial, use: asked.append(use))
    app.context.status.say = lambda message: None  # type: ignore[method-assign]
    texts = ["module {}\n", "module {\n}\n"]
    for text in texts:
        with Reduction(text, Failure("test", ("true", "{}"), str(tmp_path)), jobs=1) as reduction:
            reduction.best = text
            reductions._show(reduction)
    for number, logged in enumerate(results.logged):
        assert logged.use_answer is not None
        logged.use_answer("save")
        asked[-1](str(tmp_path / f"{number}.mlir"))
    assert [(tmp_path / f"{number}.mlir").read_text() for number in range(2)] == texts


def test_a_criterion_is_two_numbers() -> None:
    assert parse_criterion("differs", "10, 5 s") == Criterion("differs", tolerance=10.0, step_seconds=5.0)
    assert parse_criterion("slower", "1.5 20") == Criterion("slower", slower=1.5, step_seconds=20.0)
    for text in ("", "much", "1", "0 3", "1 inf", "nan 2"):
        with pytest.raises(ValueError, match="number"):
            parse_criterion("any", text)


def test_the_result_starts_with_the_culprit(tmp_path: Path) -> None:
    lines = bisection_lines(FOUND)
    assert lines[0] == "flip-one-sign (plug.py) is at fault"
    assert "smallest reproducing set of nodes: norm/native_layer_norm.0" in lines
    assert lines[-1] == "7 trials in 3.2 s"


def test_a_result_is_written_as_a_recipe_and_a_module(tmp_path: Path) -> None:
    written = write_bisection(tmp_path, FOUND)
    assert [path.name for path in written] == ["right.toml", "reduced.mlir", "reduced.after.mlir"]
    assert from_toml((tmp_path / "right.toml").read_text()) == FOUND.recipe
    assert (tmp_path / "reduced.mlir").read_text() == FOUND.before
