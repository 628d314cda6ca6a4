"""Only cells that differ from what the terminal shows are written, and the terminal then shows the update."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence

import pytest
from rich.console import Console
from rich.segment import Segment
from rich.style import Style
from textual._compositor import ChopsUpdate, LayoutUpdate
from textual.geometry import Region
from textual.strip import Strip

from benchmarks.support.terminal import TerminalScreen
from buddy.app.workbench.changed_cells import TerminalCells

WIDTH, HEIGHT = 40, 6
WORDS = ["func", "%0", "  ", "tensor<4x", "→", "│", "日本", "é", "e\u0301", "👍", "x", " ", "mul "]
# Rich keeps the codes of a style for the first terminal that it is drawn in, so each kind of terminal has its own blue.
STYLES = ("red", "bold rgb(1,2,{0}) on rgb(4,5,{0})", "dim underline", "reverse on blue", "on rgb(4,5,{0})")
Styles = Sequence[Style | None]
CONSOLES = {
    "truecolor": Console(color_system="truecolor", force_terminal=True),
    "256": Console(color_system="256", force_terminal=True),
}


def a_strip(chance: random.Random, styles: Styles, width: int) -> Strip:
    segments = [Segment(chance.choice(WORDS), chance.choice(styles)) for _ in range(width)]
    return Strip(segments).crop(0, width).adjust_cell_length(width)


def a_layout(chance: random.Random, styles: Styles) -> LayoutUpdate:
    """An update of the whole screen, whose lines have two parts."""
    cut = chance.randrange(1, WIDTH)
    strips: list[Iterable[Strip]] = [
        [a_strip(chance, styles, cut), a_strip(chance, styles, WIDTH - cut)] for _ in range(HEIGHT)
    ]
    return LayoutUpdate(strips, Region(0, 0, WIDTH, HEIGHT))


def a_part(chance: random.Random, styles: Styles) -> ChopsUpdate:
    """An update of some lines, each with parts of three widgets of which not all are drawn."""
    cuts = sorted(chance.sample(range(1, WIDTH), 2))
    starts, ends = [0, *cuts], [*cuts, WIDTH]
    chops = [
        {
            start: a_strip(chance, styles, end - start) if chance.random() < 0.8 else None
            for start, end in zip(starts, ends, strict=True)
        }
        for _ in range(HEIGHT)
    ]
    lines = sorted(chance.sample(range(HEIGHT), 3))
    return ChopsUpdate(chops, [(y, 0, chance.choice(ends)) for y in lines], [ends] * HEIGHT)


def updates(seed: int, colors: str) -> Iterator[LayoutUpdate | ChopsUpdate]:
    chance = random.Random(seed)
    styles = [None, *(Style.parse(style.format(100 + len(colors))) for style in STYLES)]
    yield a_layout(chance, styles)
    for _ in range(30):
        yield chance.choice((a_layout, a_part, a_part, a_part))(chance, styles)


@pytest.mark.parametrize("colors", CONSOLES)
@pytest.mark.parametrize("seed", range(5))
def test_the_terminal_shows_what_it_would_show_after_whole_updates(seed: int, colors: str) -> None:
    console, cells = CONSOLES[colors], TerminalCells()
    screen, expected = TerminalScreen(WIDTH, HEIGHT), TerminalScreen(WIDTH, HEIGHT)
    for update in updates(seed, colors):
        screen.feed(cells.changes(update, console).encode())
        expected.feed(update.render_segments(console).encode())
        assert screen.visible == expected.visible


def layout(*lines: Sequence[tuple[str, str]]) -> LayoutUpdate:
    strips: list[Iterable[Strip]] = [
        [Strip([Segment(text, Style.parse(style)) for text, style in line])] for line in lines
    ]
    return LayoutUpdate(strips, Region(0, 0, sum(len(text) for text, _ in lines[0]), len(lines)))


def written(*steps: LayoutUpdate) -> str:
    """What is written for the last update, after the others."""
    cells = TerminalCells()
    return [cells.changes(update, CONSOLES["truecolor"]) for update in steps][-1]


def test_the_same_screen_writes_nothing() -> None:
    line = [("compiling", "red"), ("  3/9", "bold")]
    assert written(layout(line, line), layout(line, line)) == ""


def test_a_changed_number_writes_its_digits_alone() -> None:
    before, after = [("compiling cse  ", "red"), ("13/62", "bold")], [("compiling cse  ", "red"), ("14/62", "bold")]
    assert written(layout(before), layout(after)) == "\x1b[1;17H\x1b[0;1m4\x1b[0m"


def test_a_colour_is_written_once_for_neighbours_and_the_background_is_not_repeated() -> None:
    one, other = "rgb(1,2,3) on rgb(9,9,9)", "rgb(4,5,6) on rgb(9,9,9)"
    text = written(layout([("ab", one), ("cd", other), ("ef", other)]))
    assert text == "\x1b[1;1H\x1b[0;38;2;1;2;3;48;2;9;9;9mab\x1b[38;2;4;5;6mcdef\x1b[0m"


def test_another_colour_of_the_same_text_is_written() -> None:
    assert written(layout([("ok", "red")]), layout([("ok", "green")])) == "\x1b[1;1H\x1b[0;32mok\x1b[0m"


def test_another_colour_of_the_text_around_spaces_does_not_write_the_spaces() -> None:
    before, after = (
        [("ok", "red on blue"), (" " * 9, "red on blue")],
        [("ok", "red on blue"), (" " * 9, "bold on blue")],
    )
    assert written(layout(before), layout(after)) == ""


def test_the_colour_of_words_is_not_repeated_after_the_spaces_between_them() -> None:
    assert written(layout([("a b c", "red")])) == "\x1b[1;1H\x1b[0;31ma b c\x1b[0m"
    assert written(layout([("a ", "red"), (" ", "underline red")])).endswith("a \x1b[4m \x1b[0m")


def test_a_text_with_a_wide_character_is_written_whole() -> None:
    assert written(layout([("a日x", "red")]), layout([("a日y", "red")])) == "\x1b[1;1H\x1b[0;31ma日y\x1b[0m"


def test_everything_is_written_again_after_forget() -> None:
    cells, update = TerminalCells(), layout([("compiled", "red")])
    first = cells.changes(update, CONSOLES["256"])
    assert cells.changes(update, CONSOLES["256"]) == ""
    cells.forget()
    assert cells.changes(update, CONSOLES["256"]) == first
