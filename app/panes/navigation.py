"""Navigation in texts: search matches and the jump list. No Textual."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

from buddy.app.reports.text.patterns import NOTHING, Pattern
from buddy.app.session.stages import Key
from buddy.app.widgets.look import Cells


class Matches:
    """The lines that a search found, in order."""

    def __init__(self) -> None:
        self.pattern = NOTHING
        self.lines: list[int] = []
        self._set: set[int] = set()
        self._more = False

    def __contains__(self, row: int) -> bool:
        return row in self._set

    def clear(self, pattern: Pattern | None = None) -> None:
        """Clear the lines, and set the pattern if one is given."""
        self.pattern = self.pattern if pattern is None else pattern
        self.take((), False)

    def take(self, lines: Sequence[int], more: bool) -> None:
        self.lines, self._set, self._more = list(lines), set(lines), more

    def at_or_after(self, row: int) -> int | None:
        """The first match at or after `row`, wrapping around at the end."""
        if not self.lines:
            return None
        place = bisect_left(self.lines, row)
        return self.lines[place % len(self.lines)]

    def before(self, row: int) -> int | None:
        """The last match before `row`, wrapping around at the start."""
        return self.lines[bisect_left(self.lines, row) - 1] if self.lines else None

    def told(self, row: int) -> str:
        place = bisect_left(self.lines, row) + 1
        return f"match {place} of {len(self.lines)}{'+' if self._more else ''}"

    def highlighted(self, cells: Cells) -> Cells:
        """`cells` with matches in the role `match`."""
        text = "".join(part for part, _ in cells)
        inside = {k for found in self.pattern.compiled().finditer(text) for k in range(*found.span())}
        if not inside:
            return cells
        marked: Cells = []
        place = 0
        for part, role in cells:
            for character in part:
                wanted = "match" if place in inside else role
                if marked and marked[-1][1] == wanted:
                    marked[-1] = (marked[-1][0] + character, wanted)
                else:
                    marked.append((character, wanted))
                place += 1
        return marked


class StagePosition(NamedTuple):
    """A line of a stage."""

    key: Key
    line: int


class JumpHistory:
    """The jump list, with back and forward, within a stage and across stages."""

    def __init__(self) -> None:
        self._back: list[StagePosition] = []
        self._forward: list[StagePosition] = []

    def leave(self, place: StagePosition) -> None:
        self._back.append(place)
        self._forward.clear()

    def back(self, here: StagePosition) -> StagePosition | None:
        """The place before the last jump."""
        return self._move(self._back, self._forward, here)

    def forward(self, here: StagePosition) -> StagePosition | None:
        return self._move(self._forward, self._back, here)

    @staticmethod
    def _move(source: list[StagePosition], other: list[StagePosition], here: StagePosition) -> StagePosition | None:
        if not source:
            return None
        other.append(here)
        return source.pop()
