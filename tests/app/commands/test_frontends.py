"""Choosing the frontend in the workbench, and one node through two pipelines side by side. On the real engine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from buddy.app.screens.frontend_comparison import FrontendComparisonScreen
from buddy.app.screens.picker import PickerScreen

pytestmark = pytest.mark.slow
Open = Callable[..., Any]
PROGRAM = """\
import torch

def model(x, w):
    return torch.nn.functional.gelu(x @ w)

example_inputs = (torch.ones(4, 8), torch.ones(8, 2))
"""
REFUSED = """\
import torch

def model(x):
    return x + 1

example_inputs = (torch.ones(0, 3),)
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return path


async def beside(bench: Any) -> Any:
    """The comparison screen, after both sides are compiled."""
    await bench.until(lambda: isinstance(bench.app.screen, FrontendComparisonScreen), "the screen")
    screen = bench.app.screen
    await settled(bench, screen)
    return screen


async def settled(bench: Any, screen: Any) -> None:
    await bench.until(lambda: not bench.app.session._client._pending, "both pipelines")
    await bench.until(lambda: all(view.note != "compiling" for view in screen._views), "the lines")


def text(view: Any) -> str:
    return "\n".join(line.text for line in view.lines)


async def test_a_node_is_compared_with_each_phase_of_torch_mlir(workbench: Open, program: Path) -> None:
    async with workbench(program, size=(160, 50)) as bench:
        app = bench.app
        app.graph.show_node(next(row.stable for row in app.graph.rows if row.name == "gelu"))
        await bench.press("g", "B")
        screen = await beside(bench)
        ours, theirs = screen._views
        assert "math.erf" in text(ours)
        assert text(theirs).startswith("%")
        assert "torch.aten.gelu" in text(theirs)
        assert ours.region.y == theirs.region.y, "beside each other"
        await bench.sees("torch.aten.gelu")
        await bench.press("right_square_bracket", "right_square_bracket")
        assert "math.erf" in text(theirs)
        assert "linalg.generic" in text(theirs)
        await bench.press("f")
        await settled(bench, screen)
        assert "tosa.erf" in text(theirs)
        await bench.press("f")
        await settled(bench, screen)
        assert "stablehlo" in text(theirs)
        assert app.state.compiled_recipe == app.workspace.recipe, "what is on the screen stays"
        # The recipe's own side leads to its line; the other one to a comparison of all stages.
        line = ours.current.number
        await bench.press("enter")
        await bench.until(lambda: app.screen is app.screen_stack[0], "the workbench")
        await bench.drawn()
        assert (app.ir.chosen_stage.name, app.ir.line_number) == ("lower", line)
        app.context.layout.show_pane("graph")
        await bench.press("g", "B")
        screen = await beside(bench)
        await bench.press("B")
        await bench.until(lambda: app.ir.comparison.others is not None, "the comparison")
        assert app.ir.comparison.others.title == "torch-mlir to linalg"


async def test_errors_of_torch_mlir_are_shown_and_closing_cancels_the_compilation(
    workbench: Open, tmp_path: Path
) -> None:
    script = tmp_path / "refused.py"
    script.write_text(REFUSED)
    async with workbench(script, size=(80, 24)) as bench:
        app = bench.app
        app.graph.show_node(next(row.stable for row in app.graph.rows if row.name == "add"))
        await bench.press("g", "B")
        screen = await beside(bench)
        ours, theirs = screen._views
        assert ours.region.x == theirs.region.x, "one above the other"
        assert not theirs.lines
        assert "no elements" in theirs.problem
        await bench.sees("no elements")
        await bench.press("q")
        # As the frontend it is refused likewise, and one step back undoes it.
        await choose(bench, "torch-mlir, linalg")
        await bench.until(lambda: app.state.problem is not None, "the refusal")
        assert "no elements" in str(app.state.problem)
        await bench.press("u")
        await bench.until(lambda: app.state.problem is None and not app.state.busy, "the recipe from before")
        await bench.settled()
        assert app.state.captured
        assert app.workspace.recipe.frontend == "dynamo"
        await bench.press("g", "B", "q")
        await bench.until(lambda: not app.session._client._pending, "the end of the compilation")


async def choose(bench: Any, wanted: str) -> None:
    await bench.press("g", "F")
    await bench.type(wanted)
    await bench.press("enter")


async def test_the_frontend_is_chosen_and_undone(workbench: Open, program: Path) -> None:
    async with workbench(program, size=(120, 40)) as bench:
        app = bench.app
        before = app.workspace.recipe
        await choose(bench, "torch-mlir, tosa")
        await bench.settled()
        assert app.state.problem is None
        recipe = app.workspace.recipe
        assert (recipe.frontend, recipe.dialect, recipe.preset) == ("torch-mlir", "tosa", "torch-mlir-tosa")
        assert "tosa" in [row.stage.phase for row in app.ir.rows]
        assert app.session_commands.command_line().endswith("--frontend torch-mlir --dialect tosa")
        app.context.layout.show_pane("passes")
        await bench.press("F")
        await bench.settled()
        assert app.workspace.recipe.dialect == "stablehlo"
        assert "stablehlo" in [row.stage.phase for row in app.ir.rows]
        await bench.press("F")
        await bench.settled()
        assert app.workspace.recipe.preset == "torch-mlir"
        await bench.press("u", "u", "u")
        await bench.settled()
        assert app.workspace.recipe == before
        await choose(bench, "export, tosa")
        await bench.settled()
        assert app.state.problem is None
        assert (app.workspace.recipe.steps, app.workspace.recipe.frontend) == (before.steps, "export")
        await bench.press("u")
        await bench.settled()
        await bench.press("r")
        await bench.until(lambda: app.state.report is not None, "the run")
        assert app.state.report.ok


async def test_llvms_passes_are_shown_and_skipped(workbench: Open, program: Path) -> None:
    async with workbench(program, size=(160, 50)) as bench:
        app = bench.app

        def llvm_stages() -> list[str]:
            return [row.stage.name for row in app.session.state.board.rows() if row.stage.phase == "ir"]

        await bench.until(lambda: llvm_stages() == ["translate"], "LLVM IR")
        await bench.press("g", "L")
        await bench.until(lambda: isinstance(app.screen, PickerScreen), "the list")
        await bench.sees("show stages")
        await bench.press("enter")
        await bench.until(lambda: "instcombine" in llvm_stages(), "the stages of LLVM's passes")
        assert llvm_stages()[:2] == ["translate", "optimiser-input"]
        await bench.press("g", "L")
        await bench.until(lambda: isinstance(app.screen, PickerScreen), "the list")
        await bench.press(*"instcombine", "enter")
        await bench.until(lambda: "instcombine" not in llvm_stages(), "the code without the pass")
        assert app.session.workspace.recipe.llvm_disabled == ("instcombine",)
        await bench.press("u")
        await bench.until(lambda: "instcombine" in llvm_stages(), "the pass again")
        assert app.session.workspace.recipe.llvm_stages
