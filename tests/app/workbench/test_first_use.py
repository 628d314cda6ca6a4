"""What an engineer does first with her own model, from the first screen on, by keys that the screen names.

Each key is pressed only while the screen says what it does: in the key line, in the list of second keys, in the
tour, or on the frame of the screen that is open. Paths and answers to questions are typed, backspace deletes what a
question suggests, and arrows move in lists.
"""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
from textual.widgets import Input

from buddy.app.screens.results import ResultScreen
from buddy.app.workbench.app import Workbench
from buddy.app.workbench.start import StartApp
from buddy.app.workspace.settings import Settings
from buddy.app.workspace.sources import Program
from tests.app.conftest import Bench
from tests.app.workbench.test_tasks import MODEL

pytestmark = pytest.mark.slow
SIZE = (120, 40)
# What is pressed in each task, in order. Typed texts and arrows are left out.
KEYS = {
    "open the model": ["escape"],
    "find the slowest node": ["g", "c", "enter"],
    "switch a pass off": ["tab", "space"],
    "compare with eager": ["r"],
    "export C": ["g", "x", "enter", "enter"],
}
# In seconds.
LONGEST_TASK = 120


class Reader:
    """Presses keys that the screen names, and counts them by task."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.keys: dict[str, list[str]] = {}
        self.seconds: dict[str, float] = {}
        self._task, self._start_time = "", 0.0

    def begin(self, task: str) -> None:
        self.end()
        self._task, self._start_time = task, time.monotonic()
        self.keys[task] = []

    def end(self) -> None:
        if self._task:
            self.seconds[self._task] = time.monotonic() - self._start_time

    async def press(self, label: str) -> None:
        """Press the key of a label such as `r run`, once the screen shows the label."""
        key = label.split()[0]
        pattern = re.compile(rf"(?<!\S){re.escape(label)}\b")
        await self.bench.until(lambda: any(map(pattern.search, self.bench.screen)), repr(label))
        assert any(map(pattern.search, self.bench.screen)), "what is pressed is on the screen now"
        await self.bench.press(key)
        self.keys[self._task].append(key)

    async def go_to_line(self, text: str) -> None:
        """Press the arrow key, which every list has, until the cursor is on a line with `text`."""
        await self.bench.sees(text)
        for _ in range(20):
            if any(">" in line and text in line for line in self.bench.screen):
                return
            await self.bench.press("down")
        raise AssertionError(f"no {text!r} in the first lines: {self.bench.screen}")

    async def answer(self, question: str, text: str) -> None:
        """Type an answer to a question that the screen asks, instead of the one that it suggests."""
        await self.bench.sees(question)
        suggested = self.bench.app.query_one("#prompt Input", Input).value
        await self.bench.press(*["backspace"] * len(suggested))
        await self.bench.type(text)
        await self.press("enter accepts")


async def opened_program(store: Path, script: Path) -> Program:
    """What the first screen returns after the path of the script was typed, as it asks for."""
    app = StartApp(Settings(), store)
    async with app.run_test(size=SIZE) as pilot:
        await pilot.pause()
        lines = ["".join(segment.text for segment in strip) for strip in app.screen._compositor.render_strips()]
        assert any("path, then arguments of the script" in line for line in lines)
        assert any("enter opens" in line for line in lines)
        await pilot.press(*str(script), "enter")
        await pilot.pause()
    assert isinstance(app.return_value, Program)
    return app.return_value


async def test_the_first_tasks_need_only_keys_that_the_screen_names(tmp_path: Path) -> None:
    script = tmp_path / "own.py"
    script.write_text(MODEL)
    program = await opened_program(tmp_path / "store", script)
    app = Workbench(program.source, program.arguments, store=tmp_path / "store", settings=Settings())
    app.shows_tour = True
    async with app.run_test(size=SIZE) as pilot:
        bench = Bench(app, pilot)
        reader = Reader(bench)

        reader.begin("open the model")
        await bench.sees("Tour 1/5")
        await bench.settled()
        await reader.press("escape skips")
        assert app.state.info is not None

        reader.begin("find the slowest node")
        await reader.press("g more")
        await reader.press("c Profile")
        await bench.opened(ResultScreen)
        profile = app.state.profile
        assert profile is not None
        slowest = max(profile.nodes, key=lambda node: node.seconds)
        await reader.go_to_line("aten.addmm")
        await reader.press("enter chooses")
        await bench.until(
            lambda: app.graph.current is not None and app.graph.current.stable == slowest.node, "the slowest node"
        )

        reader.begin("switch a pass off")
        await reader.press("tab pane")
        row = app.passes.current
        assert row.step is not None
        assert row.step.enabled
        await reader.press("space toggle")
        await bench.settled()
        assert not app.workspace.recipe.steps[row.number].enabled
        assert app.state.problem is None

        reader.begin("compare with eager")
        await reader.press("r run")
        await bench.sees("OK")
        assert app.state.report is not None
        assert app.state.report.word == "ok"
        assert app.state.run_recipe == app.workspace.recipe

        reader.begin("export C")
        await reader.press("g more")
        await reader.press("x Export")
        await reader.answer("export as (", "object")
        folder = tmp_path / "exported"
        await reader.answer("export to the folder", str(folder))
        await bench.until(lambda: any(folder.glob("*.h")), "the header for C")
        await bench.until(lambda: any(folder.glob("*.c")), "the example in C")
        reader.end()

    assert reader.keys == KEYS
    assert all(seconds < LONGEST_TASK for seconds in reader.seconds.values()), reader.seconds
