"""The rows of a diff: equal and changed parts of two texts, with long equal parts folded. No Textual.

A hunk is `(before, removed, after, added)`: `removed` lines from line `before` of one text became `added` lines from
line `after` of the other.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Literal, NamedTuple

from buddy.app.reports.text.folds import TextFold

Hunk = tuple[int, int, int, int]


class HiddenLines(NamedTuple):
    """The lines folded under a line: their number, and how many of them were added and removed."""

    lines: int
    added: int
    removed: int


NOTHING = HiddenLines(0, 0, 0)


class DiffPart(NamedTuple):
    """Lines of both texts that are equal or changed; hidden lines are folded under the last line of the new text."""

    equal: bool
    place: Hunk
    hidden: HiddenLines | None = None

    def cut(self, line: int) -> tuple[DiffPart, DiffPart]:
        """Split the part at a line of the new text."""
        before, removed, after, added = self.place
        mine = line - after
        gone = min(removed, mine)
        first = (before, gone, after, mine)
        return DiffPart(self.equal, first), DiffPart(self.equal, (before + gone, removed - gone, line, added - mine))


class DiffSection(NamedTuple):
    """The hunks between two positions, each a line of the old text and a line of the new text."""

    hunks: list[Hunk]
    begin: tuple[int, int]
    end: tuple[int, int]

    def parts(self) -> list[DiffPart]:
        """All parts in order, without empty ones."""
        found: list[DiffPart] = []
        before, after = self.begin
        for start, removed, place, added in (*self.hunks, (self.end[0], 0, self.end[1], 0)):
            found.append(DiffPart(True, (before, place - after, after, place - after)))
            found.append(DiffPart(False, (start, removed, place, added)))
            before, after = start + removed, place + added
        return [part for part in found if part.place[1] or part.place[3]]

    def between(self, first: int, end: int) -> DiffSection:
        """The section of lines `first` to `end` of the new text, without lines removed at its ends."""
        kept: list[Hunk] = []
        passed = (0, 0)
        for start, removed, place, added in self.hunks:
            if place + added <= first:
                passed = (start + removed, place + added)
            elif place < end:
                last = min(place + added, end)
                kept.append((start, removed, max(place, first), last - max(place, first)))
        begin = (passed[0] + first - passed[1], first)
        if kept and kept[0][2] == first:
            begin = (kept[0][0], first)
        elif kept:
            begin = (kept[0][0] - (kept[0][2] - first), first)
        if kept:
            start, removed, place, added = kept[-1]
            return DiffSection(kept, begin, (start + removed + end - place - added, end))
        return DiffSection([], begin, (begin[0] + end - first, end))


def changed_folds(folds: Iterable[TextFold], hunks: Sequence[Hunk]) -> list[TextFold]:
    """The outermost folds with changes after their first line, in order."""
    found: list[TextFold] = []
    # The last line of the new text that each hunk touches; a pure removal touches the next line.
    reach = [after + max(added, 1) - 1 for _, _, after, added in hunks]
    for fold in sorted(set(folds), key=lambda fold: (fold.first, -fold.last)):
        place = bisect_right(reach, fold.first)
        if place < len(hunks) and hunks[place][2] <= fold.last and not (found and fold.first <= found[-1].last):
            found.append(fold)
    return found


def hide_folded_parts(parts: Iterable[DiffPart], folds: Sequence[TextFold]) -> list[DiffPart]:
    """The parts with folds reduced to their first lines; the part of that line has the hidden counts."""
    found: list[DiffPart] = []
    waiting = list(reversed(list(parts)))
    place = 0
    while waiting:
        part = waiting.pop()
        after, added = part.place[2:]
        while place < len(folds) and folds[place].last < after:
            place += 1
        fold = folds[place] if place < len(folds) else None
        if fold is None or fold.first >= after + max(added, 1):
            found.append(part)
            continue
        cuts = [line for line in (fold.first, fold.first + 1, fold.last + 1) if after < line < after + added]
        if cuts:
            waiting += reversed(part.cut(cuts[0]))
        elif fold.first < after and found:
            found[-1] = _hiding(found[-1], part)
        else:
            head = part._replace(hidden=NOTHING) if after == fold.first and added else part
            found.append(head)
    return found


def _hiding(head: DiffPart, part: DiffPart) -> DiffPart:
    """`head` with one more part hidden under it."""
    lines, added, removed = head.hidden or NOTHING
    _, gone, _, came = part.place
    changed = (0, 0) if part.equal else (came, gone)
    return head._replace(hidden=HiddenLines(lines + came, added + changed[0], removed + changed[1]))


# Equal lines shown above and below a change.
CONTEXT = 3
# Minimum number of lines in a fold.
LEAST_FOLDED = 4

Kind = Literal["same", "fold", "removed", "added", "changed"]
Layout = Literal["unified", "beside"]


class DiffRow(NamedTuple):
    """A row: its line in the old text and in the new text, -1 for none.

    A row of kind `changed` has both sides next to each other. A row of kind `fold` represents `folded` equal lines from
    there on; for other kinds, `folded` lines are folded under the row, of which `added` and `removed` changed.
    `partner` is the corresponding line of the other text for a removed or added line, -1 for none.
    """

    kind: Kind
    before: int
    after: int
    folded: int = 0
    partner: int = -1
    added: int = 0
    removed: int = 0


class _Run(NamedTuple):
    """Rows of one kind, for `removed` lines from `before` on and `added` lines from `after` on.

    `origin` is the line of the new text where its run of equal lines starts, `hidden` are the lines folded under it.
    """

    kind: Kind
    before: int
    removed: int
    after: int
    added: int
    origin: int = -1
    hidden: HiddenLines | None = None

    @property
    def height(self) -> int:
        heights = {"fold": 1, "removed": self.removed, "changed": max(self.removed, self.added)}
        return heights.get(self.kind, self.added)


class DiffRows:
    """The rows of one difference in one layout.

    `hunks` and `aliases` are those of `buddy.compiler.protocol.Compared`.
    """

    def __init__(
        self, hunks: Sequence[Hunk], before_lines: int, after_lines: int, layout: Layout = "unified",
        aliases: tuple[tuple[str, str], ...] = (),
    ) -> None:  # fmt: skip
        self.aliases = aliases
        self._whole = DiffSection(list(hunks), (0, 0), (before_lines, after_lines))
        self._section = self._whole
        self._functions: list[TextFold] = []
        self.layout: Layout = layout
        self._open: set[int] = set()
        self._measure()

    @property
    def hunks(self) -> list[Hunk]:
        """The changes in the shown part."""
        return self._section.hunks

    @property
    def count(self) -> int:
        return self._starts[-1]

    def arrange(self, layout: Layout) -> None:
        """Change the layout. Unfolded runs stay unfolded."""
        if layout != self.layout:
            self.layout = layout
            self._measure()

    def row(self, number: int) -> DiffRow:
        """Row `number`, starting at 0."""
        place = bisect_right(self._starts, number) - 1
        run, offset = self._runs[place], number - self._starts[place]
        if run.kind == "fold":
            return DiffRow("fold", run.before, run.after, run.added)
        hidden = run.hidden if run.hidden is not None and offset == run.added - 1 else NOTHING
        before = run.before + offset if offset < run.removed else -1
        after = run.after + offset if offset < run.added else -1
        if run.kind == "removed":
            return DiffRow("removed", before, -1, partner=after)
        if run.kind == "added":
            return DiffRow("added", -1, after, hidden.lines, before, hidden.added, hidden.removed)
        return DiffRow(run.kind, before, after, hidden.lines, -1, hidden.added, hidden.removed)

    def row_of(self, line: int) -> int:
        """The row of a line of the new text, or of the fold that hides it; the nearest row for a line not shown."""
        (_, first), (_, end) = self._section.begin, self._section.end
        line = self._head_of(max(first, min(line, end - 1)))
        place = next((k for k in self._runs_from(line) if line < self._runs[k].after + self._runs[k].added), None)
        if place is None:
            return max(0, self.count - 1)
        run = self._runs[place]
        return self._starts[place] + (0 if run.kind == "fold" else line - run.after)

    def line_of(self, number: int) -> int:
        """The line of the new text at row `number`; for a removed line, the next one."""
        if not self.count:
            return 0
        row = self.row(min(number, self.count - 1))
        if row.after >= 0:
            return row.after
        return self._runs[bisect_right(self._starts, number) - 1].after

    # ---- visible part --------------------------------------------------------------------------------------------

    @property
    def narrowed(self) -> bool:
        """Whether only a part of the diff is shown."""
        return self._section is not self._whole

    def narrow(self, window: tuple[int, int] | None, functions: Iterable[TextFold] = ()) -> None:
        """Show only the lines from the first to the last of `window` (lines of the new text); everything for `None`.

        Changed functions of `functions` are reduced to their first line.
        """
        self._section = self._whole if window is None else self._whole.between(window[0], window[1] + 1)
        self._functions = changed_folds(functions, self._section.hunks)
        self._measure()

    def widen(self) -> None:
        """Show everything; folded functions stay folded."""
        self._section = self._whole
        self._measure()

    def holds(self, line: int) -> bool:
        """Whether a line of the new text is in the shown part."""
        return self._section.begin[1] <= line < max(self._section.end[1], 1)

    # ---- folds ---------------------------------------------------------------------------------------------------

    def toggle(self, number: int) -> bool:
        """Unfold the fold at row `number`, or fold the run that contains it. Returns whether there was one."""
        place = bisect_right(self._starts, number) - 1
        run, row = self._runs[place], self.row(number)
        if run.kind == "fold":
            self._open.add(run.origin)
        elif row.folded:
            self._functions = [fold for fold in self._functions if fold.first != row.after]
        elif run.kind == "same" and run.origin in self._open:
            self._open.discard(run.origin)
        else:
            return False
        self._measure()
        return True

    def toggle_all(self) -> None:
        """Unfold everything, or fold everything again if nothing is folded."""
        folds = [run.origin for run in self._runs if run.kind == "fold"]
        self._open = self._open.union(folds) if folds else set()
        self._measure()

    def reveal(self, line: int) -> int:
        """The row of a line of the new text. Unfolds the line if necessary."""
        if self._head_of(line) != line:
            self._functions = [fold for fold in self._functions if not fold.first < line <= fold.last]
            self._measure()
        row = self.row_of(line)
        if self.row(row).kind == "fold":
            self.toggle(row)
            row = self.row_of(line)
        return row

    def _head_of(self, line: int) -> int:
        """`line`, or the first line of the folded function that contains it."""
        place = bisect_right(self._functions, (line,)) - 1
        found = self._functions[place] if place >= 0 else None
        return found.first if found is not None and found.first < line <= found.last else line

    # ---- changes -------------------------------------------------------------------------------------------------

    @property
    def changes(self) -> list[int]:
        """The first row of each change."""
        return self._changes

    def change_after(self, number: int) -> int | None:
        """The row of the first change below row `number`, wrapping around at the end."""
        if not self._changes:
            return None
        return self._changes[bisect_right(self._changes, number) % len(self._changes)]

    def change_before(self, number: int) -> int | None:
        """The row of the last change above row `number`, wrapping around at the start."""
        return self._changes[bisect_right(self._changes, number - 1) - 1] if self._changes else None

    # ---- runs ----------------------------------------------------------------------------------------------------

    def _measure(self) -> None:
        self._runs = [run for run in self._make_runs() if run.height]
        self._starts = [0, *accumulate(run.height for run in self._runs)]
        self._changes = []
        for start, run, before in zip(self._starts, self._runs, [None, *self._runs], strict=False):
            alone = before is None or before.kind != "removed"
            if run.kind in ("removed", "changed") or (run.kind == "added" and alone):
                self._changes.append(start)

    def _make_runs(self) -> Iterator[_Run]:
        parts = hide_folded_parts(self._section.parts(), self._functions)
        for k, part in enumerate(parts):
            if part.equal:
                # A folded function needs no context.
                head = CONTEXT if k and parts[k - 1].hidden is None else 0
                tail = CONTEXT if k + 1 < len(parts) and parts[k + 1].hidden is None else 0
                yield from self._equal_runs(part, head, tail)
            elif self.layout == "beside":
                yield _Run("changed", *part.place, hidden=part.hidden)
            else:
                yield _Run("removed", *part.place)
                yield _Run("added", *part.place, hidden=part.hidden)

    def _equal_runs(self, part: DiffPart, head: int, tail: int) -> Iterator[_Run]:
        """Equal lines with their middle folded, unless it is unfolded. `head` and `tail` are the context of changes."""
        before, count, after, _ = part.place
        folded = count - head - tail
        if folded < LEAST_FOLDED or after in self._open:
            yield _Run("same", before, count, after, count, after, part.hidden)
            return
        yield _Run("same", before, head, after, head, after)
        yield _Run("fold", before + head, folded, after + head, folded, after)
        end = count - tail
        yield _Run("same", before + end, tail, after + end, tail, after)

    def _runs_from(self, line: int) -> range:
        """The runs from the last one that starts above a line of the new text."""
        low, high = 0, len(self._runs)
        while low < high:
            middle = (low + high) // 2
            run = self._runs[middle]
            if run.after + (run.added if run.kind != "removed" else 0) <= line:
                low = middle + 1
            else:
                high = middle
        return range(low, len(self._runs))
