"""Jump arrows in the margin of assembly: their lanes and the drawn lines, in Unicode and in ASCII."""

from __future__ import annotations

from buddy.app.reports.formatting import ASCII, UNICODE, Glyphs
from buddy.app.reports.text.jump_arrows import LANES, JumpArrows

# A loop in lines 3 to 4 inside one in 1 to 6, which two jumps go back in; line 0 jumps over all of it.
NESTED = ((0, 7), (4, 3), (5, 1), (6, 1))


def drawn(jumps: tuple[tuple[int, int], ...], lines: int, lanes: int, glyphs: Glyphs = UNICODE) -> list[str]:
    arrows = JumpArrows(jumps)
    return ["".join(text for text, _ in arrows.cells(line, -1, lanes, glyphs)) for line in range(lines)]


def test_an_inner_loop_is_drawn_inside_the_outer_one() -> None:
    assert drawn(NESTED, 9, 3) == [
        "╭───",
        "│╭─▸",
        "││  ",
        "││╭▸",
        "││╰─",
        "│├──",
        "│╰──",
        "╰──▸",
        "    ",
    ]


def test_the_same_in_ascii() -> None:
    found = drawn(NESTED, 9, 3, ASCII)
    assert found[:4] == [",---", "|,->", "||  ", "||,>"]
    assert "".join(found).isascii()


def test_what_crosses_is_drawn_through() -> None:
    """Of two arrows of equal length, the upper one is in the inner lane."""
    assert drawn(((0, 2), (1, 3)), 4, 2) == [" ╭─", "╭┼─", "│╰▸", "╰─▸"]


def test_an_arrow_without_a_lane_is_marked_at_its_ends() -> None:
    assert drawn(NESTED, 9, 1) == [" v", " ▸", "  ", "╭▸", "╰─", " ^", " ^", " ▸", "  "]
    many = tuple((number, 100 + number) for number in range(LANES + 4))
    assert drawn(many, 1, LANES)[0] == "     ╭─"
    assert drawn(many, LANES + 4, LANES)[-1].endswith("v")


def test_arrows_apart_share_a_lane_and_the_cursors_stands_out() -> None:
    arrows = JumpArrows(((2, 1), (5, 4)))
    assert arrows.cells(5, 5, 2, UNICODE) == [(" ", "dim"), ("╰", "key"), ("─", "key")]
    assert arrows.cells(2, 5, 2, UNICODE) == [(" ", "dim"), ("╰", "dim"), ("─", "dim")]
    assert arrows.cells(3, 5, 2, UNICODE) == [(" ", "dim")] * 3


def test_a_line_that_takes_several_lines_of_the_screen_keeps_what_passes_it() -> None:
    arrows = JumpArrows(NESTED)
    assert "".join(text for text, _ in arrows.continuation_cells(5, 3, UNICODE)) == "││  "
    assert "".join(text for text, _ in arrows.continuation_cells(7, 3, UNICODE)).strip() == ""
