"""Faults found by soaks: each ended the workbench, or grew without bound."""

from __future__ import annotations

import gc
import os
import pty
import weakref
from pathlib import Path

import pytest
from rich.style import Style
from textual import events
from textual.color import Color
from textual.geometry import Region

from buddy.app.actions import PANES
from buddy.app.panes.ir_painter import MAX_CACHED_LINES
from buddy.app.reports.value_pages import viewed_tensors
from buddy.app.screens.editor import EditorScreen
from buddy.app.screens.picker import PickerChoice, PickerScreen
from buddy.app.screens.stage_lists import NodeHistoryScreen
from buddy.app.screens.values import ValuesScreen
from buddy.app.session.line_cache import MAX_PAGES, LineCache
from buddy.app.session.state import MAX_CACHED_FORMS, MAX_LOG_ENTRIES, State, keep_newest
from buddy.app.workbench import app
from buddy.app.workbench.app import MainScreen, Workbench
from buddy.app.workbench.terminal import is_disconnected
from buddy.app.workspace.presets import ScreenState, headless_command
from buddy.app.workspace.settings import Settings
from buddy.compiler.engine.one_shot_requests import MAX_FORMS, ReprintHandler
from buddy.compiler.protocol import Diagnostic, Failed, Lines, RunTensor
from buddy.compiler.protocol.recipe import Recipe
from buddy.compiler.protocol.text.lines import IndexedText
from buddy.compiler.protocol.text.store import TextStore
from buddy.themes.palette import themes


async def test_keys_that_come_at_once_answer_a_screen_once(tmp_path: Path) -> None:
    """The second one closed the workbench's own screen, which ended it."""
    app = Workbench(str(tmp_path / "none.py"), store=tmp_path / "kept", settings=Settings())
    answers: list[object] = []
    async with app.run_test(size=(80, 24)) as pilot:
        app.push_screen(PickerScreen("which", [PickerChoice("one", "", 1), PickerChoice("two", "", 2)]), answers.append)
        await pilot.pause()
        assert isinstance(app.screen, PickerScreen)
        for key in ("enter", "escape", "enter", "escape"):
            app._driver.send_message(events.Key(key, None))  # type: ignore[union-attr]
        while not answers:
            await pilot.pause(0.05)
        await pilot.pause(0.2)
        assert app.is_running
        assert isinstance(app.screen, MainScreen)
        assert len(answers) == 1


