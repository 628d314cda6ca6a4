"""The tour of a first start: each step ends when the user does what it asks for, and it covers nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import buddy.app.workbench.launch
from buddy.app.actions import BY_ID
from buddy.app.actions.action import key_of
from buddy.app.screens.detail import DetailScreen
from buddy.app.screens.picker import PickerScreen
from buddy.app.workbench.tour import STEPS

Open = Callable[..., Any]


def test_each_step_names_the_keys_of_actions_that_end_it() -> None:
    assert len(STEPS) == 5
    for step in STEPS:
        assert set(step.ending_actions) <= set(BY_ID)
        assert all(f"{{{action}}}" in step.text for action in step.ending_actions)


@pytest.mark.slow
@pytest.mark.parametrize("size", [(120, 40), (80, 24)], ids=str)
async def test_the_steps_end_with_what_they_ask_for(workbench: Open, size: tuple[int, int]) -> None:
    async with workbench("mlp.py", size=size) as bench:
        app, tour = bench.app, bench.app.tour
        assert tour.step is None, "the tour starts only when it is asked for"
        await bench.press("G", "g", "question_mark")
        for number, step in enumerate(STEPS, 1):
            assert tour.step == step
            await bench.sees(f"Tour {number}/5")
            pane = app.panes[step.pane]
            assert pane.has_class("-toured")
            if pane.display and app.screen_stack[0].focused is pane:
                assert tour.lines.region.y >= pane.region.bottom, "the tour does not cover what it speaks of"
            if number == 1:
                await bench.press("shift+tab", "shift+tab", "k", "tab", "tab")
                assert tour.step == step, "other panes do not count"
                await bench.press("k", "k")
            elif number == 2:
                await bench.press("enter")
                await bench.opened(PickerScreen)
                await bench.press("escape")
            elif number == 3:
                await bench.press("space")
                assert tour.step == step, "a node is not a pass"
                await bench.press("u", "tab")
                await bench.settled()
                await bench.press("space")
            elif number == 4:
                await bench.press("u", "r")
            else:
                await bench.press("question_mark")
                await bench.opened(DetailScreen)
                await bench.press("escape")
        assert tour.step is None
        assert not tour.lines.display
        await bench.sees("End of the tour: g ? starts it again")


@pytest.mark.slow
async def test_escape_and_a_click_skip_the_tour_and_a_search_ends_first(workbench: Open) -> None:
    async with workbench("arith_add.py") as bench:
        tour = bench.app.tour
        await bench.press("g", "question_mark", "slash", *"add", "enter", "escape")
        assert tour.step == STEPS[0], "escape ends the search first"
        await bench.press("escape")
        assert tour.step is None
        assert not any(pane.has_class("-toured") for pane in bench.app.panes.values())
        await bench.press("g", "question_mark")
        await bench.sees("Tour 1/5")
        await bench.pilot.click(offset=(3, tour.lines.region.y))
        assert tour.step is None


def test_only_the_first_script_starts_the_tour(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BUDDY_TUI_STATE", str(tmp_path))
    monkeypatch.setenv("BUDDY_TUI_CONFIG", str(tmp_path / "none.toml"))
    started: list[bool] = []

    async def note(bench: Any, mouse: bool) -> int:
        started.append(bench.shows_tour)
        return 0

    monkeypatch.setattr(buddy.app.workbench.launch, "_run_until_quit", note)
    for source in ("module.mlir", "model.py", "model.py"):
        (tmp_path / source).touch()
        assert buddy.app.workbench.launch.run_workbench(str(tmp_path / source), ()) == 0
    assert started == [False, True, False]
    assert key_of("tour") == "g ?"
