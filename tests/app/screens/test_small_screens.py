"""The content that remains visible on small screens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from buddy.app.screens.follow import NodeHistoryScreen

Open = Callable[..., Any]


@pytest.mark.slow
async def test_at_40_by_10_tables_show_rows_instead_of_a_foot(workbench: Open) -> None:
    async with workbench("arith_add.py", size=(40, 10)) as bench:
        await bench.press("g", "w")
        await bench.until(lambda: isinstance(bench.app.screen, NodeHistoryScreen), "the fate")
        await bench.pilot.pause()
        await bench.sees(">capture")
        await bench.sees("lowering")
