"""The cursor of the IR pane stays on the node that the user follows: over stages, edits, undo and restarts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from buddy.app.commands.recipe_edits import editor_command
from buddy.app.panes.ir_comparison import ComparedStages
from buddy.app.panes.ir_loader import similar_lines, users_of
from buddy.app.screens.editor import EditorScreen
from buddy.app.session.stages import StageRow, key_stages
from buddy.compiler.protocol import NodeRow, Stage

Open = Callable[..., Any]


# ---- without an engine -------------------------------------------------------------------------------------------


def test_a_line_is_found_by_all_but_the_names_of_its_values() -> None:
    pattern = similar_lines("    %12 = linalg.generic {maps = [#map3, #map]} ins(%9#1, %cst_4 : f32) {").compile()
    assert pattern.search("  %7 = linalg.generic {maps = [#map1, #map2]} ins(%20:2, %c : f32) {")
    assert not pattern.search("  %7 = linalg.generic {maps = [#map1, #map2]} ins(%20#1, %c : f64) {")


def test_the_users_of_a_node_come_nearest_first() -> None:
    rows = [
        NodeRow(0, "view.0", "call_function", "view", "aten.view", "", ""),
        NodeRow(1, "mm.0", "call_function", "mm", "aten.mm", "", "", inputs=(0,)),
        NodeRow(2, "add.0", "call_function", "add", "aten.add", "", "", inputs=(1,)),
        NodeRow(3, "t.0", "call_function", "t", "aten.t", "", "", inputs=(0,)),
    ]
    assert users_of(rows, "view.0") == ["mm.0", "t.0", "add.0"]
    assert users_of(rows, "add.0") == []


def _rows(*stages: Stage) -> list[StageRow]:
    return [StageRow(stage, key) for key, stage in key_stages(stages)]


def test_the_first_stage_that_differs_is_the_first_with_another_text_or_an_added_pass_that_changed_it() -> None:
    lower, cse = Stage(0, "lower", "top", "a", 1), Stage(1, "cse", "fused", "b", 1)
    others = ComparedStages("other", (lower, cse))
    assert others.first_difference(_rows(lower, cse)) is None
    assert others.first_difference(_rows(lower, replace(cse, text="c"))).stage.name == "cse"
    added = Stage(1, "sink", "fused", "a", 1, changed=False)
    assert others.first_difference(_rows(lower, added, cse)) is None
    changed = replace(added, text="d", changed=True)
    assert others.first_difference(_rows(lower, changed, cse)).stage.name == "sink"


def test_a_stage_of_an_inserted_pass_is_compared_with_the_stage_before_it() -> None:
    a, b = Stage(0, "a", "fused", "1", 1), Stage(1, "b", "fused", "2", 1)
    new = Stage(1, "new", "fused", "3", 1)
    others = ComparedStages("other", (a, b))
    between, last = _rows(a, new, b), _rows(a, b, new)
    assert others.counterpart(between[1], between) == a
    assert others.counterpart(between[2], between) == b
    assert others.counterpart(last[2], last) == b


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("/usr/bin/vim", ["/usr/bin/vim", "+12", "/tmp/x.mlir"]),
        ("nano", ["nano", "+12", "/tmp/x.mlir"]),
        ("hx", ["hx", "/tmp/x.mlir:12"]),
        ("code", ["code", "--goto", "/tmp/x.mlir:12"]),
        ("my-editor", ["my-editor", "/tmp/x.mlir"]),
    ],
)
def test_editors_open_at_the_line(command: str, expected: list[str]) -> None:
    assert editor_command([command], Path("/tmp/x.mlir"), 11) == expected
    assert editor_command([command], Path("/tmp/x.mlir"), 0) == [command, "/tmp/x.mlir"]


# ---- on the engine -----------------------------------------------------------------------------------------------


async def _show(bench: Any, name: str) -> None:
    ir = bench.app.ir
    ir.choose(next(row for row in ir.rows if row.stage.name == name))
    await bench.drawn()
    bench.app.context.layout.show_pane("ir")
    await bench.pilot.pause()


async def _go_to(bench: Any, words: str) -> int:
    """Move the cursor to the first line of the stage with these words. Returns the line."""
    ir = bench.app.ir
    row = next(row for row in range(ir.row_count) if (line := ir.line_at(row)) is not None and words in line.text)
    ir.move_to(row)
    await bench.passed_on()
    return int(ir.line_number)


def _line(bench: Any) -> Any:
    return bench.app.ir.line_at(bench.app.ir.cursor)


async def _toggle(bench: Any, name: str) -> None:
    """Switch a pass on or off, as another edit does that leaves the focus in the IR pane."""
    workspace = bench.app.workspace
    steps = tuple(
        replace(step, enabled=not step.enabled) if step.name == name else step for step in workspace.recipe.steps
    )
    bench.app.context.edits.edit(replace(workspace.recipe, steps=steps), f"{name} toggled")
    await bench.settled()


@pytest.mark.slow
async def test_the_cursor_follows_the_node_over_stages_and_says_where_it_was_fused(
    workbench: Open, messages: Any
) -> None:
    async with workbench("mlp.py", size=(160, 50)) as bench:
        said, ir, selection = messages(bench.app), bench.app.ir, bench.app.context.selection
        await _show(bench, "fold-transposes")
        await _go_to(bench, "math.erf")
        gelu = selection.node
        assert selection.name_of(gelu) == "act/gelu.0"
        await bench.press("]")
        await bench.drawn()
        assert ir.chosen_stage.name == "fuse-elementwise"
        assert gelu in _line(bench).nodes
        # Another node is followed from here on: the earlier stage shows it too, not the line that was left there.
        norm = next(row.stable for row in bench.app.state.info.rows if row.name == "native_layer_norm")
        ir.move_to(
            next(row for row in range(ir.row_count) if norm in ir.nodes_of(row) and gelu not in ir.nodes_of(row))
        )
        assert selection.node == norm
        await bench.press("[")
        await bench.drawn()
        assert ir.chosen_stage.name == "fold-transposes"
        assert norm in _line(bench).nodes
        # A transpose becomes a part of the product that reads it, and `canonicalize` removes what is left of it.
        await _show(bench, "lower")
        await _go_to(bench, "linalg.transpose")
        transpose = selection.node
        await _show(bench, "canonicalize")
        await bench.until(lambda: any("has no line" in text for text in said), "where the lines of the node end")
        assert said[-1] == "up/t.0 has no line after canonicalize; the cursor is at up/addmm.0"
        assert selection.node == transpose, "the node is still followed"
        assert selection.name_of(_line(bench).nodes[0]) == "up/addmm.0"


@pytest.mark.slow
async def test_after_edits_undo_and_a_restart_the_cursor_is_at_the_same_node_stage_and_line(workbench: Open) -> None:
    async with workbench("mlp.py", size=(160, 50)) as bench:
        ir, selection = bench.app.ir, bench.app.context.selection
        await _show(bench, "fuse-elementwise")
        line = await _go_to(bench, "math.erf")
        text, node, key = ir.document.text, selection.node, ir.chosen_key
        # The edit changes the text of the stage: the cursor is on the same op.
        await _toggle(bench, "fold-transposes")
        assert ir.chosen_key == key
        assert ir.document.text != text
        assert "math.erf" in _line(bench).text
        assert node in _line(bench).nodes
        await bench.press("u")
        await bench.settled()
        assert (ir.document.text, ir.chosen_key, ir.line_number, selection.node) == (text, key, line, node)
        # The edit removes the stage: undo brings back the stage, and the line in it.
        await _toggle(bench, "fuse-elementwise")
        assert ir.chosen_key != key
        await bench.press("u")
        await bench.settled()
        assert (ir.document.text, ir.chosen_key, ir.line_number, selection.node) == (text, key, line, node)
        await bench.press("R")
        await bench.until(lambda: bench.app.state.engine != "ready", "the end of the engine")
        await bench.settled()
        assert (ir.document.text, ir.chosen_key, ir.line_number, selection.node) == (text, key, line, node)
        assert bench.app.graph.current.stable == node


@pytest.mark.slow
async def test_a_new_session_opens_at_the_line_of_the_last_one(workbench: Open) -> None:
    def place(bench: Any) -> tuple[object, ...]:
        ir = bench.app.ir
        return (
            ir.chosen_key,
            ir.document.text,
            ir.line_number,
            ir.cursor - ir.first_row,
            bench.app.context.selection.node,
        )

    async with workbench("mlp.py", size=(160, 50)) as bench:
        await _show(bench, "fuse-elementwise")
        await _go_to(bench, "math.erf")
        assert await bench.app.ir._loader._main_line_of_selected(bench.app.ir.document.text) != bench.app.ir.line_number
        before = place(bench)
    async with workbench("mlp.py", size=(160, 50)) as bench:
        await bench.drawn()
        assert place(bench) == before
        # The text is another one than that of the last session: the cursor is on the same op.
        await _toggle(bench, "fold-transposes")
    async with workbench("mlp.py", size=(160, 50)) as bench:
        await bench.drawn()
        assert bench.app.ir.chosen_key == before[0]
        assert "math.erf" in _line(bench).text


@pytest.mark.slow
async def test_a_comparison_opens_at_the_first_stage_that_differs(workbench: Open, messages: Any) -> None:
    async with workbench("mlp.py", size=(160, 50)) as bench:
        ir, said = bench.app.ir, messages(bench.app)
        await _toggle(bench, "fold-transposes")
        await _show(bench, "llvm-legalize" if any(row.stage.name == "llvm-legalize" for row in ir.rows) else "lower")
        await bench.press("B")
        await bench.type("the first recipe")
        await bench.press("enter")
        await bench.until(lambda: any("first stage that differs" in text for text in said), "the comparison")
        await bench.until(lambda: ir.document.diff is not None and ir.is_drawn, "the diff")
        others = dict(key_stages(ir.comparison.others.stages))
        earlier = ir.rows[: ir.stages.index]
        assert all(others[row.key].text == row.stage.text for row in earlier)
        assert others[ir.chosen_key].text != ir.chosen_stage.text
        assert ir.cursor == ir.document.diff.changes[0]
        await bench.press("B")
        await bench.type("the current recipe")
        await bench.press("enter")
        await bench.until(lambda: said[-1] == "no stage differs from the current recipe", "the comparison")


@pytest.mark.slow
async def test_the_editor_opens_at_the_line_of_the_cursor(workbench: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EDITOR", raising=False)
    monkeypatch.delenv("VISUAL", raising=False)
    async with workbench("mlp.py", size=(120, 40)) as bench:
        await _show(bench, "fuse-elementwise")
        line = await _go_to(bench, "math.erf")
        await bench.press("E")
        screen = await bench.opened(EditorScreen)
        await bench.until(lambda: screen.area.cursor_location == (line, 0), "the cursor of the editor")
        assert "math.erf" in screen.area.text.splitlines()[line]
