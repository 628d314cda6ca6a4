"""Extracted subgraphs, their scripts, and bisection in the workbench."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from buddy.app.reports.searches import bisection_lines, parse_criterion, write_bisection
from buddy.app.screens.results import ResultScreen
from buddy.compiler.protocol import BisectionResult, Criterion, Culprit
from buddy.compiler.protocol.recipe import PassStep, Recipe, from_toml

Open = Callable[..., Any]
FOUND = BisectionResult(
    "flip-one-sign (plug.py) is at fault",
    Recipe(steps=(PassStep("flip-one-sign", enabled=False),)),
    wrong="its results differ from eager's",
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

        bench.app.subgraph_commands._save_script(str(tmp_path / "gelu.py"))
        await bench.until((tmp_path / "gelu.py").exists, "the script")
        said = subprocess.run([sys.executable, str(tmp_path / "gelu.py")], capture_output=True, text=True, check=True)
        assert "torch.float32" in said.stdout

        bench.app.subgraph_commands._begin_bisection("any", "1, 200 s")
        await bench.until(lambda: isinstance(bench.app.screen, ResultScreen), "the answer")
        await bench.until(lambda: bench.shows("nothing to search for"), "its text")
        await bench.press("q", "g", "b")
        assert bench.app.state.graph == 0


def test_a_criterion_is_two_numbers() -> None:
    assert parse_criterion("differs", "10, 5 s") == Criterion("differs", tolerance=10.0, each=5.0)
    assert parse_criterion("slower", "1.5 20") == Criterion("slower", slower=1.5, each=20.0)
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
