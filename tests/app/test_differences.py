"""The rows of a diff: every line is there once, folds hide equal lines alone, and rows and lines lead to each other."""

from __future__ import annotations

import random

import pytest

from buddy.app import figures
from buddy.app.differences import CONTEXT, DiffRows, Hunk, Layout
from buddy.app.panes.comparison import View, change_counts, no_change
from buddy.app.words import changed_words, marked

LAYOUTS: tuple[Layout, ...] = ("unified", "beside")


def random_hunks(seed: int) -> tuple[list[Hunk], int, int]:
    random_ = random.Random(seed)
    found: list[Hunk] = []
    before = after = 0
    for _ in range(random_.randrange(8)):
        equal = random_.choice((1, 2, 9, 40))
        removed, added = random_.choice(((1, 1), (0, 3), (4, 0), (2, 5)))
        skip = equal if found or random_.random() < 0.7 else 0
        found.append((before + skip, removed, after + skip, added))
        before, after = before + skip + removed, after + skip + added
    rest = random_.choice((0, 1, 30))
    return found, before + rest, after + rest


def rows_of(diff: DiffRows) -> list[tuple[str, int, int, int]]:
    return [diff.row(k)[:4] for k in range(diff.count)]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("seed", range(40))
def test_every_line_of_both_texts_is_there_once_and_in_order(seed: int, layout: Layout) -> None:
    hunks, before_lines, after_lines = random_hunks(seed)
    diff = DiffRows(hunks, before_lines, after_lines, layout)
    for _ in range(2):
        before: list[int] = []
        after: list[int] = []
        for kind, one, other, folded in rows_of(diff):
            if kind == "fold":
                before += range(one, one + folded)
                after += range(other, other + folded)
            else:
                before += [one] * (one >= 0)
                after += [other] * (other >= 0)
        assert before == list(range(before_lines))
        assert after == list(range(after_lines))
        diff.toggle_all()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("seed", range(40))
def test_a_line_leads_to_its_row_and_back(seed: int, layout: Layout) -> None:
    hunks, before_lines, after_lines = random_hunks(seed)
    diff = DiffRows(hunks, before_lines, after_lines, layout)
    for line in range(after_lines):
        row = diff.row(diff.row_of(line))
        assert row.after <= line < row.after + max(row.folded, 1)
    for line in range(after_lines):
        row_number = diff.reveal(line)
        assert diff.row(row_number).after == line
        assert diff.line_of(row_number) == line


def test_equal_lines_far_from_a_change_are_folded() -> None:
    diff = DiffRows([(20, 1, 20, 2)], 41, 42)
    kinds = [row[0] for row in rows_of(diff)]
    assert kinds == ["fold", *["same"] * CONTEXT, "removed", "added", "added", *["same"] * CONTEXT, "fold"]
    assert diff.row(0) == ("fold", 0, 0, 17, -1)
    assert diff.row(4).partner == 20
    assert diff.row(6).partner == -1


def test_a_fold_is_opened_and_closed_where_the_cursor_is() -> None:
    diff = DiffRows([(20, 1, 20, 2)], 41, 42)
    folded = diff.count
    assert diff.toggle(0)
    assert diff.count == folded + 16
    assert diff.toggle(5)
    assert diff.count == folded
    assert not diff.toggle(4), "a changed line is in no fold"


def test_two_equal_texts_are_one_fold_and_empty_ones_nothing() -> None:
    assert rows_of(DiffRows([], 9, 9)) == [("fold", 0, 0, 9)]
    assert rows_of(DiffRows([], 0, 0)) == []
    assert DiffRows([], 9, 9).change_after(0) is None


@pytest.mark.parametrize("layout", LAYOUTS)
def test_changes_go_round_at_both_ends(layout: Layout) -> None:
    diff = DiffRows([(10, 2, 10, 2), (40, 0, 40, 1), (50, 3, 51, 0)], 60, 58, layout)
    first, second, third = diff.changes
    assert [diff.change_after(row) for row in (0, first, second, third)] == [first, second, third, first]
    assert [diff.change_before(row) for row in (third, second, first, 0)] == [second, first, third, third]
    assert diff.row(second).after == 40


def test_side_by_side_has_both_lines_in_one_row() -> None:
    diff = DiffRows([(1, 2, 1, 1)], 4, 3, "beside")
    assert rows_of(diff) == [("same", 0, 0, 0), ("changed", 1, 1, 0), ("changed", 2, -1, 0), ("same", 3, 2, 0)]


def test_words_that_differ_are_marked() -> None:
    before, after = "  %1 = arith.addf %0, %c : f32", "  %1 = arith.mulf %0, %c : f32"
    one, other = changed_words(before, after)
    assert [before[start:end] for start, end in one] == ["arith.addf"]
    assert [after[start:end] for start, end in other] == ["arith.mulf"]
    assert marked(before, one, "r", "w") == [("  %1 = ", "r"), ("arith.addf", "w"), (" %0, %c : f32", "r")]


def test_renumbered_values_are_marked_only_where_nothing_else_differs() -> None:
    before, after = "  %1 = arith.addf %0, %c : f32", "  %7 = arith.mulf %6, %d : f32"
    assert [before[start:end] for start, end in changed_words(before, after, names=False)[0]] == ["arith.addf"]
    operands = changed_words("%1 = neg %0", "%1 = neg %2", names=False)
    assert operands == (((9, 11),), ((9, 11),))


def test_lines_that_have_little_in_common_are_not_marked_word_by_word() -> None:
    assert changed_words("scf.for %i = %a to %b {", "return") == ((), ())
    assert marked("return", (), "r", "w") == [("return", "r")]


def test_where_only_numbering_changed_that_is_said() -> None:
    equal, changed = DiffRows([], 9, 9), DiffRows([(1, 2, 1, 3), (7, 0, 8, 1)], 9, 11)
    assert no_change(View("a", "b", "structural"), equal)[0][0] == " no structural change "
    assert no_change(View("a", "a", "structural"), equal)[0][0] == " no change "
    assert no_change(View("a", "b", "line"), changed) == []
    assert change_counts(changed, figures.ASCII) == "+4 -2 in 2 places"
    assert change_counts(equal, figures.ASCII) == ""
