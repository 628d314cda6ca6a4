"""A list draws only the rows that have changed or come into sight, and the screen shows what drawing all would."""

from __future__ import annotations

import random
from typing import Any

import pytest
from rich.console import Console
from textual._compositor import ChopsUpdate, LayoutUpdate
from textual.app import App, ComposeResult
from textual.screen import Screen

from benchmarks.support.terminal import TerminalScreen
from buddy.app.widgets.cursor_view import CursorView
from buddy.app.widgets.drawn_lines import DrawnRows, FramedLines
from buddy.app.widgets.look import Cells
from buddy.app.workbench.app import MainScreen
from buddy.app.workbench.changed_cells import TerminalCells

WIDTH, HEIGHT = 40, 24
COUNT = 200


class Numbered(CursorView):
    """Rows whose texts may change. `drawn` are the rows whose cells were asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.texts = [f"row {row}" for row in range(COUNT)]
        self.drawn: list[int] = []

    @property
    def row_count(self) -> int:
        return len(self.texts)

    def row_cells(self, row: int, width: int) -> Cells:
        self.drawn.append(row)
        return [(">" if row == self.cursor else " ", "key"), (self.texts[row], "text")]

    def head(self, width: int) -> list[Cells]:
        return [[(f"cursor {self.cursor}", "dim")]]

    def foot(self, width: int) -> list[Cells]:
        return [[(f"{len(self.texts)} rows", "dim")]] * (1 + len(self.texts) % 2)


class Lists(App[None]):
    """Two lists with borders. `terminal` is what a terminal shows after the updates that Textual has made."""

    CSS = """
    Numbered { height: 1fr; border: round red; overflow-y: scroll; scrollbar-size-vertical: 1; }
    """

    def __init__(self) -> None:
        super().__init__()
        self.lists = (Numbered(), Numbered())
        self.terminal = TerminalScreen(WIDTH, HEIGHT)
        self._cells = TerminalCells()
        self._console = Console(color_system="truecolor", force_terminal=True)

    def get_default_screen(self) -> Screen[None]:
        return MainScreen(id="_default")

    def compose(self) -> ComposeResult:
        yield from self.lists

    def _display(self, screen: Screen[Any], renderable: Any) -> None:
        if isinstance(renderable, LayoutUpdate | ChopsUpdate):
            self.terminal.feed(self._cells.changes(renderable, self._console).encode())

    def drawn_anew(self) -> TerminalScreen:
        """What the terminal would show if everything were drawn."""
        compositor = self.screen._compositor
        caches = [(view._styles_cache, view._drawn_rows) for view in self.lists]
        for view in self.lists:
            view._styles_cache, view._drawn_rows = FramedLines(), DrawnRows()
        update = LayoutUpdate([[strip] for strip in compositor.render_strips()], compositor.size.region)
        for view, cached in zip(self.lists, caches, strict=True):
            view._styles_cache, view._drawn_rows = cached
        terminal = TerminalScreen(WIDTH, HEIGHT)
        terminal.feed(TerminalCells().changes(update, self._console).encode())
        return terminal


def _change(view: Numbered, chance: random.Random) -> None:
    """Move the cursor, scroll, or change texts, and announce it as panes do."""
    row = chance.randrange(view.row_count)
    action = chance.choice(["down", "down", "up", "page", "center", "text", "texts", "fewer", "select", "scroll"])
    if action in ("down", "up"):
        for _ in range(chance.randrange(1, 9)):
            view.move_to(view.cursor + (1 if action == "down" else -1))
    elif action == "page":
        chance.choice([view.move_page_down, view.move_page_up, view.move_bottom, view.move_top])()
    elif action == "center":
        view.center(row, notify=False)
    elif action == "text":
        view.texts[row] += "!"
        view.refresh_row(row)
    elif action == "texts":
        view.texts[max(row - 3, 0) : row] = [f"text {chance.random():.3f}"] * min(row, 3)
        view.redraw_changed_lines()
    elif action == "fewer":
        del view.texts[row]
        view.rows_changed()
    elif action == "select":
        view.extend_selection(row)
    else:
        view.scroll_to(y=row, animate=False, force=True)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
async def test_the_terminal_shows_what_drawing_everything_would_show(seed: int) -> None:
    chance = random.Random(seed)
    app = Lists()
    async with app.run_test(size=(WIDTH, HEIGHT)) as pilot:
        for _ in range(40):
            for _ in range(chance.randrange(1, 4)):
                _change(chance.choice(app.lists), chance)
            await pilot.pause()
            assert app.terminal.visible == app.drawn_anew().visible


async def test_scrolling_by_a_row_draws_the_row_that_comes_into_sight_and_those_of_the_cursor() -> None:
    app = Lists()
    async with app.run_test(size=(WIDTH, HEIGHT)) as pilot:
        view, other = app.lists
        view.move_to(view.page - 1)
        await pilot.pause()
        for _ in range(5):
            view.drawn.clear()
            other.drawn.clear()
            before = view.cursor
            view.move_down()
            await pilot.pause()
            assert view.first_row == view.cursor - view.page + 1
            assert sorted(view.drawn) == [before, view.cursor]
            assert other.drawn == []
