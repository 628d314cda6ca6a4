"""The rows of a diff: which lines of two texts stand where, with long equal runs folded. Knows no line's text."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Literal, NamedTuple

# Equal lines that stay on the screen above and below a change.
CONTEXT = 3
# A fold that hides fewer lines than this is not worth its own line.
LEAST_FOLDED = 4

Kind = Literal["same", "fold", "removed", "added", "changed"]
Layout = Literal["unified", "beside"]
Hunk = tuple[int, int, int, int]


class DiffRow(NamedTuple):
    """A row: its line in the text before and in the text after, -1 where it has none.

    A row of kind `changed` has both sides next to each other. A `fold` stands for `folded` equal lines from there on.
    `partner` is the line of the other text that is opposite a removed or an added line, -1 for none.
    """

    kind: Kind
    before: int
    after: int
    folded: int = 0
    partner: int = -1


class _Run(NamedTuple):
    """Rows of one kind, made of `removed` lines from `before` on and `added` lines from `after` on."""

    kind: Kind
    before: int
    removed: int
    after: int
    added: int

    @property
    def height(self) -> int:
        heights = {"fold": 1, "removed": self.removed, "changed": max(self.removed, self.added)}
        return heights.get(self.kind, self.added)


class DiffRows:
    """The rows of one difference in one layout; `hunks` are those of `buddy.compiler.protocol.Compared`."""

    def __init__(self, hunks: Sequence[Hunk], before_lines: int, after_lines: int, layout: Layout = "unified") -> None:
        self.hunks = list(hunks)
        self.layout: Layout = layout
        self._end = (before_lines, 0, after_lines, 0)
        self._open: set[int] = set()
        self._measure()

    @property
    def count(self) -> int:
        return self._starts[-1]

    def arrange(self, layout: Layout) -> None:
        """Use another layout; what is unfolded stays so."""
        if layout != self.layout:
            self.layout = layout
            self._measure()

    def row(self, number: int) -> DiffRow:
        """Row `number`, counted from 0."""
        place = bisect_right(self._starts, number) - 1
        run, offset = self._runs[place], number - self._starts[place]
        if run.kind == "fold":
            return DiffRow("fold", run.before, run.after, run.added)
        before = run.before + offset if offset < run.removed else -1
        after = run.after + offset if offset < run.added else -1
        if run.kind == "removed":
            return DiffRow("removed", before, -1, partner=after)
        if run.kind == "added":
            return DiffRow("added", -1, after, partner=before)
        return DiffRow(run.kind, before, after)

    def row_of(self, line: int) -> int:
        """The row of a line of the text after, or of the fold that hides it."""
        place = next(k for k in self._runs_from(line) if line < self._runs[k].after + self._runs[k].added)
        run = self._runs[place]
        return self._starts[place] + (0 if run.kind == "fold" else line - run.after)

    def line_of(self, number: int) -> int:
        """The line of the text after at row `number`, or the one that comes after what was removed there."""
        if not self.count:
            return 0
        row = self.row(min(number, self.count - 1))
        if row.after >= 0:
            return row.after
        return self._runs[bisect_right(self._starts, number) - 1].after

    # ---- folds ---------------------------------------------------------------------------------------------------

    def toggle(self, number: int) -> bool:
        """Unfold the fold at row `number`, or fold the run that the row is in; whether there was any."""
        place = bisect_right(self._starts, number) - 1
        run = self._runs[place]
        if run.kind == "fold":
            self._open.add(self._equal_run(run.after))
        elif run.kind == "same" and self._equal_run(run.after) in self._open:
            self._open.discard(self._equal_run(run.after))
        else:
            return False
        self._measure()
        return True

    def toggle_all(self) -> None:
        """Unfold everything, or, if nothing is folded, fold it again."""
        folds = [self._equal_run(run.after) for run in self._runs if run.kind == "fold"]
        self._open = self._open.union(folds) if folds else set()
        self._measure()

    def reveal(self, line: int) -> int:
        """The row of a line of the text after, unfolded if need be."""
        row = self.row_of(line)
        if self.row(row).kind == "fold":
            self.toggle(row)
            row = self.row_of(line)
        return row

    # ---- changes -------------------------------------------------------------------------------------------------

    @property
    def changes(self) -> list[int]:
        """The rows at which changes begin."""
        return self._changes

    def change_after(self, number: int) -> int | None:
        """The row of the first change below row `number`, going round at the end."""
        if not self._changes:
            return None
        return self._changes[bisect_right(self._changes, number) % len(self._changes)]

    def change_before(self, number: int) -> int | None:
        """The row of the last change above row `number`, going round at the start."""
        return self._changes[bisect_right(self._changes, number - 1) - 1] if self._changes else None

    # ---- runs ----------------------------------------------------------------------------------------------------

    def _measure(self) -> None:
        self._runs = [run for run in self._made() if run.height]
        self._starts = [0, *accumulate(run.height for run in self._runs)]
        self._changes = []
        for start, run, before in zip(self._starts, self._runs, [None, *self._runs], strict=False):
            alone = before is None or before.kind != "removed"
            if run.kind in ("removed", "changed") or (run.kind == "added" and alone):
                self._changes.append(start)

    def _made(self) -> Iterator[_Run]:
        before = after = 0
        for hunk in (*self.hunks, self._end):
            start, removed, place, added = hunk
            yield from self._equal(before, after, place - after, first=after == 0, last=hunk is self._end)
            if self.layout == "beside":
                yield _Run("changed", start, removed, place, added)
            else:
                yield _Run("removed", start, removed, place, added)
                yield _Run("added", start, removed, place, added)
            before, after = start + removed, place + added

    def _equal(self, before: int, after: int, count: int, *, first: bool, last: bool) -> Iterator[_Run]:
        """Equal lines between two changes, their middle folded unless it has been unfolded."""
        head = 0 if first and not (self.hunks and self.hunks[0][2] == 0) else CONTEXT
        tail = 0 if last else CONTEXT
        folded = count - head - tail
        if folded < LEAST_FOLDED or after in self._open:
            yield _Run("same", before, count, after, count)
            return
        yield _Run("same", before, head, after, head)
        yield _Run("fold", before + head, folded, after + head, folded)
        end = count - tail
        yield _Run("same", before + end, tail, after + end, tail)

    def _equal_run(self, line: int) -> int:
        """Where the equal run begins that a line of the text after is in."""
        ends = [place + added for _, _, place, added in self.hunks]
        found = bisect_right(ends, line)
        return ends[found - 1] if found else 0

    def _runs_from(self, line: int) -> range:
        """The runs among which a line of the text after is: from the last that begins above it."""
        low, high = 0, len(self._runs)
        while low < high:
            middle = (low + high) // 2
            run = self._runs[middle]
            if run.after + (run.added if run.kind != "removed" else 0) <= line:
                low = middle + 1
            else:
                high = middle
        return range(low, len(self._runs))
