"""The content that remains visible on small screens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from buddy.app.actions import actions_of_pane
from buddy.app.screens.detail import DetailScreen, TextLines
from buddy.app.screens.stage_lists import NodeHistoryScreen

Open = Callable[..., Any]


@pytest.mark.slow
async def test_at_40_by_10_tables_show_rows_instead_of_a_foot(workbench: Open) -> None:
    async with workbench("arith_add.py", size=(40, 10)) as bench:
        await bench.press("g", "w")
        await bench.until(lambda: isinstance(bench.app.screen, NodeHistoryScreen), "the fate")
        await bench.pilot.pause()
        await bench.sees(">capture")
        await bench.sees("lowering")


@pytest.mark.slow
async def test_the_help_moves_by_every_key_that_it_names(workbench: Open) -> None:
    async with workbench("arith_add.py", size=(100, 20)) as bench:
        await bench.press("?")
        lines = (await bench.opened(DetailScreen)).query_one(TextLines)
        end = lines.row_count - lines.page
        distances = {"down": 1, "up": -1, "half-down": lines.page // 2, "half-up": -(lines.page // 2)}
        distances |= {"page-down": lines.page, "page-up": -lines.page, "top": -end, "bottom": end}
        for action in actions_of_pane("any"):
            distance = distances.get(action.id.removeprefix("move."))
            for key in action.keys if distance is not None else ():
                # Pages back start at the end, where the last line is at the bottom.
                start = end if distance < 0 else 0
                await bench.press("G" if start else "home", *key.split())
                assert lines.first_row == start + distance, key


@pytest.mark.slow
async def test_a_long_question_is_above_its_input(workbench: Open) -> None:
    async with workbench("arith_add.py", size=(80, 24)) as bench:
        prompt = bench.app.screen.query_one("#prompt Input")
        for columns in (80, 120):
            await bench.pilot.resize_terminal(columns, 24)
            await bench.press("g", "x")
            await bench.sees("export as (asm, ")
            await bench.sees("wheel):")
            assert prompt.size.width >= 48, "with room to type in"
            await bench.press("escape")
