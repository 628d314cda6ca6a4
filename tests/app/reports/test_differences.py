"""The rows of a diff: every line has one row, folds hide only equal lines, and rows map to lines and back."""

from __future__ import annotations

import random

import pytest

from buddy.app.panes.ir_comparison import change_counts, no_change_badge
from buddy.app.panes.ir_document import IrContent
from buddy.app.panes.ir_painter import highlight_changes
from buddy.app.reports import formatting
from buddy.app.reports.text.rows import CONTEXT, DiffLayout, DiffRow, DiffRows, Hunk, TextFold
from buddy.app.reports.text.unified import changed_words

LAYOUTS: tuple[DiffLayout, ...] = ("unified", "side-by-side")


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
def test_every_line_of_both_texts_has_one_row_in_order(seed: int, layout: DiffLayout) -> None:
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
def test_lines_map_to_rows_and_back(seed: int, layout: DiffLayout) -> None:
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
    assert diff.row(0) == DiffRow("fold", 0, 0, 17)
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
def test_changes_go_round_at_both_ends(layout: DiffLayout) -> None:
    diff = DiffRows([(10, 2, 10, 2), (40, 0, 40, 1), (50, 3, 51, 0)], 60, 58, layout)
    first, second, third = diff.changes
    assert [diff.change_after(row) for row in (0, first, second, third)] == [first, second, third, first]
    assert [diff.change_before(row) for row in (third, second, first, 0)] == [second, first, third, third]
    assert diff.row(second).after == 40


def test_side_by_side_has_both_lines_in_one_row() -> None:
    diff = DiffRows([(1, 2, 1, 1)], 4, 3, "side-by-side")
    assert rows_of(diff) == [("same", 0, 0, 0), ("changed", 1, 1, 0), ("changed", 2, -1, 0), ("same", 3, 2, 0)]


def test_words_that_differ_are_marked() -> None:
    before, after = "  %1 = arith.addf %0, %c : f32", "  %1 = arith.mulf %0, %c : f32"
    one, other = changed_words(before, after)
    assert [before[start:end] for start, end in one] == ["arith.addf"]
    assert [after[start:end] for start, end in other] == ["arith.mulf"]
    assert highlight_changes(before, one, "r", "w") == [("  %1 = ", "r"), ("arith.addf", "w"), (" %0, %c : f32", "r")]


def test_renumbered_values_are_marked_only_where_nothing_else_differs() -> None:
    before, after = "  %1 = arith.addf %0, %c : f32", "  %7 = arith.mulf %6, %d : f32"
    assert [before[start:end] for start, end in changed_words(before, after, names=False)[0]] == ["arith.addf"]
    pair = ("linalg.generic [#map1, #map1, #map] ins(%0, %1)", "linalg.generic [#map, #map, #map] ins(%3, %4)")
    spans = changed_words(*pair, names=False, aliases=(("#map1", "#map"), ("#map", "")))
    assert [[line[start:end] for start, end in runs] for line, runs in zip(pair, spans, strict=True)] == [["#map"]] * 2
    assert spans[0][0][0] == pair[0].rindex("#map")
    operands = changed_words("%1 = neg %0", "%1 = neg %2", names=False)
    assert operands == (((9, 11),), ((9, 11),))


def test_lines_that_have_little_in_common_are_not_marked_word_by_word() -> None:
    assert changed_words("scf.for %i = %a to %b {", "return") == ((), ())
    assert highlight_changes("return", (), "r", "w") == [("return", "r")]


