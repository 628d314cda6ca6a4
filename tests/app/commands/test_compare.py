"""Comparison of the current recipe with another one, and of all presets, on the real engine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from buddy.app.reports.text.unified import unified_diff
from buddy.app.screens.presets import PresetsScreen
from buddy.app.screens.tables import TrialsScreen
from buddy.compiler.protocol.recipe import PluginFile, to_toml

pytestmark = pytest.mark.slow
Open = Callable[..., Any]


async def test_a_stage_is_compared_with_the_same_stage_of_another_recipe(workbench: Open) -> None:
    async with workbench("mlp.py", size=(120, 40)) as bench:
        ir, passes = bench.app.ir, bench.app.passes
        await bench.press("B")
        await bench.type("the current recipe")
        await bench.press("enter")
        await bench.until(lambda: ir.comparison.others is not None, "the other side")
        passes.move_to(next(k for k, row in enumerate(passes.rows) if row.name == "fold-transposes"))
        passes.toggle_pass()
        await bench.settled()
        ir.choose(next(row for row in ir.rows if row.stage.name == "fuse-elementwise"))
        await bench.until(lambda: ir.document.diff is not None and ir.is_drawn, "the diff")
        assert ir.document.diff.hunks
        assert "from fuse-elementwise (the current recipe)" in ir.comparison.header_texts()
        ir.choose(next(row for row in ir.rows if row.stage.name == "lower"))
        await bench.until(lambda: ir.is_drawn, "the diff")
        assert not ir.document.diff.hunks
        assert bench.app.state.compiled_recipe == bench.app.workspace.recipe, (
            "the recipe on the screen is still compiled"
        )


async def test_two_graphs_are_compared(workbench: Open, tmp_path: Path, monkeypatch: Any) -> None:
    async with workbench("two_models.py", size=(120, 40)) as bench:
        await bench.press("B")
        await bench.type("graph 1")
        await bench.press("enter")
        ir = bench.app.ir
        await bench.until(lambda: ir.comparison.others is not None, "the other graph")
        ir.choose(next(row for row in ir.rows if row.stage.name == "lower"))
        await bench.until(lambda: ir.document.diff is not None and ir.is_drawn, "the diff")
        assert ir.document.diff.hunks
        # A recipe of another user is compiled without the plug-ins that it names.
        asked, compile_for_comparison = [], bench.app.session.compile_for_comparison
        monkeypatch.setattr(
            bench.app.session,
            "compile_for_comparison",
            lambda recipe: asked.append(recipe) or compile_for_comparison(recipe),
        )
        theirs = tmp_path / "theirs.toml"
        theirs.write_text(to_toml(replace(bench.app.workspace.recipe, plugins=(PluginFile("theirs.py"),))))
        bench.app.compare_commands._compare_with_file(str(theirs))
        await bench.until(lambda: ir.comparison.others.title == theirs.name, "the other recipe")
        assert [recipe.plugins for recipe in asked] == [()]
        without_steps = tmp_path / "without_steps.toml"
        without_steps.write_text("frontend = 'torch-mlir'\ndialect = 'tosa'")
        bench.app.compare_commands._compare_with_file(str(without_steps))
        await bench.until(lambda: len(asked) == 2, "the recipe without steps")
        presets = {preset.name: preset.recipe for preset in bench.app.state.presets}
        assert asked[-1].steps == presets["torch-mlir-tosa"].steps


async def test_presets_are_compared_and_one_is_chosen(workbench: Open) -> None:
    async with workbench("arith_add.py", size=(80, 24)) as bench:
        await bench.press("g", "p")
        screen = bench.app.screen
        assert isinstance(screen, PresetsScreen)
        rows = screen._table.rows
        assert [row.title for row in rows] == ["default", "upstream"], "those that suit a program from Dynamo"
        await bench.until(lambda: all(row.compiled for row in screen._table.rows), "all presets")
        assert all(row.n_ops and row.n_assembly_lines and row.n_changing_passes for row in screen._table.rows)
        await bench.press("r")
        await bench.until(lambda: all(row.report for row in screen._table.rows), "all runs")
        assert all(row.report.ok for row in screen._table.rows)
        await bench.press("j", "enter")
        await bench.settled()
        assert bench.app.workspace.recipe.preset == bench.app.state.presets[1].name


def test_unified_diffs_equal_those_of_diff() -> None:
    before = "".join(f"line {k}\n" for k in range(1, 31))
    after = before.replace("line 3\n", "LINE 3\n").replace("line 20\n", "")
    text = unified_diff(before, after, [(2, 1, 2, 1), (19, 1, 19, 0)], "a", "b")
    assert text.splitlines()[:4] == ["--- a", "+++ b", "@@ -1,6 +1,6 @@", " line 1"]
    assert "@@ -17,7 +17,6 @@\n line 17\n line 18\n line 19\n-line 20\n line 21\n" in text


async def test_passes_are_tried_on_a_stage_and_one_is_inserted(workbench: Open) -> None:
    async with workbench("arith_add.py", size=(80, 24)) as bench:
        passes = bench.app.passes
        bench.app.context.layout.show_pane("passes")
        await bench.drawn()  # the cursor goes to the first change, when the pane is shown first
        passes.move_to(next(k for k, row in enumerate(passes.rows) if row.name == "lower"))
        await bench.press("w")
        screen = bench.app.screen
        assert isinstance(screen, TrialsScreen)
        await bench.until(lambda: len(screen._previews) == len(screen._candidates), "all passes")
        names = [attempt.step.name for attempt in screen._table.rows if attempt.tried.changed]
        assert "convert-arith-to-llvm" in names
        screen._table.move_to(names.index("linalg-specialize-generic-ops"))
        await bench.press("enter")
        await bench.settled()
        (step,) = [step for step in bench.app.workspace.recipe.steps if step.name == "linalg-specialize-generic-ops"]
        first = next(step for step in bench.app.workspace.recipe.steps if step.level == "mlir")
        assert step == first, "below the row that it was tried on"
        await bench.press("o")
        await bench.sees("+1      linalg.add")
        await bench.press("q")


async def test_closing_the_list_cancels_the_trials(workbench: Open) -> None:
    async with workbench("arith_add.py", size=(80, 24)) as bench:
        passes = bench.app.passes
        bench.app.context.layout.show_pane("passes")
        await bench.drawn()  # the cursor goes to the first change, when the pane is shown first
        passes.move_to(next(k for k, row in enumerate(passes.rows) if row.name == "lower"))
        await bench.press("w", "q")
        await bench.until(lambda: not bench.app.session._client._pending, "the end of the trials")
