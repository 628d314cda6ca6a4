"""Maps the lines of texts to rows of a pane: those of one text with folded regions, and those of a diff of two texts.

In a diff, long runs of equal lines are folded. Does not import Textual.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Literal, NamedTuple

from buddy.app.reports.text.unified import CONTEXT, Hunk

# ---- folds of a text -------------------------------------------------------------------------------------------------


class TextFold(NamedTuple):
    """A folded region: its line `first` stays visible, the lines after it up to `last` are hidden."""

    first: int
    last: int


class Folds:
    """Maps the lines of a text, `lines` in number, to rows: the lines in `window` (first, last) that no fold hides.

    `visible_folds` are the folds whose first line has a row, in order.
    """

    def __init__(self, lines: int, folds: Iterable[TextFold] = (), window: tuple[int, int] | None = None) -> None:
        self.start, last = window if window is not None else (0, lines - 1)
        in_window = [fold for fold in folds if self.start <= fold.first < min(fold.last, last)]
        self.visible_folds = _outermost(in_window)
        hidden = [min(fold.last, last) - fold.first for fold in self.visible_folds]
        # The number of lines that are hidden before each fold; the last entry is the total.
        self._hidden_before = [0, *accumulate(hidden)]
        # The row of the first line of each fold.
        pairs = zip(self.visible_folds, self._hidden_before, strict=False)
        self._rows = [fold.first - self.start - hidden_before for fold, hidden_before in pairs]
        self._firsts = [fold.first for fold in self.visible_folds]
        self.count = max(0, last - self.start + 1 - self._hidden_before[-1])

    def line_of(self, row: int) -> int:
        """Returns the line at `row`."""
        return self.start + row + self._hidden_before[bisect_left(self._rows, row)]

    def row_of(self, line: int) -> int:
        """Returns the row of `line`, or of the fold that hides it; the nearest row for a line outside the window."""
        index = bisect_right(self._firsts, line) - 1
        if index >= 0 and line <= self.visible_folds[index].last:
            return self._rows[index]
        row = line - self.start - self._hidden_before[index + 1]
        return max(0, min(row, self.count - 1))

    def hides(self, line: int) -> bool:
        """Whether `line` has no row."""
        return not self.count or self.line_of(self.row_of(line)) != line

    def hidden_count(self, line: int) -> int:
        """Returns the number of lines that are folded under `line`; 0 if it is not the first line of a fold."""
        index = bisect_left(self._firsts, line)
        if index == len(self._firsts) or self._firsts[index] != line:
            return 0
        return self._hidden_before[index + 1] - self._hidden_before[index]


def _outermost(folds: Iterable[TextFold]) -> list[TextFold]:
    """Returns the outermost folds, in order."""
    outermost: list[TextFold] = []
    for fold in sorted(set(folds), key=lambda fold: (fold.first, -fold.last)):
        if not outermost or fold.first > outermost[-1].last:
            outermost.append(fold)
    return outermost


def unfold_line(folds: Iterable[TextFold], line: int) -> set[TextFold]:
    """Returns the folds without those that hide `line`."""
    return {fold for fold in folds if not fold.first < line <= fold.last}


# ---- rows of a diff --------------------------------------------------------------------------------------------------


class HiddenLines(NamedTuple):
    """The numbers of lines that are folded under a line: lines of the new text, added lines, and removed lines."""

    lines: int
    added: int
    removed: int


NO_LINES = HiddenLines(0, 0, 0)


class DiffPart(NamedTuple):
    """Consecutive lines of both texts, `lines`, that are equal or changed.

    `hidden` are the lines that are folded under the part's last line of the new text, `None` without a fold.
    """

    is_equal: bool
    lines: Hunk
    hidden: HiddenLines | None = None

    def split(self, line: int) -> tuple[DiffPart, DiffPart]:
        """Returns the parts before a line of the new text, and from that line on."""
        before, removed, after, added = self.lines
        first_added = line - after
        first_removed = min(removed, first_added)
        return (
            DiffPart(self.is_equal, (before, first_removed, after, first_added)),
            DiffPart(self.is_equal, (before + first_removed, removed - first_removed, line, added - first_added)),
        )


class DiffSection(NamedTuple):
    """The hunks between two positions. A position is a line of the old text and a line of the new text."""

    hunks: list[Hunk]
    begin: tuple[int, int]
    end: tuple[int, int]

    def parts(self) -> list[DiffPart]:
        """Returns the equal and the changed parts in order, without empty ones."""
        parts: list[DiffPart] = []
        old_line, new_line = self.begin
        for before, removed, after, added in (*self.hunks, (self.end[0], 0, self.end[1], 0)):
            equal_count = after - new_line
            if equal_count:
                parts.append(DiffPart(True, (old_line, equal_count, new_line, equal_count)))
            if removed or added:
                parts.append(DiffPart(False, (before, removed, after, added)))
            old_line, new_line = before + removed, after + added
        return parts

    def between(self, first: int, end: int) -> DiffSection:
        """Returns the section of lines `first` to `end - 1` of the new text, without lines removed at its ends."""
        hunks: list[Hunk] = []
        # The position after the last hunk that ends before `first`. Between hunks, lines correspond one to one.
        old_line, new_line = 0, 0
        for before, removed, after, added in self.hunks:
            if after + added <= first:
                old_line, new_line = before + removed, after + added
            elif after < end:
                start = max(after, first)
                hunks.append((before, removed, start, min(after + added, end) - start))
        if not hunks:
            old_first = old_line + first - new_line
            return DiffSection([], (old_first, first), (old_first + end - first, end))
        first_before, _, first_after, _ = hunks[0]
        before, removed, after, added = hunks[-1]
        old_first, old_end = first_before - (first_after - first), before + removed + end - (after + added)
        return DiffSection(hunks, (old_first, first), (old_end, end))


def _changed_folds(folds: Iterable[TextFold], hunks: Sequence[Hunk]) -> list[TextFold]:
    """Returns the outermost folds with changes after their first line, in order."""
    changed: list[TextFold] = []
    # The last line of the new text that each hunk touches; a pure removal touches the next line.
    last_lines = [after + max(added, 1) - 1 for _, _, after, added in hunks]
    for fold in sorted(set(folds), key=lambda fold: (fold.first, -fold.last)):
        index = bisect_right(last_lines, fold.first)
        has_changes = index < len(hunks) and hunks[index][2] <= fold.last
        is_outermost = not changed or fold.first > changed[-1].last
        if has_changes and is_outermost:
            changed.append(fold)
    return changed


def _hide_folded_parts(parts: Iterable[DiffPart], folds: Sequence[TextFold]) -> list[DiffPart]:
    """Returns the parts without the lines that `folds` hide: all lines of a fold except the first one.

    The part with the first line of a fold gets the numbers of its hidden lines.
    """
    visible: list[DiffPart] = []
    # The parts that are still to be processed, the next one last.
    remaining = list(reversed(list(parts)))
    fold_index = 0
    while remaining:
        part = remaining.pop()
        _, _, after, added = part.lines
        while fold_index < len(folds) and folds[fold_index].last < after:
            fold_index += 1
        fold = folds[fold_index] if fold_index < len(folds) else None
        if fold is None or fold.first >= after + max(added, 1):
            visible.append(part)
            continue
        # Split the part so that a piece has only the fold's first line, only hidden lines or only lines outside.
        split_lines = [line for line in (fold.first, fold.first + 1, fold.last + 1) if after < line < after + added]
        if split_lines:
            remaining += reversed(part.split(split_lines[0]))
        elif fold.first < after and visible:
            visible[-1] = _hide_under(visible[-1], part)
        else:
            visible.append(part._replace(hidden=NO_LINES) if after == fold.first and added else part)
    return visible


def _hide_under(head: DiffPart, part: DiffPart) -> DiffPart:
    """Returns `head` with the lines of `part` added to its hidden lines."""
    lines, added, removed = head.hidden or NO_LINES
    _, old_count, _, new_count = part.lines
    if part.is_equal:
        return head._replace(hidden=HiddenLines(lines + new_count, added, removed))
    return head._replace(hidden=HiddenLines(lines + new_count, added + new_count, removed + old_count))


# The minimum number of equal lines that are folded.
MIN_FOLDED_LINES = 4

DiffRowKind = Literal["same", "fold", "removed", "added", "changed"]
DiffLayout = Literal["unified", "side-by-side"]


class DiffRow(NamedTuple):
    """A row of a diff, with the numbers of its line in the old text (`before`) and in the new text (`after`), or -1.

    A row of kind `changed` has a line of both texts next to each other. A row of kind `fold` stands for `folded` equal
    lines, of which `before` and `after` are the first ones. Under a row of another kind, `folded` lines of the new text
    are folded, of which `added` were added; `removed` lines were removed there. `partner` is the corresponding line of
    the other text for a removed or added line, -1 for none.
    """

    kind: DiffRowKind
    before: int
    after: int
    folded: int = 0
    partner: int = -1
    added: int = 0
    removed: int = 0


class _Run(NamedTuple):
    """Consecutive rows of one kind, with the lines of a hunk.

    Equal lines may be several runs, with the same `origin`: the first of these lines in the new text. It is -1 for a
    changed run. `hidden` are the lines that are folded under the last line of the run.
    """

    kind: DiffRowKind
    before: int
    removed: int
    after: int
    added: int
    origin: int = -1
    hidden: HiddenLines | None = None

    @property
    def height(self) -> int:
        """The number of rows."""
        heights = {"fold": 1, "removed": self.removed, "changed": max(self.removed, self.added)}
        return heights.get(self.kind, self.added)


class DiffRows:
    """The rows of a diff in a layout.

    `hunks` and `aliases` are those of `buddy.compiler.protocol.Compared`.
    """

    def __init__(
        self, hunks: Sequence[Hunk], before_lines: int, after_lines: int, layout: DiffLayout = "unified",
        aliases: tuple[tuple[str, str], ...] = (),
    ) -> None:  # fmt: skip
        self.aliases = aliases
        self._whole = DiffSection(list(hunks), (0, 0), (before_lines, after_lines))
        self._section = self._whole
        self._functions: list[TextFold] = []
        self.layout: DiffLayout = layout
        # The origins of the equal lines that are not folded.
        self._unfolded: set[int] = set()
        self._update_runs()

    @property
    def hunks(self) -> list[Hunk]:
        """The changes in the shown part."""
        return self._section.hunks

    @property
    def count(self) -> int:
        return self._starts[-1]

    def arrange(self, layout: DiffLayout) -> None:
        """Changes the layout. Unfolded runs stay unfolded."""
        if layout != self.layout:
            self.layout = layout
            self._update_runs()

    def row(self, number: int) -> DiffRow:
        """Returns row `number`, starting at 0."""
        index = bisect_right(self._starts, number) - 1
        run, offset = self._runs[index], number - self._starts[index]
        if run.kind == "fold":
            return DiffRow("fold", run.before, run.after, run.added)
        hidden = run.hidden if run.hidden is not None and offset == run.added - 1 else NO_LINES
        before = run.before + offset if offset < run.removed else -1
        after = run.after + offset if offset < run.added else -1
        if run.kind == "removed":
            return DiffRow("removed", before, -1, partner=after)
        if run.kind == "added":
            return DiffRow("added", -1, after, hidden.lines, before, hidden.added, hidden.removed)
        return DiffRow(run.kind, before, after, hidden.lines, -1, hidden.added, hidden.removed)

    def row_of(self, line: int) -> int:
        """Returns the row of a line of the new text, of the fold that hides it, or of the nearest shown line."""
        (_, first), (_, end) = self._section.begin, self._section.end
        line = self._head_of(max(first, min(line, end - 1)))
        runs = self._runs
        index = next((index for index in self._runs_from(line) if line < runs[index].after + runs[index].added), None)
        if index is None:
            return max(0, self.count - 1)
        run = self._runs[index]
        return self._starts[index] + (0 if run.kind == "fold" else line - run.after)

    def line_of(self, number: int) -> int:
        """Returns the line of the new text at row `number`; for a removed line, the line after it."""
        if not self.count:
            return 0
        row = self.row(min(number, self.count - 1))
        if row.after >= 0:
            return row.after
        return self._runs[bisect_right(self._starts, number) - 1].after

    # ---- shown part ----------------------------------------------------------------------------------------------

    @property
    def is_narrowed(self) -> bool:
        """Whether only a part of the diff is shown."""
        return self._section is not self._whole

    def narrow(self, window: tuple[int, int] | None, functions: Iterable[TextFold] = ()) -> None:
        """Shows only the lines of `window`, the first and last line of the new text to show; everything for `None`.

        Those of `functions` that have changes are folded to their first line.
        """
        self._section = self._whole if window is None else self._whole.between(window[0], window[1] + 1)
        self._functions = _changed_folds(functions, self._section.hunks)
        self._update_runs()

    def widen(self) -> None:
        """Shows everything; folded functions stay folded."""
        self._section = self._whole
        self._update_runs()

    def is_shown(self, line: int) -> bool:
        """Whether a line of the new text is in the shown part."""
        return self._section.begin[1] <= line < max(self._section.end[1], 1)

    # ---- folds ---------------------------------------------------------------------------------------------------

    def toggle(self, number: int) -> bool:
        """Unfolds the fold at row `number`, or folds the equal lines around the row. Returns false without either."""
        run, row = self._runs[bisect_right(self._starts, number) - 1], self.row(number)
        if run.kind == "fold":
            self._unfolded.add(run.origin)
        elif row.folded:
            self._functions = [fold for fold in self._functions if fold.first != row.after]
        elif run.kind == "same" and run.origin in self._unfolded:
            self._unfolded.discard(run.origin)
        else:
            return False
        self._update_runs()
        return True

    def toggle_all(self) -> None:
        """Unfolds all equal lines, or folds them again if none are folded."""
        folds = [run.origin for run in self._runs if run.kind == "fold"]
        self._unfolded = self._unfolded.union(folds) if folds else set()
        self._update_runs()

    def reveal(self, line: int) -> int:
        """Returns the row of a line of the new text. Unfolds the line if necessary."""
        if self._head_of(line) != line:
            self._functions = [fold for fold in self._functions if not fold.first < line <= fold.last]
            self._update_runs()
        row = self.row_of(line)
        if self.row(row).kind == "fold":
            self.toggle(row)
            row = self.row_of(line)
        return row

    def _head_of(self, line: int) -> int:
        """Returns `line`, or the first line of the folded function that contains it."""
        index = bisect_right(self._functions, (line,)) - 1
        fold = self._functions[index] if index >= 0 else None
        return fold.first if fold is not None and fold.first < line <= fold.last else line

    # ---- changes -------------------------------------------------------------------------------------------------

    @property
    def changes(self) -> list[int]:
        """The first row of each change."""
        return self._changes

    def change_after(self, number: int) -> int | None:
        """Returns the row of the first change below row `number`, wrapping around at the end."""
        if not self._changes:
            return None
        return self._changes[bisect_right(self._changes, number) % len(self._changes)]

    def change_before(self, number: int) -> int | None:
        """Returns the row of the last change above row `number`, wrapping around at the start."""
        return self._changes[bisect_right(self._changes, number - 1) - 1] if self._changes else None

    # ---- runs ----------------------------------------------------------------------------------------------------

    def _update_runs(self) -> None:
        """Makes the runs of the shown part again, with the first row of each run and of each change."""
        self._runs = [run for run in self._make_runs() if run.height]
        self._starts = [0, *accumulate(run.height for run in self._runs)]
        self._changes = []
        for start, run, previous in zip(self._starts, self._runs, [None, *self._runs], strict=False):
            # Added lines after removed lines belong to the same change.
            starts_change = previous is None or previous.kind != "removed"
            if run.kind in ("removed", "changed") or (run.kind == "added" and starts_change):
                self._changes.append(start)

    def _make_runs(self) -> Iterator[_Run]:
        """Yields the runs of rows of the shown part. Some may be empty."""
        parts = _hide_folded_parts(self._section.parts(), self._functions)
        for index, part in enumerate(parts):
            if part.is_equal:
                # Show no context next to a folded function.
                head = CONTEXT if index and parts[index - 1].hidden is None else 0
                tail = CONTEXT if index + 1 < len(parts) and parts[index + 1].hidden is None else 0
                yield from self._equal_runs(part, head, tail)
            elif self.layout == "side-by-side":
                yield _Run("changed", *part.lines, hidden=part.hidden)
            else:
                yield _Run("removed", *part.lines)
                yield _Run("added", *part.lines, hidden=part.hidden)

    def _equal_runs(self, part: DiffPart, head: int, tail: int) -> Iterator[_Run]:
        """Yields the runs of equal lines: the first `head`, a fold, the last `tail`; all lines if it would be short."""
        before, count, after, _ = part.lines
        folded = count - head - tail
        if folded < MIN_FOLDED_LINES or after in self._unfolded:
            yield _Run("same", before, count, after, count, after, part.hidden)
            return
        yield _Run("same", before, head, after, head, after)
        yield _Run("fold", before + head, folded, after + head, folded, after)
        end = count - tail
        yield _Run("same", before + end, tail, after + end, tail, after)

    def _runs_from(self, line: int) -> range:
        """Returns the indices of the runs from the first one that ends after `line` of the new text."""
        low, high = 0, len(self._runs)
        while low < high:
            middle = (low + high) // 2
            run = self._runs[middle]
            if run.after + (run.added if run.kind != "removed" else 0) <= line:
                low = middle + 1
            else:
                high = middle
        return range(low, len(self._runs))
