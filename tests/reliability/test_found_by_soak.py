"""What a soak has found: each ended the workbench, or grew without end."""

from __future__ import annotations

import os
import pty
from pathlib import Path

from textual import events

from buddy.app.actions import PANES
from buddy.app.bounded import keep_newest
from buddy.app.command_line import Shown, command
from buddy.app.hang_up import is_gone
from buddy.app.lines import KEEP, LineCache
from buddy.app.screens.editor import EditorScreen
from buddy.app.screens.picker import Choice, PickerScreen
from buddy.app.settings import Settings
from buddy.app.state import LOGGED, State
from buddy.app.workbench import BenchScreen, Workbench
from buddy.compiler.protocol import Diagnostic, Failed, Lines
from buddy.compiler.recipe import Recipe


async def test_keys_that_come_at_once_answer_a_screen_once(tmp_path: Path) -> None:
    """The second of them took the workbench's own screen away, which ended it."""
    app = Workbench(str(tmp_path / "none.py"), store=tmp_path / "kept", settings=Settings())
    answers: list[object] = []
    async with app.run_test(size=(80, 24)) as pilot:
        app.push_screen(PickerScreen("which", [Choice("one", "", 1), Choice("two", "", 2)]), answers.append)
        await pilot.pause()
        assert isinstance(app.screen, PickerScreen)
        for key in ("enter", "escape", "enter", "escape"):
            app._driver.send_message(events.Key(key, None))  # type: ignore[union-attr]
        while not answers:
            await pilot.pause(0.05)
        await pilot.pause(0.2)
        assert app.is_running
        assert isinstance(app.screen, BenchScreen)
        assert len(answers) == 1


async def test_an_editor_answers_once(tmp_path: Path) -> None:
    """What is accepted may be found right just as the user goes back."""
    app = Workbench(str(tmp_path / "none.py"), store=tmp_path / "kept", settings=Settings())
    answers: list[object] = []
    async with app.run_test(size=(80, 24)) as pilot:
        screen = EditorScreen("Some", "text")
        app.push_screen(screen, answers.append)
        await pilot.pause()
        screen.action_leave()
        screen._answer("text")
        while not answers:
            await pilot.pause(0.05)
        assert app.is_running
        assert isinstance(app.screen, BenchScreen)
        assert answers == [None]


def test_every_pane_has_a_command_line(tmp_path: Path) -> None:
    for pane in PANES:
        assert command(Recipe("a.py"), Recipe("a.py"), tmp_path, Shown(pane)).startswith("buddy-tui ")


def test_a_terminal_that_hung_up_is_seen() -> None:
    """Such a terminal reads as empty, at once and for ever: the workbench took a core for itself, and never ended."""
    master, slave = pty.openpty()
    try:
        assert not is_gone(slave)
        os.close(master)
        assert is_gone(slave)
    finally:
        os.close(slave)


async def test_what_is_remembered_of_texts_and_faults_is_bounded(tmp_path: Path) -> None:
    state = State()
    for number in range(LOGGED + 30):
        state.apply(Failed(number + 1, Diagnostic(f"fault {number}")))
    assert [len(state.log), state.log[-1].what] == [LOGGED, f"fault {LOGGED + 29}"]

    async def fetch(text: str, start: int, count: int) -> Lines:
        return Lines(1, text, start, ("x",), 1)

    cache = LineCache(fetch, lambda _text: None)
    for number in range(3 * KEEP):
        await cache.load(f"text {number}", 0, 1)
    assert len(cache._totals) == len(cache._pages) == KEEP
    kept = dict.fromkeys(range(10), "")
    keep_newest(kept, 4)
    assert list(kept) == [6, 7, 8, 9]
