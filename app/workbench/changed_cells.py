"""Writes to the terminal only the cells that differ from what it shows, with as few escape sequences as possible.

Textual repaints whole regions, and sets and resets the colours of each piece of text. Most of the repainted cells are
the same as before, and two of three bytes are colours. Over a slow connection, sending these bytes takes seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple, cast

from rich.cells import cell_len
from rich.color import ColorSystem
from rich.console import Console, RenderableType
from rich.style import Style
from textual._compositor import ChopsUpdate, Compositor, CompositorUpdate, LayoutUpdate
from textual.geometry import Region
from textual.strip import Strip

# At most this many unchanged cells between changed ones are written again: a sequence that moves the cursor past them
# has about as many bytes.
MAX_GAP = 4
# The text of a cell that the text of an earlier cell, which is wider than one cell, also covers.
CONTINUATION = ""
# The attributes that show on a space: underline, blink, reverse, strike, and lines around and above the text.
ATTRIBUTES_OF_SPACES = frozenset(("4", "5", "6", "7", "9", "21", "51", "52", "53"))
# The strips of a line, each with the column of its first cell.
PlacedStrips = Iterable[tuple[int, Strip]]


class Pen(NamedTuple):
    """The attributes and colours in which a terminal writes text, as parameters of SGR sequences (ECMA-48).

    Empty colours are the terminal's default ones.
    """

    attributes: tuple[str, ...] = ()
    foreground: tuple[str, ...] = ()
    background: tuple[str, ...] = ()


PLAIN = Pen()
# All pens, each with itself as value, so that equal pens are the same object and can be compared by `is`.
_PENS: dict[Pen, Pen] = {PLAIN: PLAIN}


@lru_cache(maxsize=4096)
def _codes_between(before: Pen | None, pen: Pen) -> str:
    """Returns the escape sequence that changes the pen from `before` to `pen`. `None` means that the pen is unknown."""
    if before is None or not set(before.attributes) <= set(pen.attributes):
        # Attributes are switched off by a reset of everything (0).
        codes = ["0", *pen.attributes, *pen.foreground, *pen.background]
    else:
        codes = [code for code in pen.attributes if code not in before.attributes]
        codes += (pen.foreground or ("39",)) if pen.foreground != before.foreground else ()
        codes += (pen.background or ("49",)) if pen.background != before.background else ()
    return f"\x1b[{';'.join(codes)}m"


@lru_cache(maxsize=4096)
def _pen_of(style: Style | None, colors: ColorSystem) -> Pen:
    """Returns the pen of a style, in a terminal with these colours. Equal pens are the same object."""
    pen = _make_pen(style, colors)
    return _PENS.setdefault(pen, pen)


@lru_cache(maxsize=4096)
def _pen_of_space(pen: Pen) -> Pen:
    """Returns the pen that draws a space as `pen` does: without the colour of text, which a space does not show."""
    if not ATTRIBUTES_OF_SPACES.isdisjoint(pen.attributes):
        return pen
    pen_of_space = Pen(background=pen.background)
    return _PENS.setdefault(pen_of_space, pen_of_space)


def _make_pen(style: Style | None, colors: ColorSystem) -> Pen:
    """Returns a new pen for a style."""
    if style is None:
        return PLAIN
    without_colors = Strip.render_ansi(style.without_color, colors)
    return Pen(
        tuple(filter(None, without_colors.split(";"))),
        style.color.downgrade(colors).get_ansi_codes() if style.color else (),
        style.bgcolor.downgrade(colors).get_ansi_codes(foreground=False) if style.bgcolor else (),
    )


class TerminalLine:
    """The cells that one line of the terminal shows: their texts and pens. A text of `None` is not known."""

    def __init__(self) -> None:
        self.texts: list[str | None] = []
        self.pens: list[Pen] = []
        # The strips that were written last and are still on the line, by their columns.
        self._strips: dict[int, Strip] = {}

    def shows(self, x: int, strip: Strip) -> bool:
        """Whether `strip` was written at column `x` and is still there, so that its cells need not be compared.

        If false, the cells may nevertheless be equal.
        """
        return self._strips.get(x) == strip

    def record(self, x: int, strip: Strip, texts: Sequence[str], pens: Sequence[Pen]) -> None:
        """Records that `strip`, whose cells have these texts and pens, is at column `x`."""
        end = x + len(texts)
        self.texts[x:end], self.pens[x:end] = texts, pens
        self._strips = {
            start: other for start, other in self._strips.items() if start >= end or start + other.cell_length <= x
        }
        self._strips[x] = strip

    def widen(self, width: int) -> None:
        """Adds unknown cells, so that the line has at least `width`."""
        missing = width - len(self.texts)
        self.texts += [None] * missing
        self.pens += [PLAIN] * missing


class TerminalCells:
    """Remembers what each cell of the terminal shows, to write only the changes of an update.

    `forget` must be called when anything else has written to the terminal or has changed its size.
    """

    def __init__(self) -> None:
        self._lines: dict[int, TerminalLine] = {}

    def forget(self) -> None:
        """Forgets what the terminal shows, so that the next update of each cell writes it."""
        self._lines = {}

    def as_changes(self, update: RenderableType | None) -> RenderableType | None:
        """Returns an update of the screen as one that writes only the changes, and any other object unchanged."""
        if not isinstance(update, LayoutUpdate | ChopsUpdate):
            return update
        # `ChangedCellsUpdate` cannot be rendered by Rich. Textual only calls its `render_segments`.
        return cast(RenderableType, ChangedCellsUpdate(self, update))

    def changes(self, update: LayoutUpdate | ChopsUpdate, console: Console) -> str:
        """Returns the text that makes the terminal show `update`, and records the cells of `update`."""
        colors = ColorSystem(console._color_system or ColorSystem.TRUECOLOR)
        # Escape sequences and texts. `pen` is the terminal's pen after them, `None` before the first of them.
        sequences: list[str] = []
        pen: Pen | None = None
        for y, strips in _lines_of_update(update):
            line = self._lines.setdefault(y, TerminalLine())
            for x, strip in strips:
                if line.shows(x, strip):
                    continue
                texts, pens = _cells_of(strip, colors)
                line.widen(x + len(texts))
                for start, end in _changed_runs(line, x, texts, pens):
                    sequences.append(f"\x1b[{y + 1};{x + start + 1}H")
                    pen = _append_cells(sequences, pen, texts[start:end], pens[start:end])
                line.record(x, strip, texts, pens)
        return "".join([*sequences, "\x1b[0m"]) if sequences else ""


def _append_cells(sequences: list[str], pen: Pen | None, texts: Sequence[str], pens: Sequence[Pen]) -> Pen | None:
    """Appends the texts of cells to `sequences`, with the changes of the pen. Returns the pen after the last cell."""
    for text, new_pen in zip(texts, pens, strict=True):
        # A space needs no new pen if the current one draws it in the same way.
        if new_pen is not pen and (text != " " or pen is None or _pen_of_space(pen) is not new_pen):
            sequences.append(_codes_between(pen, new_pen))
            pen = new_pen
        sequences.append(text)
    return pen


class DirtyLinesCompositor(Compositor):
    """A compositor that composes only the lines that have changed.

    Textual's compositor composes all lines between the first and the last changed one. A step of the cursor changes a
    few lines at the top and at the bottom of the screen.
    """

    def __init__(self) -> None:
        super().__init__()
        # The regions that have changed; `None` unless an update of them is composed.
        self._changed_regions: list[Region] | None = None

    def render_partial_update(self) -> ChopsUpdate | None:
        self._changed_regions = list(self._dirty_regions)
        try:
            return super().render_partial_update()
        finally:
            self._changed_regions = None

    def _get_renders(self, crop: Region | None = None) -> Iterable[tuple[Region, Region, list[Strip]]]:
        if self._changed_regions is None:
            yield from super()._get_renders(crop)
            return
        # As the overridden method, but of each widget only the lines from its first changed one to its last.
        for widget, (region, clip) in self.visible_widgets.items():
            visible = region.intersection(clip)
            overlaps = [visible.intersection(changed) for changed in self._changed_regions]
            overlaps = [overlap for overlap in overlaps if overlap]
            if overlaps:
                first, end = min(overlap.y for overlap in overlaps), max(overlap.bottom for overlap in overlaps)
                lines = Region(visible.x, first, visible.width, end - first)
                yield region, lines, widget.render_lines(lines.translate(-region.offset))


class ChangedCellsUpdate(CompositorUpdate):
    """An update that writes only the cells that differ from what the terminal shows."""

    def __init__(self, cells: TerminalCells, update: LayoutUpdate | ChopsUpdate) -> None:
        self._cells, self._update = cells, update

    def render_segments(self, console: Console) -> str:
        # The changes are recorded here and not before, because Textual drops some updates without writing them.
        return self._cells.changes(self._update, console)


def _lines_of_update(update: LayoutUpdate | ChopsUpdate) -> Iterator[tuple[int, PlacedStrips]]:
    """Yields the strips of each line of an update, with the number of the line (from 0).

    A line may appear repeatedly.
    """
    if isinstance(update, LayoutUpdate):
        for y, strips in enumerate(update.strips, update.region.y):
            yield y, _placed(strips, update.region.x)
        return
    # A line consists of chops, by their first column: each is a strip of one widget, or `None` if it has not changed.
    # A span is a changed range of columns of a line.
    for y, first, last in update.spans:
        chops = zip(update.chop_ends[y], update.chops[y].items(), strict=False)
        yield y, [(x, strip) for end, (x, strip) in chops if strip is not None and x < last and end > first]


def _placed(strips: Iterable[Strip], x: int) -> Iterator[tuple[int, Strip]]:
    """Yields the strips, which follow each other from column `x` on, with their columns."""
    for strip in strips:
        yield x, strip
        x += strip.cell_length


def _cells_of(strip: Strip, colors: ColorSystem) -> tuple[list[str], list[Pen]]:
    """Returns the text and the pen of each cell of `strip`. Spaces that look the same have the same pen."""
    texts: list[str] = []
    pens: list[Pen] = []
    for text, style, control in strip:
        if control or not text:
            continue
        cells, pen = _split_cells(text), _pen_of(style, colors)
        texts += cells
        if " " in text and (pen_of_space := _pen_of_space(pen)) is not pen:
            pens += [pen_of_space if cell == " " else pen for cell in cells]
        else:
            pens += [pen] * len(cells)
    return texts, pens


def _split_cells(text: str) -> Sequence[str]:
    """Returns the text of each cell of `text`.

    If a character is not one cell wide, the first cell has the whole text, and the others have `CONTINUATION`, because
    terminals differ in how they combine characters.
    """
    return text if text.isascii() else _split_wide_text(text)


@lru_cache(maxsize=1024)
def _split_wide_text(text: str) -> Sequence[str]:
    """Returns the text of each cell of a text that is not ASCII."""
    width = cell_len(text)
    if not width:
        return ()
    if width == len(text) and all(cell_len(character) == 1 for character in text):
        return text
    return (text, *[CONTINUATION] * (width - 1))


def _changed_runs(line: TerminalLine, x: int, texts: Sequence[str], pens: Sequence[Pen]) -> list[tuple[int, int]]:
    """Returns the runs of cells, as (start, end), that differ from what `line` shows from column `x` on.

    The cells have these texts and pens. Starts and ends are relative to `x`. A run includes gaps of at most `MAX_GAP`
    unchanged cells, if they need no other pen.
    """
    old_texts, old_pens = line.texts[x : x + len(texts)], line.pens[x : x + len(texts)]
    if old_texts == texts and old_pens == pens:
        return []
    changed = [
        column
        for column, (text, old_text, pen, old_pen) in enumerate(zip(texts, old_texts, pens, old_pens, strict=True))
        if text != old_text or pen is not old_pen
    ]
    runs: list[tuple[int, int]] = []
    start = end = changed[0]
    for column in changed:
        if column > end and (column - end > MAX_GAP or not _is_uniform(pens[end - 1 : column])):
            runs.append((start, end))
            start = column
        end = column + 1
    return _with_whole_texts([*runs, (start, end)], texts)


def _is_uniform(pens: Sequence[Pen]) -> bool:
    """Whether cells with these pens can be written with one pen: all have it, or are spaces that it draws alike."""
    pen = next((pen for pen in pens if _pen_of_space(pen) is not pen), pens[0])
    return all(other is pen or other is _pen_of_space(pen) for other in pens)


def _with_whole_texts(runs: Iterable[tuple[int, int]], texts: Sequence[str]) -> list[tuple[int, int]]:
    """Returns the runs, extended so that each text that is wider than one cell is written whole or not at all."""
    whole: list[tuple[int, int]] = []
    for start, end in runs:
        while texts[start] == CONTINUATION:
            start -= 1
        while end < len(texts) and texts[end] == CONTINUATION:
            end += 1
        if whole and start < whole[-1][1]:
            whole[-1] = (whole[-1][0], max(end, whole[-1][1]))
        else:
            whole.append((start, end))
    return whole
