"""The keys that all screens share: what closes them, what letters do, search, and sorting of tables."""

from __future__ import annotations

from typing import Any

import pytest
from textual.screen import Screen
from textual.widgets import Input, TextArea

from buddy.app.reports import formatting
from buddy.app.screens.editor import EditorScreen
from buddy.app.screens.frontend_comparison import FrontendComparisonScreen
from buddy.app.screens.modal import AnsweringScreen, ConfirmScreen, ListScreen, ReadOnlyScreen, TableScreen
from buddy.app.screens.picker import ChoiceList, PickerScreen
from buddy.app.widgets.prompt import Prompt
from buddy.app.widgets.table import Column, ColumnSort, column_at, table_head
from buddy.app.workbench.app import MainScreen
from buddy.app.workbench.dispatch import Palette
from tests.app.picturing import compiled, passed_on, until
from tests.app.test_pictures import SCREENS, Shown, every_screen, show

BESIDE = Shown(
    FrontendComparisonScreen,
    made=lambda app: FrontendComparisonScreen(app.session, app.workspace.recipe, app.graph.rows[-2]),
)
# One way to open each screen.
OPENED = {shown.screen: shown for shown in (*SCREENS.values(), BESIDE)}
DIALOGS = [screen for screen in every_screen() if screen is not MainScreen]


def test_every_screen_can_be_opened_here() -> None:
    assert set(DIALOGS) <= set(OPENED)


@pytest.mark.parametrize("screen", DIALOGS, ids=lambda screen: screen.__name__)
def test_screens_close_by_the_keys_of_their_base_class(screen: type[Screen[Any]]) -> None:
    """A screen that binds one of these keys itself would close in its own way."""
    own = [base for base in screen.__mro__ if base.__module__.startswith("buddy.app") and "BINDINGS" in vars(base)]
    shared = (AnsweringScreen, ReadOnlyScreen)
    keys = {
        key
        for base in own
        for binding in vars(base)["BINDINGS"]
        for key in binding.key.split(",")
        if base not in shared and binding.action != "close"
    }
    assert not keys & {"q", "question_mark", "f1", "escape"}
    if screen is not Palette:
        assert issubclass(screen, AnsweringScreen)
        assert "ctrl+c" not in keys


@pytest.mark.slow
@pytest.mark.timeout(1800)
async def test_every_screen_follows_the_grammar(bench: Any) -> None:
    app = bench()
    async with app.run_test(size=(160, 50)) as pilot:
        await compiled(pilot, run=True)
        for screen in DIALOGS:
            await closes(pilot, screen, "ctrl+c")
            await letters(pilot, screen)
            # The checks of the others end by escape.
            if issubclass(screen, ReadOnlyScreen) and not issubclass(screen, ListScreen):
                await closes(pilot, screen, "escape")
            if issubclass(screen, ListScreen):
                await search(pilot, screen)
            if issubclass(screen, TableScreen):
                await sorting(pilot, screen)


async def opened(pilot: Any, screen: type[Screen[Any]]) -> Any:
    await show(pilot, OPENED[screen])
    assert type(pilot.app.screen) is screen
    return pilot.app.screen


async def closes(pilot: Any, screen: type[Screen[Any]], *keys: str) -> None:
    """Open a screen and close it by keys. A text that has been edited needs them twice."""
    await opened(pilot, screen)
    await is_closed_by(pilot, *keys)


async def is_closed_by(pilot: Any, *keys: str) -> None:
    screen = pilot.app.screen
    edited = isinstance(screen, EditorScreen) and screen.area.text != screen._original
    await press(pilot, *keys * (2 if edited else 1))
    await until(pilot, lambda: len(pilot.app.screen_stack) == 1)


async def press(pilot: Any, *keys: str) -> None:
    for key in keys:
        await pilot.press(key)
        await passed_on(pilot)


async def letters(pilot: Any, screen: type[Screen[Any]]) -> None:
    """`q` closes a screen where nothing is typed; elsewhere, letters are typed. In a list of choices they filter it."""
    found = await opened(pilot, screen)
    if issubclass(screen, ReadOnlyScreen):
        assert not isinstance(found.focused, Input | TextArea), screen
        await is_closed_by(pilot, "q")
        return
    field = found.focused
    assert isinstance(field, Input | TextArea), screen
    if isinstance(field, Input):
        field.value = ""
    await press(pilot, "q", "?")
    assert "q?" in (field.value if isinstance(field, Input) else field.text), screen
    if isinstance(found, PickerScreen):
        choices = found.query_one(ChoiceList)
        assert all("q" in f"{choice.title}{choice.summary}".lower() for choice in choices.matches)
        await press(pilot, "backspace", "backspace")
        assert len(choices.matches) == len(choices.choices)
        await press(pilot, "home", "down")
        assert choices.cursor == min(1, len(choices.matches) - 1)
        await press(pilot, "up")
        assert choices.cursor == 0
    await is_closed_by(pilot, "escape")