async def test_what_fails_beside_the_keys_ends_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception while listing uses ended the session.

    On a terminal it is reported, and its traceback kept; tests see it end.
    """
    app = Workbench(str(tmp_path / "none.py"), store=tmp_path / "kept" / "sessions", settings=Settings())

    async def fails() -> None:
        raise IndexError("nothing there")

    async with app.run_test(size=(80, 24)) as pilot:
        monkeypatch.setattr(Workbench, "is_headless", False)
        app.run_worker(fails())
        while not any("IndexError: nothing there" in str(each) for each in app.state.log):
            await pilot.pause(0.05)
        assert app.is_running
        assert app.return_code in (None, 0)
        monkeypatch.undo()
    (log,) = tmp_path.rglob("crash.log")
    assert "in fails" in log.read_text()


async def test_an_editor_answers_once(tmp_path: Path) -> None:
    """A check of the accepted text may finish just as the user goes back."""
    app = Workbench(str(tmp_path / "none.py"), store=tmp_path / "kept", settings=Settings())
    answers: list[object] = []
    async with app.run_test(size=(80, 24)) as pilot:
        screen = EditorScreen("Some", "text")
        app.push_screen(screen, answers.append)
        await pilot.pause()
        screen.action_close()
        screen._close_with("text")
        while not answers:
            await pilot.pause(0.05)
        assert app.is_running
        assert isinstance(app.screen, MainScreen)
        assert answers == [None]


def test_every_pane_has_a_command_line(tmp_path: Path) -> None:
    for pane in PANES:
        assert headless_command(Recipe("a.py"), Recipe("a.py"), tmp_path, ScreenState(pane)).startswith("buddy-tui ")


def test_a_terminal_that_hung_up_is_seen() -> None:
    """Such a terminal reads as empty immediately: the workbench used a full core, and never ended."""
    master, slave = pty.openpty()
    try:
        assert not is_disconnected(slave)
        os.close(master)
        assert is_disconnected(slave)
    finally:
        os.close(slave)


async def test_what_is_remembered_of_texts_and_faults_is_bounded(tmp_path: Path) -> None:
    state = State()
    for number in range(MAX_LOG_ENTRIES + 30):
        state.apply(Failed(number + 1, Diagnostic(f"fault {number}")))
    assert [len(state.log), state.log[-1].what] == [MAX_LOG_ENTRIES, f"fault {MAX_LOG_ENTRIES + 29}"]

    async def fetch(text: str, start: int, count: int) -> Lines:
        return Lines(1, text, start, ("x",), 1)

    cache = LineCache(fetch, lambda _text: None)
    for number in range(3 * MAX_PAGES):
        await cache.load(f"text {number}", 0, 1)
    assert len(cache._line_counts) == len(cache._pages) == MAX_PAGES
    kept = dict.fromkeys(range(10), "")
    keep_newest(kept, 4)
    assert list(kept) == [6, 7, 8, 9]


async def test_work_that_ends_after_its_screen_was_closed_changes_nothing(tmp_path: Path) -> None:
    app = Workbench(str(tmp_path / "none.py"), store=tmp_path / "kept", settings=Settings())
    async with app.run_test(size=(80, 24)) as pilot:
        screen = NodeHistoryScreen("mm.0", [])
        app.push_screen(screen)
        await pilot.pause()
        screen.show_progress("running")
        assert screen.query_one("#box").border_title == "Pass history of mm.0: running"
        await pilot.press("q")
        while screen.is_mounted and screen.query("#box"):
            await pilot.pause(0.02)
        screen.show_progress("done")
        screen.show([])
        await pilot.pause()
        assert app.is_running


async def test_a_screen_that_was_left_is_let_go(tmp_path: Path) -> None:
    """A cache of Textual's kept what the last 1,024 widgets had drawn: most of the workbench's growth."""
    app = Workbench(str(tmp_path / "none.py"), store=tmp_path / "kept", settings=Settings())
    async with app.run_test(size=(80, 24)) as pilot:
        app.push_screen(screen := PickerScreen("which", [PickerChoice("one", "", 1), PickerChoice("two", "", 2)]))
        await pilot.pause()
        held = [weakref.ref(widget._styles_cache) for widget in screen.walk_children(with_self=True)]
        assert len(held) > 2
        del screen
        app.pop_screen()
        while any(each() is not None for each in held):
            await pilot.pause(0.05)
            gc.collect()


async def test_regions_of_a_size_that_the_terminal_no_longer_has_are_let_go(tmp_path: Path) -> None:
    app = Workbench(str(tmp_path / "none.py"), store=tmp_path / "kept", settings=Settings())
    async with app.run_test(size=(80, 24)) as pilot:
        for number in range(2000):
            Region(0, 0, 200 + number, 1).intersection(Region(0, 0, 80, 24))
        assert Region.intersection.cache_info().currsize > 2000
        await pilot.resize_terminal(100, 30)
        while Region.intersection.cache_info().currsize >= 1000:
            await pilot.pause(0.05)


async def test_colours_of_a_theme_that_is_left_are_let_go(tmp_path: Path) -> None:
    app = Workbench(str(tmp_path / "none.py"), store=tmp_path / "kept", settings=Settings())
    async with app.run_test(size=(80, 24)) as pilot:
        for number in range(1000):
            Style.parse(f"on #{number:06x}").render("x")
            Color(number % 256, number // 256, 0).blend(Color(255, 255, 255), 0.5)
        assert Style.parse.cache_info().currsize > 1000
        assert Color.blend.cache_info().currsize >= 1000
        app.theme = next(name for name in themes() if name != app.theme)
        await pilot.pause()
        assert Style.parse.cache_info().currsize < 500
        assert Color.blend.cache_info().currsize < 500


def test_generic_forms_of_the_texts_asked_for_last_are_kept() -> None:
    store = TextStore()
    forms = ReprintHandler(store, lambda _frame: None)
    for number in range(MAX_FORMS + 10):
        store.put(f"form {number}", IndexedText("module {}\n"))
        forms._record_form(f"text {number}", f"form {number}")
        forms._record_form("text 0", "form 0")
    assert len(store.names()) == MAX_FORMS > MAX_CACHED_FORMS
    assert {"form 0", f"form {MAX_FORMS + 9}"} <= set(store.names())


def test_lines_that_are_drawn_are_counted_as_they_are_on_the_screen(tmp_path: Path) -> None:
    """A row may be wrapped into hundreds."""
    lines = Workbench(str(tmp_path / "none.py"), store=tmp_path / "kept", settings=Settings()).ir.line_painter
    for number in range(10):
        lines.cache_lines((number,), [([], 0)] * (MAX_CACHED_LINES // 4))
    assert lines.cached_keys == [(6,), (7,), (8,), (9,)]
    lines.cache_lines((10,), [([], 0)] * (2 * MAX_CACHED_LINES))
    assert lines.cached_keys == [(10,)]


async def test_a_worker_that_another_replaces_before_it_begins_leaves_nothing(
    tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    app = Workbench(str(tmp_path / "none.py"), store=tmp_path / "kept", settings=Settings())
    async with app.run_test(size=(80, 24)) as pilot:
        app.push_screen(screen := ValuesScreen(0, (), app.session))
        await pilot.pause()
        screen._tensors = viewed_tensors((RunTensor("input", "x", "f32", (2, 2)),))
        screen._request_missing()
        screen._request_missing()
        await pilot.pause()
        gc.collect()
    assert [str(said.message) for said in recwarn if said.category is RuntimeWarning] == []


def test_workers_are_begun_in_one_place_alone() -> None:
    """A coroutine that is created before it is awaited may never be awaited."""
    folder = Path(app.__file__).parent.parent
    assert [path.name for path in folder.rglob("*.py") if ".run_worker(" in path.read_text()] == ["textual_helpers.py"]
