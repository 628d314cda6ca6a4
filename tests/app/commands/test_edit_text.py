"""Editing as text on the real engine: the pipeline, and IR from which compilation resumes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from buddy.app.commands.recipe_edits import with_replaced_ir
from buddy.app.screens.editor import EditorScreen, PipelineScreen
from buddy.compiler.protocol.recipe import PassStep

pytestmark = pytest.mark.slow
Open = Callable[..., Any]


async def go_to_stage(bench: Any, name: str) -> None:
    ir = bench.app.ir
    ir.choose(next(row for row in ir.rows if row.stage.name == name))
    await bench.drawn()
    bench.app.context.layout.show_pane("ir")


async def editor(bench: Any, kind: type = EditorScreen) -> Any:
    await bench.until(lambda: isinstance(bench.app.screen, kind) and bench.app.screen.query("TextArea"), "the editor")
    await bench.pilot.pause(0.1)
    return bench.app.screen


async def test_edited_ir_is_verified_compiled_and_undone(workbench: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EDITOR", raising=False)
    monkeypatch.delenv("VISUAL", raising=False)
    async with workbench("arith_add.py", size=(120, 40)) as bench:
        before = bench.app.workspace.recipe
        await go_to_stage(bench, "canonicalize")
        await bench.press("E")
        screen = await editor(bench)
        text = screen.area.text
        assert "arith.addf" in text
        screen.area.load_text(text.replace("arith.addf", "arith.nosuch"))
        await bench.press("ctrl+s")
        await bench.until(lambda: bench.shows("[!]"), "the verdict")
        line = next(k for k, line in enumerate(text.splitlines()) if "arith.addf" in line)
        assert screen.area.cursor_location[0] == line
        screen.area.load_text(text.replace("arith.addf", "arith.mulf"))
        await bench.press("ctrl+s")
        await bench.until(lambda: bench.app.screen is not screen, "the way back")
        await bench.until(lambda: bench.app.workspace.recipe != before, "the edit")
        await bench.settled()
        assert bench.app.state.problem is None
        assert bench.app.ir.chosen_stage.name == "replace-ir"
        assert bench.app.passes.current.name == "replace-ir", "the cursor among the passes is on the edit"
        assert bench.app.ir.chosen_stage.changed
        await bench.press("r")
        await bench.until(lambda: bench.app.state.report is not None, "the report")
        assert not bench.app.state.report.ok, "products are not sums"
        await bench.press("u")
        await bench.settled()
        assert bench.app.workspace.recipe == before


async def test_discarding_an_edited_text_needs_two_keys(workbench: Open) -> None:
    async with workbench("arith_add.py", size=(80, 24)) as bench:
        await go_to_stage(bench, "lower")
        await bench.press("g", "e")
        screen = await editor(bench)
        await bench.type("x")
        await bench.press("ctrl+c")
        assert bench.app.screen is screen
        await bench.sees("again to discard the changes")
        await bench.press("ctrl+c")
        assert bench.app.screen is not screen


async def test_the_pipeline_is_edited_as_text(workbench: Open) -> None:
    async with workbench("arith_add.py", size=(80, 24)) as bench:
        bench.app.context.layout.show_pane("passes")
        await bench.press("e")
        screen = await editor(bench, PipelineScreen)
        area = screen.area
        lines = area.text.splitlines()
        row = next(k for k, line in enumerate(lines) if line.strip() == "cse,")
        area.move_cursor((row, len(lines[row])))
        await bench.press("enter")
        await bench.type("symbol-d")
        await bench.sees("expected a comma or a closing parenthesis")
        await bench.sees("> symbol-dce")
        await bench.press("ctrl+s")
        assert bench.app.screen is screen, "what is wrong is not let through"
        await bench.until(lambda: area.cursor_location[0] == row + 2, "where the comma is missing")
        area.move_cursor((row + 1, len(area.document.get_line(row + 1))))
        await bench.press("tab")
        assert area.document.get_line(row + 1).strip() == "symbol-dce"
        await bench.type(",")
        before = bench.app.workspace.recipe
        await bench.press("ctrl+s")
        await bench.until(lambda: bench.app.workspace.recipe != before, "the edit")
        await bench.settled()
        after = bench.app.workspace.recipe.steps
        place = [step.name for step in after].index("symbol-dce")
        assert (*after[:place], *after[place + 1 :]) == before.steps
        assert after[place].phase == after[place - 1].phase
        assert bench.app.state.problem is None


async def test_a_pass_is_duplicated_and_its_anchor_switched(workbench: Open) -> None:
    async with workbench("arith_add.py", size=(120, 40)) as bench:
        passes = bench.app.passes
        bench.app.context.layout.show_pane("passes")
        await bench.drawn()
        passes.move_to(next(k for k, row in enumerate(passes.rows) if row.name == "cse"))
        count = len(bench.app.workspace.recipe.steps)
        await bench.press("Y")
        assert len(bench.app.workspace.recipe.steps) == count + 1
        assert passes.current.name == "cse"
        await bench.press("a")
        assert passes.current.step.anchor == "func.func"
        await bench.settled()
        assert bench.app.state.problem is None


def test_editing_a_replaced_module_replaces_its_text() -> None:
    steps = (PassStep("linear-sums", "graph", ""), PassStep("cse"))
    once, place = with_replaced_ir(steps, -1, "module {}", "toplevel")
    assert [step.name for step in once] == ["linear-sums", "replace-ir", "cse"]
    assert place == 1
    again, place = with_replaced_ir(once, 1, "module { }", "toplevel")
    assert len(again) == 3
    assert again[1].options == (("text", "module { }"),)
