"""Wrapped long lines: the pieces, scrolling, and expanded constants."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from buddy.app.reports.text.abbreviations import Expansions, find_gaps
from buddy.app.session.line_cache import AnnotatedLine
from buddy.app.widgets.drawn_lines import RowLine, line_above, lines_below, scroll_top, top_to_show
from buddy.app.widgets.look import wrap_segments

LINE = "    %12 = linalg.matmul ins(%9, %11 : tensor<128x768xf32>, tensor<768x768xf32>) outs(%10 : tensor<128x768xf32>)"
HEIGHTS = [1, 3, 1, 9, 1, 2, 1, 1, 4, 1]
PAGE = 5


def height(row: int) -> int:
    return HEIGHTS[row]


@pytest.mark.parametrize("room", [1, 2, 3, 7, 20, 40, 200])
@pytest.mark.parametrize("text", [LINE, "", "x" * 100, " " * 50, "a, " * 40])
def test_pieces_cover_the_line_and_fit(text: str, room: int) -> None:
    found = wrap_segments(text, room)
    assert "".join(text[piece.start : piece.end] for piece in found) == text
    assert all(piece.indent + piece.end - piece.start <= room for piece in found)
    assert all(piece.end > piece.start for piece in found) or not text


def test_pieces_break_after_spaces_and_commas_and_continue_indented() -> None:
    first, second, *_ = wrap_segments(LINE, 60)
    assert LINE[first.end - 1] in " ,"
    assert (first.indent, second.indent) == (0, 8)


SPOTS = [RowLine(row, line) for row, lines in enumerate(HEIGHTS) for line in range(lines)]


def test_lines_below_and_above_are_counted_over_rows() -> None:
    assert lines_below(RowLine(1, 2), PAGE, len(HEIGHTS), height) == SPOTS[3 : 3 + PAGE]
    assert lines_below(RowLine(9), PAGE, len(HEIGHTS), height) == SPOTS[-1:]
    for place, spot in enumerate(SPOTS):
        for lines in range(12):
            assert line_above(spot, lines, height) == SPOTS[max(0, place - lines)]


@pytest.mark.parametrize("top", SPOTS)
@pytest.mark.parametrize("row", range(len(HEIGHTS)))
def test_the_cursor_row_is_fully_visible_if_it_fits(row: int, top: RowLine) -> None:
    shown = [
        spot for spot in lines_below(top_to_show(row, top, PAGE, height), PAGE, len(HEIGHTS), height) if spot.row == row
    ]
    assert len(shown) == min(HEIGHTS[row], PAGE)
    visible = lines_below(top, PAGE, len(HEIGHTS), height)
    if [spot for spot in visible if spot.row == row] == [RowLine(row, line) for line in range(HEIGHTS[row])]:
        assert top_to_show(row, top, PAGE, height) == top, "what is on the screen stays where it is"


@pytest.mark.parametrize("lines", [-20, -3, -1, 1, 2, 4, 30])
def test_scrolling_goes_by_lines_and_stops_at_the_ends(lines: int) -> None:
    last = len(SPOTS) - PAGE
    for place, spot in enumerate(SPOTS[: last + 1]):
        assert scroll_top(spot, lines, PAGE, len(HEIGHTS), height) == SPOTS[max(0, min(place + lines, last))]


def test_constants_are_expanded_one_at_a_time_and_elided_again() -> None:
    full = f"a dense<{'0123456789' * 30}> b dense<{'x' * 400}> c"
    short = f"a dense<{'0123456789' * 3}01… (268 more characters)> b dense<{'x' * 32}… (368 more characters)> c"
    assert [full[gap.start : gap.start + gap.missing] for gap in find_gaps(short)] == [
        ("0123456789" * 30)[32:],
        "x" * 368,
    ]
    filled, line = Expansions(), AnnotatedLine(short, ("mm",))
    place, gap = filled.next_gap("t", 4, short) or pytest.fail("a gap")
    filled.fill("t", 4, place, full[gap.start : gap.start + gap.missing], 0)
    assert filled.apply("t", 4, line) == AnnotatedLine(
        f"a dense<{'0123456789' * 30}> b dense<{'x' * 32}… (368 more characters)> c", ("mm",)
    )
    assert filled.apply("t", 5, line) is line
    place, gap = filled.next_gap("t", 4, short) or pytest.fail("another gap")
    filled.fill("t", 4, place, full[gap.start : gap.start + 100], gap.missing - 100)
    assert filled.apply("t", 4, line).text.endswith(f"{'x' * 132}… (268 more characters)> c")  # type: ignore[union-attr]
    assert filled.next_gap("t", 4, short) is None
    assert filled.collapse("t", 4)
    assert not filled.collapse("t", 4)
    assert filled.apply("t", 4, line) is line


def test_the_gap_of_a_truncated_line_is_its_rest() -> None:
    assert find_gaps("abc… (1,000 more characters)") == [(3, 1000, True)]


MANY = """
import torch


@torch.compile(backend="buddy")
def f(*parts):
    return torch.cat(parts)


