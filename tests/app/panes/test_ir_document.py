"""The rows of a stage's text, without a screen: folds of each text, a single function, and diffs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from buddy.app.actions import replace_keys
from buddy.app.panes.ir_document import IrDocument
from buddy.app.panes.ir_loader import IrRows
from buddy.app.reports.text.rows import DiffRows, Folds, TextFold
from buddy.app.session.line_cache import PAGE_LINES, LineCache
from buddy.app.session.requests import UnavailableError
from buddy.app.workbench.app import Workbench
from buddy.app.workspace.settings import Settings
from buddy.compiler.protocol import Lines, Stage, Symbol

STAGE = Stage(0, "cse", "top", "after", 30)
BEFORE = Stage(0, "lower", "top", "before", 1200)
FUNCTIONS = (Symbol("one", "function", 2, 9), Symbol("two", "function", 10, 19), Symbol("@g", "global", 20, 20))


async def fetch_nothing(_text: str, _start: int, _count: int) -> Lines:
    raise UnavailableError("the engine has exited")


CACHE = LineCache(fetch_nothing, lambda _text: None)


def lines(document: IrDocument) -> list[int]:
    return [document.own_line(row) for row in range(document.row_count)]


@pytest.fixture
def document() -> IrDocument:
    """Shows the stage with its initial folds."""
    made = IrDocument(CACHE)
    made.show(STAGE, None, None, made.folds_of(STAGE, FUNCTIONS))
    return made


def test_nothing_is_shown_before_there_is_a_stage_and_after_it_is_gone(document: IrDocument) -> None:
    assert IrDocument(CACHE).row_count == 0
    document.refold([TextFold(2, 9)])
    document.clear()
    assert (document.row_count, document.text, document.folded) == (0, "", set())


def test_rows_are_lines_until_something_is_folded(document: IrDocument) -> None:
    assert lines(document) == list(range(30))
    assert not document.is_narrowed
    document.refold([TextFold(2, 9), TextFold(20, 25)])
    assert lines(document) == [0, 1, 2, *range(10, 21), *range(26, 30)]
    assert document.is_narrowed
    assert document.hides(5)
    assert not document.reveal(5)
    assert document.folded == {TextFold(20, 25)}
    assert document.source_of(3) == ("after", 3)


def test_functions_are_folded_when_a_text_is_first_shown_and_folds_of_a_text_are_kept(document: IrDocument) -> None:
    document.forget_folds()
    document.all_folded = True
    document.show(STAGE, None, None, document.folds_of(STAGE, FUNCTIONS))
    assert lines(document) == [0, 1, 2, 10, *range(20, 30)]
    document.refold([TextFold(10, 19)])
    other = Stage(0, "dce", "top", "another", 5)
    document.show(other, None, None, document.folds_of(other, ()))
    assert lines(document) == [0, 1, 2, 3, 4]
    document.show(STAGE, None, None, document.folds_of(STAGE, FUNCTIONS))
    assert lines(document) == [*range(11), *range(20, 30)]


def test_a_line_outside_the_function_that_alone_is_shown_ends_that(document: IrDocument) -> None:
    document.only_function = "two"
    document.show(STAGE, None, None, document.folds_of(STAGE, FUNCTIONS))
    assert lines(document) == list(range(10, 20))
    document.refold([TextFold(12, 15)])
    assert lines(document) == [10, 11, 12, *range(16, 20)]
    assert not document.reveal(14)
    assert document.only_function == "two"
    assert document.reveal(1)
    assert document.only_function == ""
    assert lines(document) == list(range(30))


def test_a_row_of_a_diff_is_of_one_text_or_the_other(document: IrDocument) -> None:
    diff = DiffRows([(3, 2, 3, 1)], 31, 30, "unified")
    document.show(STAGE, diff, BEFORE, document.folds)
    assert document.row_count == diff.count
    assert document.line_number_width == 4, "as many as the longer text needs"
    sources = [document.source_of(row) for row in range(document.row_count)]
    assert ("before", 3) in sources
    assert ("after", 3) in sources
    assert None in sources, "equal lines are folded"
    removed = sources.index(("before", 3))
    assert document.own_line(removed) == -1
    row, outside = document.reveal_in_diff(diff, 28)
    assert (document.own_line(row), outside) == (28, False)


def test_a_diff_is_narrowed_to_a_function_until_a_line_outside_is_wanted(document: IrDocument) -> None:
    diff = DiffRows([(12, 1, 12, 1)], 30, 30, "unified")
    document.only_function = "two"
    document.narrow(diff, FUNCTIONS)
    document.show(STAGE, diff, BEFORE, document.folds)
    assert document.is_narrowed
    assert {line for line in lines(document) if line >= 0} <= set(range(10, 20))
    row, outside = document.reveal_in_diff(diff, 0)
    assert (document.own_line(row), outside, document.only_function) == (0, True, "")
    assert not document.is_narrowed


def test_the_lines_of_a_page_are_loaded_page_by_page_of_the_cache_and_folded_lines_are_not() -> None:
    long = Stage(0, "lower", "top", "long", 10_000)
    rows = IrRows(long, None, None, Folds(long.lines, [TextFold(10, 9_000)]))
    assert {number // PAGE_LINES for _, number in rows.lines_on(0, 20)} == {0, 9_001 // PAGE_LINES}
    assert IrRows(long, None, None, Folds(long.lines)).lines_on(300, 10) == [("long", 309)]


def test_the_lines_of_a_diff_are_loaded_from_both_texts_also_those_that_a_line_is_compared_with() -> None:
    rows = IrRows(STAGE, DiffRows([(3, 2, 3, 1)], 31, 30, "unified"), BEFORE, Folds(STAGE.lines))
    removed = next(k for k in range(30) if rows.diff and rows.diff.row(k).kind == "removed")
    assert rows.lines_on(removed, 1) == [("after", 3), ("before", 3)]


def test_a_stage_opens_at_a_line_and_a_diff_that_hides_the_line_at_its_next_change() -> None:
    rows = IrRows(STAGE, None, None, Folds(STAGE.lines, [TextFold(2, 9)]))
    assert rows.cursor_and_top(12, 2, 10) == (5, 3)
    assert rows.cursor_and_top(99, 0, 10) == (22, 22), "the last line"
    diff = DiffRows([(25, 1, 25, 1)], 30, 30, "unified")
    compared = IrRows(STAGE, diff, BEFORE, Folds(STAGE.lines))
    cursor, top = compared.cursor_and_top(5, 2, 10)
    assert (diff.row(cursor).kind, top) == ("removed", 0)


@pytest.fixture
def app(tmp_path: Path) -> Workbench:
    """A workbench without an engine, whose last edit has added the pass `cse`."""
    app = Workbench(str(tmp_path / "none.py"), store=tmp_path / "kept", settings=Settings())
    app.state.board.finish([Stage(0, "lower", "toplevel", "t-0", 1)])
    app.state.board.finish([Stage(0, "lower", "toplevel", "t-0", 1), Stage(1, "cse", "fused", "t-1", 1, step=0)])
    app.ir.stages.rows = app.state.board.rows()
    app.ir.stages.chosen_key = ("cse", 0)
    return app


def test_a_stage_that_the_last_edit_added_has_no_stage_before_it(app: Workbench) -> None:
    app.ir.comparison.baseline = "edit"
    assert app.ir.comparison._unavailable_reason(app.ir.stages.chosen_row) == "the last edit added this stage"


async def test_a_failed_request_for_types_is_the_only_message(app: Workbench) -> None:
    said: list[str] = []
    app.context.status.say = said.append  # type: ignore[method-assign]
    await app.ir.types._list_types()
    assert len(said) == 1
    assert "the engine is not running" in said[0]


@pytest.fixture
def other_keys(app: Workbench) -> Iterator[None]:
    """Assigns other keys to some actions after the workbench has assigned those of its settings."""
    replace_keys({"ir.bookmark": ("w",), "ir.bookmarks": ("W",), "ir.fold": ("x",), "ir.fold-all": ("X",)})
    yield
    replace_keys({})


@pytest.mark.usefixtures("other_keys")
def test_messages_about_folds_and_bookmarks_name_the_keys_of_the_settings(app: Workbench) -> None:
    said: list[str] = []
    app.context.status.say = said.append  # type: ignore[method-assign]
    app.ir.jumps.open_bookmarks()
    app.ir.document.all_folded = True
    app.ir.folds._report_folds("functions are folded")
    assert said == ["no bookmarks: w sets one", "functions are folded: x unfolds one, X all"]
