"""The results of a search over all stages: a list of stages with counts, which unfold to lines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, NamedTuple

from textual.binding import Binding, BindingType

from buddy.app.reports import formatting
from buddy.app.reports.text.search_hits import StageHits, stage_note
from buddy.app.screens.modal import ListScreen
from buddy.app.session.stages import StagePosition
from buddy.app.widgets.cursor_view import CursorView
from buddy.app.widgets.look import Cells, align_both_ends

# Up to this many stages are unfolded at first.
FEW = 2


class _Row(NamedTuple):
    """A stage (`hit` is -1), or one of its lines."""

    found: int
    hit: int = -1


class ResultList(CursorView):
    """Stages, and the lines of unfolded stages."""

    def __init__(self, listed: Sequence[StageHits]) -> None:
        super().__init__()
        self._listed = listed
        self._unfolded = set(range(len(listed))) if len(listed) <= FEW else set()
        self._rows: list[_Row] = []
        self._update_rows()

    def _update_rows(self) -> None:
        self._rows = []
        for place, found in enumerate(self._listed):
            self._rows.append(_Row(place))
            if place in self._unfolded:
                self._rows += [_Row(place, hit) for hit in range(len(found.hits.excerpts))]

    @property
    def row_count(self) -> int:
        return len(self._rows)

    @property
    def place(self) -> StagePosition | None:
        """The line under the cursor; for a stage, its first line."""
        if not self._rows:
            return None
        row = self._rows[self.cursor]
        found = self._listed[row.found]
        return StagePosition(found.row.key, found.hits.lines[max(row.hit, 0)])

    def row_cells(self, row: int, width: int) -> Cells:
        entry = self._rows[row]
        found = self._listed[entry.found]
        marker = (">" if row == self.cursor else " ", "key")
        if entry.hit < 0:
            sign = "-" if entry.found in self._unfolded else "+"
            name: Cells = [marker, (f"{sign} {found.row.stage.name}", "title"), (f"  {found.row.stage.phase}", "dim")]
            return align_both_ends(name, [(stage_note(found, entry.found == 0) + " ", "accent")], width)
        number, text = found.hits.lines[entry.hit] + 1, found.hits.excerpts[entry.hit]
        room = width - 10
        return [marker, (f"  {number:>6} ", "number"), (formatting.clip(text, room, self.glyphs), "text")]

    def toggle(self) -> None:
        """Fold or unfold the stage under the cursor."""
        if self._rows:
            place = self._rows[self.cursor].found
            self._unfolded ^= {place}
            self._update_rows()
            self.cursor = next(number for number, row in enumerate(self._rows) if row.found == place)
            self.rows_changed()

    def toggle_all(self) -> None:
        """Unfold all stages, or fold all if all are unfolded."""
        place = self._rows[self.cursor].found if self._rows else 0
        everything = set(range(len(self._listed)))
        self._unfolded = set() if self._unfolded == everything else everything
        self._update_rows()
        self.cursor = next((number for number, row in enumerate(self._rows) if row.found == place), 0)
        self.rows_changed()

    def next_stage(self) -> None:
        self._to_stage(range(self.cursor + 1, len(self._rows)))

    def previous_stage(self) -> None:
        self._to_stage(range(self.cursor - 1, -1, -1))

    def _to_stage(self, rows: range) -> None:
        self.move_to(next((row for row in rows if self._rows[row].hit < 0), self.cursor))


class ResultsScreen(ListScreen[StagePosition | None]):
    """Returns the chosen line, or `None`."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "choose", show=False, priority=True),
        Binding("space,z,right,left", "move('toggle')", show=False),
        Binding("Z", "move('toggle_all')", show=False),
        Binding("right_curly_bracket,J", "move('next_stage')", show=False),
        Binding("left_curly_bracket,K", "move('previous_stage')", show=False),
    ]

    def __init__(self, title: str, story: str, listed: Sequence[StageHits]) -> None:
        self._list = ResultList(listed)
        super().__init__(
            f"{title}: {story}", "enter goes to the line, space unfolds, Z all, { } stages, q closes", self._list
        )

    def full_height(self) -> int:
        return max(self._list.row_count, 4) + 2

    def action_choose(self) -> None:
        self.dismiss(self._list.place)

    def on_cursor_view_opened(self) -> None:
        self.action_choose()