f(*(torch.ones(2) for _ in range(220)))
"""


@pytest.mark.slow
async def test_cursor_search_and_folds_work_with_wrapped_lines(workbench: Callable[..., Any]) -> None:
    async with workbench("mlp.py", size=(80, 24)) as bench:
        ir = bench.app.ir
        await bench.press("tab", "tab", "4")
        await bench.drawn()
        await bench.app.context.session.cache.load(ir.document.text, 0, ir.document.line_count)
        text = [
            bench.app.context.session.cache.get(ir.document.text, number).text
            for number in range(ir.document.line_count)
        ]
        long = next(number for number, line in enumerate(text) if len(line) > 150)
        await bench.press("greater_than_sign", "W")
        assert ir.left == 0
        await bench.press("greater_than_sign")
        await bench.sees("press W to truncate them")
        for _ in range(long):
            await bench.press("j")
        assert ir.line_number == long
        shown = [spot for spot in ir.visible_lines() if spot.row == ir.cursor]
        assert len(shown) == ir.row_height(ir.cursor) > 1
        room = ir.width - ir.document.line_number_width - 2
        drawn = "".join(piece_of(ir, spot.row, spot.line) for spot in shown)
        assert text[long].split() == drawn.split() or text[long].replace(" ", "") in drawn.replace(" ", "")
        assert all(strip.cell_length == ir.width for strip in ir.row_strips(ir.cursor, ir.width))
        await bench.press("slash")
        await bench.type(text[long].strip()[room : room + 12])
        await bench.press("enter")
        await bench.until(lambda: bool(ir.search.matches.lines), "the match")
        await bench.press("G")
        assert ir.visible_lines()[-1].row == ir.cursor == ir.row_count - 1
        await bench.press("ctrl+b", "ctrl+b", "ctrl+f", "n")
        assert ir.cursor in ir.rows_on_screen()
        await bench.press("z")
        await bench.until(lambda: ir.row_count < ir.document.line_count, "the fold")
        assert ir.cursor in ir.rows_on_screen()
        await bench.pilot.resize_terminal(40, 10)
        await bench.passed_on()
        assert ir.cursor in ir.rows_on_screen()
        await bench.press("d")
        await bench.drawn()
        await bench.press("j", "ctrl+f", "G", "g", "g", "W")
        assert not ir.wrapped


def piece_of(ir: Any, row: int, line: int) -> str:
    return "".join(segment.text for segment in ir.row_strips(row, ir.width)[line])[ir.document.line_number_width + 2 :]


@pytest.mark.slow
async def test_elided_constants_are_expanded_in_the_pane(workbench: Callable[..., Any], tmp_path: Path) -> None:
    script = tmp_path / "table.py"
    script.write_text(MANY)
    async with workbench(script, size=(80, 24)) as bench:
        ir = bench.app.ir
        await bench.press("tab", "tab", "3", "slash")
        await bench.type("func.func")
        await bench.press("enter")
        await bench.until(lambda: bool(ir.search.matches.lines), "the function")
        elided = ir.line_at(ir.cursor).text
        await bench.press("W", "e")
        await bench.until(lambda: len(ir.line_at(ir.cursor).text) > len(elided), "the rest")
        assert "more characters" not in ir.line_at(ir.cursor).text
        assert len([spot for spot in ir.visible_lines() if spot.row == ir.cursor]) > 5
        await bench.press("e")
        await bench.until(lambda: ir.line_at(ir.cursor).text == elided, "it elided again")


@pytest.mark.slow
async def test_one_function_of_a_diff_and_functions_folded(workbench: Callable[..., Any]) -> None:
    async with workbench("mlp.py", size=(120, 40)) as bench:
        ir = bench.app.ir
        await bench.press("tab", "tab", "4", "d")
        await bench.drawn()
        await bench.until(lambda: ir.document.diff is not None and bool(ir.document.diff.hunks), "a diff")
        await bench.press("Z")

        def heads() -> list[int]:
            rows = [(place, ir.document.diff.row(place)) for place in range(ir.document.diff.count)]
            return [place for place, row in rows if row.folded and row.kind != "fold"]

        await bench.until(lambda: bool(heads()), "folded functions")
        folded, head = ir.row_count, heads()[0]
        ir.move_to(head)
        assert "func" in ir.line_at(head).text
        await bench.press("z")
        assert ir.row_count > folded
        await bench.press("Z", "f")
        await bench.until(lambda: len(bench.app.screen_stack) > 1, "the functions")
        await bench.press("down", "enter")
        await bench.drawn()
        await bench.until(lambda: ir.document.diff is not None and ir.document.diff.is_narrowed, "one function")
        await bench.sees("only @")
        await bench.press("d")
        await bench.until(lambda: ir.is_drawn, "the structural diff")
        assert ir.document.diff.is_narrowed
        await bench.press(":")
        await bench.type(str(ir.document.line_count))  # the brace that closes the module, which is in no function
        await bench.press("enter")
        assert not ir.document.diff.is_narrowed, "a jump out of the part shows the whole"