async def search(pilot: Any, screen: type[Screen[Any]]) -> None:
    """`/` opens a prompt in which all letters are text; escape closes the prompt, then the screen."""
    found = await opened(pilot, screen)
    prompt = found.query_one(Prompt)
    await press(pilot, "/")
    assert prompt.display == found._view.searchable, screen
    if found._view.searchable:
        await press(pilot, *"qns")
        assert prompt.query_one(Input).value == "qns", screen
        assert pilot.app.screen is found
        await press(pilot, "escape")
        assert pilot.app.screen is found
        assert not prompt.display
        assert found.focused is found._view
        await press(pilot, "/", ".", "enter", "n", "N")
        assert pilot.app.screen is found
        if found._view.row_count:
            await until(pilot, lambda: found._view.search.matches.lines)
    await is_closed_by(pilot, "escape")


async def sorting(pilot: Any, screen: type[Screen[Any]]) -> None:
    """`s` sorts by the chosen column, and so does a click on its head; the sorted column has an arrow."""
    found = await opened(pilot, screen)
    table, order = found._table, found._table.order
    given = list(table.rows)
    arrows = {formatting.UNICODE.ascending, formatting.UNICODE.descending}

    def head() -> str:
        return "".join(text for text, _ in table.head(table.width)[-1])

    assert not arrows & set(head())
    await press(pilot, "right", "s")
    assert order.sorted_by == order.chosen == next(column.name for column in table._columns if column.name), screen
    assert arrows & set(head()), screen
    once = list(table.rows)
    await press(pilot, "s")
    assert order.sorted_by == order.chosen
    # Rows without a value stay at the end, and equal rows in their order.
    assert sorted(map(id, table.rows)) == sorted(map(id, once))
    await press(pilot, "s")
    assert table.rows == given, "the third time restores the order"
    assert not arrows & set(head())
    await pilot.click(table, offset=(2, 0))
    await passed_on(pilot)
    assert order.sorted_by, screen
    assert table.rows == once
    await is_closed_by(pilot, "escape")


def test_a_question_is_answered_by_its_own_keys() -> None:
    keys = {binding.key: binding.action for binding in ConfirmScreen.BINDINGS}
    assert keys == {"y,enter": "dismiss(True)", "n": "close"}


# ---- sorting ---------------------------------------------------------------------------------------------------------

NUMBERS = Column[dict[str, Any]](
    "ms?", 6, lambda row: (str(row["ms"] or ""), "text"), right_aligned=True, key=lambda row: row["ms"]
)
NAMES = Column[dict[str, Any]]("name", 0, lambda row: (row["name"], "text"))
MARKS = Column[dict[str, Any]]("", 3, lambda row: ("[x]", "text"))
COLUMNS = [MARKS, NAMES, NUMBERS]
ROWS = [
    {"name": name, "ms": ms}
    for name, ms in (("mm_10", 2.0), ("mm_9", None), ("Add", 3.0), ("mm_2", float("nan")), ("bmm", 1.0))
]


def names(order: ColumnSort[dict[str, Any]]) -> list[str]:
    return [row["name"] for row in order.sorted(ROWS, COLUMNS)]


def test_texts_are_sorted_by_their_numbers_and_numbers_from_the_greatest() -> None:
    order = ColumnSort[dict[str, Any]]()
    assert names(order) == ["mm_10", "mm_9", "Add", "mm_2", "bmm"]
    order.sort_by(COLUMNS, "name")
    assert names(order) == ["Add", "bmm", "mm_2", "mm_9", "mm_10"]
    order.sort_by(COLUMNS, "name")
    assert names(order) == ["mm_10", "mm_9", "mm_2", "bmm", "Add"]
    order.sort_by(COLUMNS, "ms")
    assert names(order) == ["mm_2", "Add", "mm_10", "bmm", "mm_9"], "NaN is the greatest, no value comes last"
    order.sort_by(COLUMNS, "ms")
    assert names(order) == ["bmm", "mm_10", "Add", "mm_2", "mm_9"]
    order.sort_by(COLUMNS, "ms")
    assert names(order) == ["mm_10", "mm_9", "Add", "mm_2", "bmm"]


def test_the_head_shows_the_order_and_its_columns_can_be_clicked() -> None:
    order = ColumnSort[dict[str, Any]]()
    order.move_choice(COLUMNS, 1)
    assert order.chosen == "name", "columns without a title cannot be chosen"
    order.move_choice(COLUMNS, 5)
    assert order.chosen == "ms"
    order.sort_by(COLUMNS, "ms")
    cells = table_head(COLUMNS, 24, formatting.UNICODE, order)
    assert "".join(text for text, _ in cells) == "    name            ms?▼"
    assert [text.strip() for text, role in cells if role == "title"] == ["ms?▼"]
    assert "".join(text for text, _ in table_head(COLUMNS, 24, formatting.ASCII, order)).endswith(" ms?v")
    found = [column_at(COLUMNS, 24, x) for x in range(24)]
    assert [column.name if column else None for column in found] == [
        *[""] * 3, None, *["name"] * 13, None, *["ms"] * 6,
    ]  # fmt: skip