def test_words_are_marked_if_only_numbering_changed() -> None:
    equal, changed = DiffRows([], 9, 9), DiffRows([(1, 2, 1, 3), (7, 0, 8, 1)], 9, 11)
    assert no_change_badge(IrContent("a", "b", "structural"), equal)[0][0] == " no structural change "
    assert no_change_badge(IrContent("a", "a", "structural"), equal)[0][0] == " no change "
    assert no_change_badge(IrContent("a", "b", "line"), changed) == []
    assert change_counts(changed, formatting.ASCII) == "+4 -2 in 2 changes"
    assert change_counts(equal, formatting.ASCII) == ""


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("seed", range(40))
def test_a_part_of_a_diff_holds_each_line_of_that_part_once(seed: int, layout: DiffLayout) -> None:
    hunks, before_lines, after_lines = random_hunks(seed)
    if after_lines < 3:
        return
    first, last = sorted(random.Random(seed + 1).sample(range(after_lines), 2))
    diff = DiffRows(hunks, before_lines, after_lines, layout)
    whole = {line: diff.row(diff.reveal(line))[:3] for line in range(after_lines)}
    diff.narrow((first, last))
    assert diff.is_narrowed
    assert [diff.is_shown(line) for line in range(after_lines)] == [
        first <= line <= last for line in range(after_lines)
    ]
    after = [row[2] for row in (diff.row(diff.reveal(line)) for line in range(first, last + 1))]
    assert after == list(range(first, last + 1))
    if layout == "unified":
        # What stands beside a line in the whole diff stands beside it in the part.
        assert all(diff.row(diff.row_of(line))[:3] == whole[line] for line in range(first, last + 1))
    lines = [diff.line_of(row) for row in range(diff.count)]
    assert lines == sorted(lines)
    assert diff.row_of(0) == diff.row_of(first)
    diff.widen()
    assert {line: diff.row(diff.reveal(line))[:3] for line in range(after_lines)} == whole


def test_lines_removed_at_the_ends_of_a_part_are_not_in_it() -> None:
    diff = DiffRows([(10, 3, 10, 0), (20, 2, 17, 0), (30, 1, 25, 1)], 50, 45)
    diff.narrow((10, 16))
    assert diff.changes == []
    diff.narrow((9, 17))
    assert [diff.row(row).before for row in diff.changes] == [10, 20]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_changed_functions_fold_to_one_line_with_change_counts(layout: DiffLayout) -> None:
    # Lines 2-11 and 40-59 are functions that changed, 20-29 one that did not; 40 itself changed, too.
    hunks = [(5, 2, 5, 3), (39, 4, 40, 6), (50, 0, 53, 2)]
    diff = DiffRows(hunks, 70, 74, layout)
    diff.narrow(None, [TextFold(2, 11), TextFold(20, 29), TextFold(40, 59), TextFold(42, 45)])
    heads = [(row.after, row.folded, row.added, row.removed) for row in map(diff.row, range(diff.count)) if row.folded]
    assert [head for head in heads if head[0] in (2, 40)] == [(2, 9, 3, 2), (40, 19, 7, 3)]
    assert all(diff.row(diff.row_of(line)).after == 40 for line in range(40, 60))
    assert diff.row(diff.row_of(60)).after == 60
    folded = diff.count
    assert diff.toggle(diff.row_of(2))
    assert diff.row(diff.row_of(7)).after == 7
    assert diff.row(diff.reveal(54)).after == 54
    assert diff.count > folded
    assert not any(row.folded for row in map(diff.row, range(diff.count)) if row.kind != "fold")


@pytest.mark.parametrize("seed", range(40))
def test_lines_map_to_rows_with_any_folds(seed: int) -> None:
    hunks, before_lines, after_lines = random_hunks(seed)
    diff = DiffRows(hunks, before_lines, after_lines)
    folds = [TextFold(line, min(line + 6, after_lines - 1)) for line in range(0, after_lines - 2, 9)]
    diff.narrow(None, folds)
    hidden = sum(row.folded for row in map(diff.row, range(diff.count)) if row.kind != "fold")
    equal = sum(row.folded - 1 for row in map(diff.row, range(diff.count)) if row.kind == "fold")
    shown = sum(row.after >= 0 for row in map(diff.row, range(diff.count)))
    assert shown + hidden + equal == after_lines
    for line in range(after_lines):
        row = diff.reveal(line)
        assert diff.row(row).after == line
