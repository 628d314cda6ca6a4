"""Incremental search in every pane and in screens: matches while typing, counts, steps, what cancelling restores."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any

import pytest
from textual import events
from textual.app import App, ComposeResult
from textual.widgets import Static

from buddy.app.actions import ACTIONS
from buddy.app.actions.synonyms import SYNONYMS
from buddy.app.panes.pane import Pane
from buddy.app.reports.text.search_hits import matching_lines, read_pattern
from buddy.app.screens.detail import CodeScreen, DetailScreen, TextLines
from buddy.app.screens.editor import IrEditor
from buddy.app.screens.numerics import NumericsScreen
from buddy.app.screens.picker import PickerScreen
from buddy.app.widgets.cursor_view import CursorView
from buddy.app.widgets.look import Cells
from buddy.app.widgets.prompt import Prompt
from buddy.app.widgets.search import LINE_SECONDS, SEARCH_SECONDS, TOO_SLOW, Matches
from buddy.app.workbench.dispatch import Palette, command_score, is_listed

Open = Callable[..., Any]


def test_a_space_matches_the_end_of_a_wrapped_line() -> None:
    rows = ["peak memory 1 kB, packed", "         weights 2 kB", "packed weights", "weights"]
    assert matching_lines(rows, read_pattern("packed weights")) == [2]
    assert matching_lines(rows, read_pattern("packed weights"), joined=True) == [0, 2]
    assert matching_lines(rows, read_pattern("\\Vpacked weights"), joined=True) == [0, 2]
    assert matching_lines(rows, read_pattern("^packed weights$"), joined=True) == [2]
    assert matching_lines(rows, read_pattern("[,] packed"), joined=True) == [0]
    assert matching_lines(["a b"], read_pattern("[ x]b"), joined=True) == [0], "a space inside of a set"


class OneLine(CursorView):
    """A list with one line, in which `SLOW` has no match. `reports` are the messages of searches."""

    def __init__(self) -> None:
        super().__init__()
        self.reports: list[str] = []

    @property
    def row_count(self) -> int:
        return 1

    def row_cells(self, row: int, width: int) -> Cells:
        return [(" ", "text"), ("a" * 60 + "b", "text")]

    def report_search(self, text: str) -> None:
        self.reports.append(text)


# Each further letter `a` of a text doubles the time.
SLOW = "(a+)+$"


async def test_a_pattern_that_would_take_for_ever_is_refused() -> None:
    view = OneLine()

    class OneView(App[None]):
        def compose(self) -> ComposeResult:
            yield view

    async with OneView().run_test():
        start = time.process_time()
        view.search.find(read_pattern(SLOW), jump=True)
        assert time.process_time() - start < 10 * SEARCH_SECONDS
        assert view.reports == [TOO_SLOW]
        assert not view.search.is_active
        view.search.find(read_pattern("b"), jump=True)
        assert view.reports[-1] == "/b  1/1"


def test_the_matches_of_a_pattern_that_would_take_for_ever_are_not_shown() -> None:
    matches = Matches()
    matches.clear(read_pattern(SLOW))
    line: Cells = [("a" * 60 + "b", "text")]
    start = time.process_time()
    assert [matches.highlight(line) for _ in range(50)] == [line] * 50
    assert time.process_time() - start < 20 * LINE_SECONDS
    matches.clear(read_pattern("b"))
    assert matches.highlight(line) == [("a" * 60, "text"), ("b", "match")]


def note(bench: Any) -> str:
    """The note at the right end of the open prompt."""
    prompt = bench.app.screen.query_one(Prompt)
    assert prompt.display
    return str(prompt.query_one("#prompt-note", Static).render()).strip()


def text_at(pane: Pane) -> str:
    return pane.row_text(pane.cursor)


@pytest.mark.slow
async def test_every_pane_is_searched_while_one_types(workbench: Open) -> None:
    async with workbench("mlp.py", size=(160, 50)) as bench:
        app = bench.app
        await bench.press("r")
        await bench.until(lambda: app.state.report is not None, "the report")
        await bench.press("g", "P", "3")
        await bench.settled()
        for pane, typed in {
            "graph": "aten.gelu",
            "ir": "func.func",
            "passes": "cse",
            "source": "torch",
            "outputs": "eager",
        }.items():
            await searched(bench, app.panes[pane], typed)


async def searched(bench: Any, pane: Any, typed: str) -> None:
    """Search a pane step by step."""
    app, search, where = bench.app, pane.search, pane.pane_id
    app.context.layout.show_pane(pane.pane_id)
    await bench.passed_on()
    pane.move_to(0)
    await bench.settled()
    selected = app.context.selection.node
    await bench.press("/")
    await bench.type(typed)
    await bench.until(lambda: search.matches.pattern.typed == typed and search._is_loaded, f"the matches in {where}")
    lines = list(search.matches.lines)
    first = pane.search_line
    assert lines, where
    assert first == lines[0], where
    assert note(bench) == f"1/{len(lines)}"
    assert app.context.selection.node == selected, f"typing selects nothing in {where}"
    await bench.press("escape")
    assert pane.cursor == 0, f"escape restores the position in {where}"
    assert not search.is_active
    await bench.press("/")
    await bench.type(typed)
    await bench.press("enter")
    await bench.sees(f"/{typed}  1/{len(lines)}")
    assert pane.search_line == lines[0]
    await bench.press("n")
    assert pane.search_line == lines[1 % len(lines)], where
    await bench.sees(f"/{typed}  {1 % len(lines) + 1}/{len(lines)}")
    await bench.press("N", "N")
    assert pane.search_line == lines[-1], f"around the start in {where}"
    await bench.press("/")
    await bench.type("no such text")
    await bench.until(lambda: note(bench) == "no match", "the note")
    await bench.press("escape")
    await bench.until(lambda: search._is_loaded, "the matches from before")
    assert search.matches.lines == lines, "the search from before is back"
    assert pane.search_line == lines[-1], where
    await bench.press("escape")
    assert not search.is_active, f"escape in the pane ends the search in {where}"


@pytest.mark.slow
async def test_the_arrows_in_the_prompt_go_from_match_to_match(workbench: Open) -> None:
    async with workbench("mlp.py", size=(160, 50)) as bench:
        passes = bench.app.passes
        bench.app.context.layout.show_pane("passes")
        await bench.drawn()
        passes.move_to(0)
        await bench.press("/")
        await bench.type("canonicalize")
        matches = list(passes.search.matches.lines)
        assert len(matches) > 2
        await bench.press("down", "down")
        assert note(bench) == f"3/{len(matches)}"
        await bench.press("up", "enter")
        assert passes.line_of(passes.cursor) == matches[1]
        await bench.sees(f"/canonicalize  2/{len(matches)}")
        stage = passes.current.stage
        await bench.settled()
        assert stage is not None
        assert bench.app.ir.chosen_key == stage.key, "the accepted match is selected"


@pytest.mark.slow
async def test_without_a_search_n_does_what_it_did_in_the_pane(workbench: Open) -> None:
    async with workbench("mlp.py", size=(160, 50)) as bench:
        app = bench.app
        app.graph.move_to(6)
        await bench.press("n")
        await bench.opened(PickerScreen)
        await bench.press("escape", "/", *"mm", "enter", "n")
        assert len(app.screen_stack) == 1
        await bench.press("escape", "N")
        await bench.opened(NumericsScreen)
        await bench.press("escape")
        app.context.layout.show_pane("passes")
        await bench.press("n")
        await bench.sees("no search yet: press / to search")


@pytest.mark.slow
async def test_an_invalid_pattern_is_reported_in_the_prompt_and_searches_nothing(workbench: Open) -> None:
    async with workbench("arith_add.py", size=(160, 50)) as bench:
        outputs = bench.app.outputs
        bench.app.context.layout.show_pane("outputs")
        await bench.press("/", *"a(")
        await bench.until(lambda: "invalid regular expression" in note(bench), "the reason")
        await bench.press("enter")
        await bench.sees("invalid regular expression")
        assert not outputs.search.is_active
        await bench.press("/", *"\\Va(", "enter")
        await bench.sees("no match for '\\\\Va('")


@pytest.mark.slow
async def test_a_search_that_the_engine_has_not_answered_is_not_without_a_match(
    workbench: Open, messages: Callable[..., list[str]]
) -> None:
    async with workbench("arith_add.py", size=(160, 50)) as bench:
        app, ir = bench.app, bench.app.ir
        await bench.press("3", "tab", "tab")
        await bench.drawn()
        said = messages(app)
        app.state.engine = "lost"
        await bench.press("/", *"func")
        await bench.until(lambda: note(bench) == "not searched", "the note")
        await bench.press("enter")
        await bench.until(lambda: "the engine is not running" in said, "the reason")
        await bench.passed_on()
        assert not ir.search.is_active
        assert not any("no match" in message for message in said)
        app.state.engine = "ready"


@pytest.mark.slow
async def test_matches_follow_the_rows(workbench: Open) -> None:
    async with workbench("mlp.py", size=(160, 50)) as bench:
        graph = bench.app.graph
        await bench.press("/", *"addmm", "enter")
        rows = [graph.rows[line].name for line in graph.search.matches.lines]
        await bench.press("f", *"-name:p_*", "enter")
        assert [graph.rows[line].name for line in graph.search.matches.lines] == rows
        await bench.press("n")
        assert "addmm" in text_at(graph)


@pytest.mark.slow
async def test_help_is_searched_although_it_has_no_cursor(workbench: Open) -> None:
    async with workbench("arith_add.py", size=(100, 24)) as bench:
        await bench.press("?")
        screen = await bench.opened(DetailScreen)
        lines = screen.query_one(TextLines)
        await bench.press("/", *"quit")
        await bench.until(lambda: "/" in note(bench), "the count")
        matches = list(lines.search.matches.lines)
        assert matches
        await bench.press("enter")
        await bench.sees(f"/quit  1/{len(matches)}, n N next and previous match")
        for number in range(len(matches)):
            row = matches[number]
            assert lines.search.shown_line == row
            assert row in lines.rows_on_screen()
            await bench.press("n")
        assert lines.search.shown_line == matches[0], "after the last one comes the first"
        await bench.press("N")
        assert lines.search.shown_line == matches[-1]
        await bench.press("/", "escape")
        assert bench.app.screen is screen, "escape closes the prompt first"
        await bench.press("/", *"q?", "enter")
        assert bench.app.screen is screen, "letters in the prompt are not keys of the screen"
        await bench.press("escape")
        assert len(bench.app.screen_stack) == 1


@pytest.mark.slow
async def test_code_in_a_screen_is_searched_by_the_engine(workbench: Open) -> None:
    async with workbench("mlp.py", size=(120, 30)) as bench:
        await bench.press("c")
        screen = await bench.opened(CodeScreen)
        await bench.press("/", *"addmm", "enter")
        code = screen._code
        await bench.until(lambda: bool(code.search.matches.lines), "the matches")
        count = len(code.search.matches.lines)
        assert count > 1
        await bench.until(lambda: code.line is not None and "addmm" in code.line.text, "the line")
        place = code.search.matches.lines.index(code.cursor) + 1
        await bench.sees(f"/addmm  {place}/{count}")
        await bench.press("n")
        await bench.sees(f"/addmm  {place % count + 1}/{count}")


@pytest.mark.slow
async def test_a_step_that_comes_before_the_answer_waits_for_it(workbench: Open) -> None:
    async with workbench("mlp.py", size=(160, 50)) as bench:
        ir = bench.app.ir
        await bench.press("3", "tab", "tab")
        await bench.drawn()
        for key in ("/", *"linalg", "enter", "n", "n"):
            event = events.Key({"/": "slash"}.get(key, key), key if len(key) == 1 else None)
            event.set_sender(bench.app)
            bench.app._driver.send_message(event)
        await bench.until(lambda: len(ir.search.matches.lines) > 2, "the matches")
        await bench.until(lambda: ir.line_number == ir.search.matches.lines[2], "the third match")


@pytest.mark.slow
async def test_a_list_of_choices_counts_what_the_letters_leave(workbench: Open) -> None:
    async with workbench("arith_add.py", size=(120, 40)) as bench:
        bench.app.context.layout.show_pane("passes")
        await bench.press("i")
        screen = await bench.opened(PickerScreen)
        total = len(bench.app.state.passes)
        await bench.sees(f"{total}/{total}")
        await bench.press(*"/canonicalize")
        box = screen.query_one("#box")
        shown = len(screen.query_one("ChoiceList").matches)
        assert 0 < shown < total, "a slash before a name is not part of it"
        assert f"{shown}/{total}" in str(box.border_subtitle)


@pytest.mark.slow
async def test_the_editor_is_searched_and_its_text_stays(workbench: Open) -> None:
    async with workbench("arith_add.py", size=(120, 40)) as bench:
        await bench.press("3", "tab", "tab")
        await bench.drawn()
        await bench.press("g", "e")
        screen = await bench.opened(IrEditor)
        area, before = screen.area, screen.area.text
        expected = [
            (row, match.start()) for row, line in enumerate(before.split("\n")) for match in re.finditer("tensor", line)
        ]
        assert len(expected) > 2
        await bench.press("ctrl+f", *"tensor")
        assert note(bench) == f"1/{len(expected)}"
        assert area.selected_text == "tensor"
        await bench.press("escape")
        assert bench.app.screen is screen
        assert area.cursor_location == (0, 0)
        await bench.press("ctrl+f", *"tensor", "enter")
        assert (area.cursor_location, area.selected_text) == (expected[0], "")
        await bench.press("f3")
        assert area.cursor_location == expected[1]
        await bench.press("shift+f3", "shift+f3")
        assert area.cursor_location == expected[-1]
        await bench.sees(f"/tensor  {len(expected)}/{len(expected)}")
        assert area.text == before, "what is typed in the search is not typed into the text"
        await bench.press("/")
        assert area.text.count("/") == before.count("/") + 1, "a slash in the editor is a slash"
        await bench.press("home", "ctrl+g")
        row = expected[-1][0]
        column = area.text.split("\n")[row].index("tensor")
        assert area.cursor_location == (row, column), "from the cursor on, after an edit"
        await bench.press("escape", "escape")
        assert len(bench.app.screen_stack) == 1


@pytest.mark.slow
async def test_the_palette_finds_commands_by_key_description_and_similar_words(workbench: Open) -> None:
    async with workbench("arith_add.py", size=(120, 50)) as bench:
        for typed, title in {
            "reload": "Start over",
            "clipboard": "Copy",
            "object": "Export",
            "write": "Save recipe",
            "slow": "Profile",
            "gi": "Backend",
            "verify stage": "Edit IR",
        }.items():
            await bench.press("ctrl+p")
            await bench.opened(Palette)
            await bench.type(typed)
            await bench.sees(title)
            await bench.press("ctrl+c")
            await bench.until(lambda: len(bench.app.screen_stack) == 1, "the panes")


def test_the_palette_ranks_keys_titles_synonyms_and_descriptions() -> None:
    def best(query: str) -> str:
        return max(filter(is_listed, ACTIONS), key=lambda action: command_score(action, query)).id

    assert best("g c") == best("gc") == "profile"
    assert best("quit") == best("exit") == "quit"
    assert best("colour") == "theme"
    assert best("write file") == "ir.write"
    assert all(command_score(action, "zzz") == command_score(action, "") == 0 for action in ACTIONS)


def test_every_command_has_synonyms() -> None:
    assert set(SYNONYMS) <= {action.id for action in ACTIONS}
    assert [action.id for action in ACTIONS if is_listed(action) and not action.synonyms] == []
