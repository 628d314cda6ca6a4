"""Rows and lines with folded regions or only one function; bookmarks; search matches; type names."""

from __future__ import annotations

import pytest

from buddy.app.reports.text.abbreviations import TypeNames, abbreviate_types
from buddy.app.reports.text.rows import Folds, TextFold, unfold_line
from buddy.app.reports.text.search_hits import first_and_last_text, stage_note, stages_with_hits
from buddy.app.session.stages import StageRow, key_stages
from buddy.app.workspace.session_file import Bookmark, Bookmarks
from buddy.compiler.protocol import Hits, LongType, Stage


def rows(folds: Folds) -> list[int]:
    return [folds.line_of(row) for row in range(folds.count)]


def test_without_folds_rows_are_lines() -> None:
    assert rows(Folds(4)) == [0, 1, 2, 3]
    assert Folds(0).count == 0
    assert Folds(0).hides(0)


def test_folded_lines_have_no_row_and_map_to_their_first_line() -> None:
    folds = Folds(12, [TextFold(2, 4), TextFold(3, 4), TextFold(7, 9)])
    assert rows(folds) == [0, 1, 2, 5, 6, 7, 10, 11]
    assert [folds.row_of(line) for line in range(12)] == [0, 1, 2, 2, 2, 3, 4, 5, 5, 5, 6, 7]
    assert [folds.hides(line) for line in (2, 3, 5, 9)] == [False, True, False, True]
    assert [folds.hidden_count(line) for line in (1, 2, 7)] == [0, 2, 2]


def test_a_window_shows_only_one_function() -> None:
    folds = Folds(12, [TextFold(0, 2), TextFold(5, 9)], window=(4, 7))
    assert rows(folds) == [4, 5]
    assert folds.row_of(0) == 0
    assert folds.row_of(11) == 1
    assert folds.hides(2)


def test_unfolding_a_line_opens_every_fold_that_hides_it() -> None:
    folds = {TextFold(0, 9), TextFold(2, 5), TextFold(7, 9)}
    assert unfold_line(folds, 3) == {TextFold(7, 9)}
    assert unfold_line(folds, 0) == folds


def test_bookmarks_are_set_removed_and_serialized() -> None:
    mark = Bookmark(0, ("cse", 1), 7, "%0 = foo")
    marks = Bookmarks()
    assert marks.toggle(mark)
    assert marks.toggle(Bookmark(1, ("cse", 1), 7, ""))
    assert marks.lines_of(0, ("cse", 1)) == {7}
    assert Bookmarks.from_data(marks.to_data()).marks == marks.marks
    assert not marks.toggle(Bookmark(0, ("cse", 1), 7, "another text"))
    assert marks.lines_of(0, ("cse", 1)) == set()


def test_the_first_and_the_last_stage_with_matches_are_reported(stages: list[Stage]) -> None:
    board = [StageRow(stage, key) for key, stage in key_stages(stages)]
    listed = stages_with_hits(board, [Hits("t-lower", (3, 4), ("a", "b")), Hits("t-buffers", (9,), ("c",))])
    assert [found.row.stage.name for found in listed] == ["lower", "canonicalize", "one-shot-bufferize"]
    assert [stage_note(found, place == 0) for place, found in enumerate(listed)] == [
        "2 lines, first",
        "2 lines, same text as lower",
        "1 line",
    ]
    assert first_and_last_text(board, listed) == "first in lower (2 lines), gone after convert-linalg-to-loops"
    assert first_and_last_text(board, listed[:0]) == "in no stage"


@pytest.mark.parametrize(
    ("line", "short"),
    [
        (
            "%1 = memref.cast %0 : memref<1x8xf32, strided<[98304, 768], offset: ?>> to memref<1x8xf32>",
            "%1 = memref.cast %0 : memref<1x8xf32, strided<…>> to memref<1x8xf32>",
        ),
        (
            "%2 = llvm.insertvalue %1 : !llvm.struct<(ptr, ptr, i64, array<4 x i64>)>",
            "%2 = llvm.insertvalue %1 : !llvm.struct<…>",
        ),
        ("func.func @f(%a: tensor<4xf32>) {", "func.func @f(%a: tensor<4xf32>) {"),
        ("#map = affine_map<(d0, d1, d2) -> (d0, d2)>", "#map = affine_map<(d0, d1, d2) -> (d0, d2)>"),
    ],
)
def test_long_types_are_abbreviated(line: str, short: str) -> None:
    assert abbreviate_types(line, "…") == short


def test_a_type_has_one_name_in_all_texts() -> None:
    view, wide, struct = "memref<8xf32, strided<[1]>>", "memref<8xf32, strided<[1]>, 3>", "!llvm.struct<(ptr, ptr)>"
    names = TypeNames()
    names.add("a", [LongType(view, 2, 5), LongType(struct, 3, 9)])
    names.add("b", [LongType(struct, 4, 1), LongType(wide, 2, 2)])
    assert names.show("a")
    assert not names.show("a"), "no redraw is needed"
    line = f"%0 = x : {view} to {struct}, {wide}"
    assert names.abbreviate(line) == f"%0 = x : !T1 to !T2, {wide}"
    assert names.types_on(line) == {"!T1": view, "!T2": struct}
    assert names.show("a", "b")
    assert names.abbreviate(line) == "%0 = x : !T1 to !T2, !T3"
    assert [name for name, _ in names.types_of("b")] == ["!T2", "!T3"]
    assert names.abbreviate(f"!own = {struct}") == f"!own = {struct}", "what an alias stands for is there to be read"
    assert names.show("c")
    assert names.abbreviate(line) == line
