"""Copying from IR and source: ranges of lines by keys and by the mouse, ops with their regions, functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

Open = Callable[..., Any]

pytestmark = pytest.mark.slow


async def _copied(bench: Any, *keys: str) -> str:
    """Press keys, and wait for the text that they copy."""
    bench.app._clipboard = ""
    await bench.press(*keys)
    await bench.until(lambda: bench.app.clipboard, "the copy")
    return str(bench.app.clipboard)


async def _show(bench: Any, name: str) -> None:
    ir = bench.app.ir
    ir.choose(next(row for row in ir.rows if row.stage.name == name))
    await bench.drawn()
    bench.app.context.layout.show_pane("ir")
    await bench.pilot.pause()


def _row(bench: Any, words: str) -> int:
    ir = bench.app.ir
    return next(row for row in range(ir.row_count) if words in ir.line_at(row).text)


async def test_lines_ops_and_functions_of_ir_are_copied(workbench: Open, messages: Any) -> None:
    async with workbench("mlp.py", size=(160, 50)) as bench:
        app, ir, said = bench.app, bench.app.ir, messages(bench.app)
        await _show(bench, "lower")
        lines = [ir.line_at(row).text for row in range(ir.row_count)]
        ir.move_to(10)
        assert await _copied(bench, "y") == lines[10]
        assert await _copied(bench, "shift+down", "shift+down", "y") == "\n".join(lines[10:13])
        assert said[-1].startswith("copied 3 lines: ")
        assert list(ir.selected_range) == [10, 11, 12], "the selection stays"
        # Upwards, across the start of the selection.
        assert await _copied(bench, *["shift+up"] * 4, "y") == "\n".join(lines[8:11])
        await bench.press("j")
        assert list(ir.selected_range) == [9], "a movement without shift ends the selection"
        # An op with a region: from its first line, and from the line that closes it.
        first = _row(bench, "linalg.generic")
        last = next(row for row in range(first, len(lines)) if lines[row].strip().startswith("}"))
        for row in (first, last):
            ir.move_to(row)
            assert await _copied(bench, "Y") == "\n".join(lines[first : last + 1])
        ir.move_to(_row(bench, "arith.addf"))
        assert (await _copied(bench, "Y")).strip().startswith("%")
        assert "\n" not in app.clipboard, "an op without regions is one line"
        function = _row(bench, "func.func @forward")
        text = await _copied(bench, "g", "Y")
        assert text.startswith(lines[function])
        assert text.split("\n")[-1] == "  }"
        assert said[-1].startswith("copied function forward, ")
        ir.move_to(0)
        await bench.press("g", "Y")
        await bench.until(lambda: said[-1] == "the line at the cursor is in no function", "the reason")


async def test_folded_lines_are_copied_and_diffs_as_shown(workbench: Open) -> None:
    async with workbench("mlp.py", size=(160, 50)) as bench:
        ir = bench.app.ir
        await _show(bench, "lower")
        lines = [ir.line_at(row).text for row in range(ir.row_count)]
        first = _row(bench, "linalg.generic")
        ir.move_to(first)
        await bench.press("z")
        await bench.until(lambda: ir.row_count < len(lines), "the fold")
        ir.move_to(first - 1)
        text = await _copied(bench, "shift+down", "y")
        assert text == "\n".join(lines[first - 1 : first - 1 + text.count("\n") + 1])
        assert text.count("\n") > 1, "with the lines of the fold"
        await _show(bench, "fold-transposes")
        await bench.press("d")
        await bench.until(lambda: ir.document.diff is not None and ir.is_drawn, "the diff")
        ir.move_to(ir.document.diff.changes[0])
        text = await _copied(bench, "shift+down", "y")
        assert text.split("\n") == [ir.line_at(row).text for row in ir.selected_range]


async def test_the_mouse_selects_lines(workbench: Open) -> None:
    async with workbench("mlp.py", size=(160, 50)) as bench:
        ir = bench.app.ir
        await _show(bench, "lower")
        await bench.pilot.click(ir, offset=(10, 6))
        start = ir.cursor
        await bench.pilot.mouse_down(ir, offset=(10, 8))
        await bench.pilot.hover(ir, offset=(20, 10))
        await bench.pilot.hover(ir, offset=(20, 12))
        await bench.pilot.mouse_up(ir, offset=(20, 12))
        await bench.pilot.pause()
        assert list(ir.selected_range) == [start + 2, start + 3, start + 4, start + 5, start + 6]
        assert (await _copied(bench, "y")).count("\n") == 4
        await bench.pilot.click(ir, offset=(10, 6))
        assert list(ir.selected_range) == [start], "a click ends the selection"


async def test_lines_of_the_source_are_copied(workbench: Open) -> None:
    async with workbench("mlp.py", size=(160, 50)) as bench:
        app = bench.app
        await bench.press("g", "P")
        await bench.until(lambda: app.source.row_count > 0, "the file")
        app.context.layout.show_pane("source")
        await bench.pilot.pause()
        app.source.move_to(0)
        text = await _copied(bench, "shift+down", "y")
        with open(app.workspace.source) as file:
            assert text.split("\n") == [line.rstrip("\n") for line in file][:2]
