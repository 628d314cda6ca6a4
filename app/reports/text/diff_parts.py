"""Splits the difference of two texts into equal and changed parts, for a range of lines or with folded functions.

A hunk is `(before, removed, after, added)`: `removed` lines from line `before` of one text became `added` lines from
line `after` of the other. No Textual.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import NamedTuple

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
