"""Diffs of stages in the workbench on the real engine, driven by keys."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.slow
Open = Callable[..., Any]


async def show(bench: Any, name: str) -> None:
    """Go to the first stage of that name."""
    ir = bench.app.ir
    ir.choose(next(row for row in ir.rows if row.stage.name == name))
    await drawn(bench)


async def drawn(bench: Any) -> None:
    ir = bench.app.ir
    await bench.until(lambda: ir.is_drawn, "the diff")
    await bench.pilot.pause(0.05)


async def press(bench: Any, *keys: str) -> None:
    await bench.press(*keys)
    await drawn(bench)


def signs(bench: Any) -> set[str]:
    diff = bench.app.ir.document.diff
    return {diff.row(k).kind for k in range(diff.count)}


async def test_d_goes_from_off_to_line_to_structural_and_back(workbench: Open) -> None:
    async with workbench("mlp.py", size=(120, 40)) as bench:
        ir = bench.app.ir
        ir.focus()
        await show(bench, "fold-transposes")
        await press(bench, "d")
        await bench.sees("line diff ")
        assert {"removed", "added", "same"} <= signs(bench)
        by_line = sum(hunk[1] + hunk[3] for hunk in ir.document.diff.hunks)
        await press(bench, "d")
        await bench.sees("structural diff ")
        by_structure = sum(hunk[1] + hunk[3] for hunk in ir.document.diff.hunks)
        assert 0 < by_structure < by_line, "renumbered lines are not structural changes"
        await press(bench, "d")
        assert ir.document.diff is None
        assert ir.row_count == ir.chosen_stage.lines


async def test_stepping_compares_each_stage_with_the_one_before(workbench: Open) -> None:
    async with workbench("mlp.py", size=(120, 40)) as bench:
        ir = bench.app.ir
        await show(bench, "fold-transposes")
        await press(bench, "d", "d")
        for key in ("right_curly_bracket", "left_square_bracket", "left_square_bracket", "right_square_bracket"):
            await press(bench, key)
            place = next(k for k, row in enumerate(ir.rows) if row.key == ir.chosen_key)
            assert ir.rows[place - 1].stage.language == ir.chosen_stage.language == "mlir"
            assert ir.document.other.text == ir.rows[place - 1].stage.text
            assert bool(ir.document.diff.hunks) <= ir.chosen_stage.changed
            assert ir.document.diff.hunks or bench.shows("no change") or bench.shows("no structural change")


async def test_a_stage_that_changed_nothing_is_one_fold_and_says_so(workbench: Open) -> None:
    async with workbench("mlp.py", size=(120, 40)) as bench:
        ir = bench.app.ir
        ir.choose(next(row for row in ir.rows if not row.stage.changed and row.stage.language == "mlir"))
        await press(bench, "d", "d")
        assert ir.document.diff.row(0).folded == ir.chosen_stage.lines
        await bench.sees("no change")


async def test_a_marked_stage_is_compared_with_any_other(workbench: Open) -> None:
    async with workbench("mlp.py", size=(120, 40)) as bench:
        app, ir = bench.app, bench.app.ir
        ir.focus()
        await show(bench, "lower")
        await bench.press("m")
        marked = ir.chosen_stage
        await show(bench, "fuse-elementwise")
        await press(bench, "D")
        assert ir.document.other == marked
        await bench.sees("structural diff from lower (marked)")
        removed = next(row for row in range(ir.document.row_count) if ir.document.diff.row(row).kind == "removed")
        ir.center(removed)
        for key in ("o", "e"):
            app.context.status.message = ""
            await bench.press(key)
            await bench.until(lambda: "removed" in app.context.status.message, "the reason")
        await bench.press("m")
        marked = ir.chosen_stage
        await show(bench, "lower")
        await press(bench, "D")
        assert (ir.comparison.baseline, ir.document.other) == ("marked", marked)
        await show(bench, "fuse-elementwise")
        await press(bench, "D")
        assert ir.comparison.baseline == "previous", "there has been no edit yet"


async def test_after_an_edit_a_stage_is_compared_with_what_it_was(workbench: Open) -> None:
    async with workbench("mlp.py", size=(120, 40)) as bench:
        ir, passes = bench.app.ir, bench.app.passes
        await show(bench, "fuse-elementwise")
        before = ir.chosen_stage
        await bench.press("tab")
        passes.move_to(next(k for k, row in enumerate(passes.rows) if row.name == "fold-transposes"))
        await bench.press("space")
        await bench.settled()
        await show(bench, "fuse-elementwise")
        await press(bench, "D")
        assert ir.document.other.text == before.text != ir.chosen_stage.text
        await bench.sees("before the last edit")
        assert ir.document.diff.hunks


async def test_a_stage_in_another_language_than_the_one_before_is_compared_with_itself_before_the_edit(
    workbench: Open,
) -> None:
    async with workbench("mlp.py", size=(160, 40)) as bench:
        ir, passes = bench.app.ir, bench.app.passes
        ir.focus()
        ir.choose(ir.rows[-1])
        assert (ir.rows[-2].stage.language, ir.chosen_stage.language) == ("llvm", "asm")
        await press(bench, "d")
        await bench.sees(f"nothing to compare: {ir.rows[-2].stage.name} is LLVM IR, and no edit changed this stage")
        assert ir.document.diff is None
        before = ir.chosen_stage
        passes.focus()
        passes.move_to(next(k for k, row in enumerate(passes.rows) if row.name == "fold-transposes"))
        await bench.press("space")
        await bench.settled()
        ir.choose(ir.rows[-1])
        await drawn(bench)
        await bench.until(lambda: ir.document.diff is not None, "the diff of the assembly")
        assert ir.comparison.header_texts()[-1] == "from before the last edit"
        assert ir.chosen_stage.language == "asm"
        assert ir.document.other.text == before.text != ir.chosen_stage.text


async def test_c_goes_from_change_to_change_and_z_unfolds(workbench: Open) -> None:
    async with workbench("mlp.py", size=(120, 40)) as bench:
        ir = bench.app.ir
        ir.focus()
        await show(bench, "fold-transposes")
        await press(bench, "d", "d")
        changes = ir.document.diff.changes
        assert len(changes) > 2
        ir.move_to(0)
        await bench.press("c")
        assert ir.cursor == next(row for row in changes if row > 0)
        await bench.press("n")
        await bench.sees(f"change {changes.index(ir.cursor) + 1} of {len(changes)}")
        await bench.press("C", "C")
        assert ir.cursor in changes
        fold = next(k for k in range(ir.document.diff.count) if ir.document.diff.row(k).kind == "fold")
        hidden = ir.document.diff.row(fold)
        ir.move_to(fold)
        await bench.press("enter")
        assert ir.document.diff.row(ir.cursor).after == hidden.after
        await bench.press("z")
        assert ir.document.diff.row(ir.cursor).kind == "fold"


async def test_searching_and_going_to_a_line_unfold_what_is_needed(workbench: Open) -> None:
    async with workbench("mlp.py", size=(120, 40)) as bench:
        ir = bench.app.ir
        ir.focus()
        await show(bench, "plan-memory")
        await press(bench, "d", "d")
        fold = next(
            row
            for row in map(ir.document.diff.row, range(ir.document.diff.count))
            if row.kind == "fold" and row.folded > 20
        )
        line = fold.after + fold.folded // 2
        await bench.press(":")
        await bench.type(str(line + 1))
        await bench.press("enter")
        assert ir.line_number == line
        assert ir.document.diff.row(ir.cursor).kind == "same"
        await bench.press("/")
        await bench.type("return")
        await bench.press("enter")
        await bench.until(lambda: bool(ir.search.matches.lines), "matches")
        await bench.until(lambda: ir.line_number in ir.search.matches, "the match")
        assert "return" in ir.line_at(ir.cursor).text


async def test_side_by_side_where_the_pane_is_wide_enough(workbench: Open) -> None:
    async with workbench("mlp.py", size=(170, 40)) as bench:
        ir = bench.app.ir
        ir.focus()
        await show(bench, "fold-transposes")
        await press(bench, "d", "d")
        assert ir.document.diff.layout == "unified"
        line = ir.line_number
        await press(bench, "+")
        assert ir.document.diff.layout == "side-by-side"
        assert ir.line_number == line
        assert "changed" in signs(bench)
        await press(bench, "+")
        assert ir.document.diff.layout == "unified"


async def test_what_cannot_be_done_says_why(workbench: Open) -> None:
    async with workbench("mlp.py", size=(120, 40)) as bench:
        ir = bench.app.ir
        ir.focus()
        await bench.press("c")
        await bench.sees("no diff is shown: press d to show one")
        await bench.press("1")
        await bench.drawn()
        ir.choose(ir.rows[0])
        await press(bench, "d")
        await bench.sees("this is the first stage")
        assert ir.document.diff is None


async def test_a_comparison_that_takes_long_is_cancelled_by_the_key_and_the_text_is_shown(
    workbench: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with workbench("mlp.py", size=(120, 40)) as bench:
        app, ir = bench.app, bench.app.ir
        ir.focus()
        await show(bench, "plan-memory")
        compare = app.context.queries.compare

        async def cancelled_at_once(*arguments: Any) -> Any:
            asked = asyncio.ensure_future(compare(*arguments))
            await asyncio.sleep(0)
            assert app.situation().busy, "a running comparison can be cancelled"
            await bench.app.action_act("cancel")
            return await asked

        monkeypatch.setattr(app.context.queries, "compare", cancelled_at_once)
        await press(bench, "d")
        assert ir.document.diff is None
        assert not ir.comparison.running
        assert ir.row_count == ir.chosen_stage.lines
        monkeypatch.undo()
        await press(bench, "d")
        assert ir.document.diff is not None
