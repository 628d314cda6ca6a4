"""Lists of lines in several stages, from which the user chooses one: the matches of a search, and the lines of a node.

Also the history of a node: what passes report about it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, NamedTuple

from textual.binding import Binding, BindingType

from buddy.app.reports import formatting
from buddy.app.reports.nodes import NodeRemark, remark_text
from buddy.app.reports.text.search_hits import StageHits, stage_note
from buddy.app.screens.modal import ListScreen, TableScreen
from buddy.app.session.stages import StageKey, StagePosition, StageRow
from buddy.app.widgets.cursor_view import CursorView
from buddy.app.widgets.look import Cell, Cells, align_both_ends
from buddy.app.widgets.table import Column
from buddy.compiler.protocol import NodeTrace

# ---- the results of a search -----------------------------------------------------------------------------------------


# If at most this many stages have matches, they are unfolded at first.
MAX_UNFOLDED_STAGES = 2
# The box does not shrink below this number of rows when stages are folded.
_MIN_ROWS = 4


class _Row(NamedTuple):
    """A row of the list: the index of a stage, and the index of one of its matches, -1 for the stage itself."""

    stage_index: int
    hit_index: int = -1


class SearchResultList(CursorView):
    """The stages with matches, and below each unfolded stage its lines with excerpts: the first ones with matches."""

    def __init__(self, stages: Sequence[StageHits]) -> None:
        super().__init__()
        self._stages = stages
        # The indices of the unfolded stages.
        self._unfolded = set(range(len(stages))) if len(stages) <= MAX_UNFOLDED_STAGES else set()
        self._rows: list[_Row] = []
        self._update_rows()

    def _update_rows(self) -> None:
        self._rows = []
        for index, stage_hits in enumerate(self._stages):
            self._rows.append(_Row(index))
            if index in self._unfolded:
                self._rows += [_Row(index, hit) for hit in range(len(stage_hits.hits.excerpts))]

    @property
    def row_count(self) -> int:
        return len(self._rows)

    @property
    def position(self) -> StagePosition | None:
        """The line under the cursor; on a stage, its first line with a match. `None` without rows."""
        if not self._rows:
            return None
        row = self._rows[self.cursor]
        stage_hits = self._stages[row.stage_index]
        return StagePosition(stage_hits.row.key, stage_hits.hits.lines[max(row.hit_index, 0)])

    def row_cells(self, row: int, width: int) -> Cells:
        stage_index, hit_index = self._rows[row]
        stage_hits = self._stages[stage_index]
        marker = (">" if row == self.cursor else " ", "key")
        if hit_index < 0:
            stage = stage_hits.row.stage
            sign = "-" if stage_index in self._unfolded else "+"
            name: Cells = [marker, (f"{sign} {stage.name}", "title"), (f"  {stage.phase}", "dim")]
            note = stage_note(stage_hits, is_first=stage_index == 0)
            return align_both_ends(name, [(f"{note} ", "accent")], width)
        number_text = f"  {stage_hits.hits.lines[hit_index] + 1:>6} "
        columns = width - len(number_text) - 1
        excerpt = formatting.clip(stage_hits.hits.excerpts[hit_index], columns, self.glyphs)
        return [marker, (number_text, "number"), (excerpt, "text")]

    def toggle_fold(self) -> None:
        if self._rows:
            stage_index = self._rows[self.cursor].stage_index
            self._unfolded ^= {stage_index}
            self._update_rows()
            self.cursor = next(number for number, row in enumerate(self._rows) if row.stage_index == stage_index)
            self.rows_changed()

    def toggle_all_folds(self) -> None:
        """Unfolds all stages, or folds all if all are unfolded."""
        stage_index = self._rows[self.cursor].stage_index if self._rows else 0
        all_stages = set(range(len(self._stages)))
        self._unfolded = set() if self._unfolded == all_stages else all_stages
        self._update_rows()
        self.cursor = next((number for number, row in enumerate(self._rows) if row.stage_index == stage_index), 0)
        self.rows_changed()

    def next_stage(self) -> None:
        self._move_to_stage(range(self.cursor + 1, len(self._rows)))

    def previous_stage(self) -> None:
        """Moves the cursor from a line to its stage, or from a stage to the previous one."""
        self._move_to_stage(range(self.cursor - 1, -1, -1))

    def _move_to_stage(self, rows: range) -> None:
        """Moves to the first row of `rows` that is a stage."""
        self.move_to(next((row for row in rows if self._rows[row].hit_index < 0), self.cursor))


class SearchResultsScreen(ListScreen[StagePosition | None]):
    """The matching lines of all stages. Returns the position of the chosen line, or `None`.

    `title` is what was searched for, and `summary` says in which lines or stages it is.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "choose", show=False),
        Binding("space,z,right,left", "move('toggle_fold')", show=False),
        Binding("Z", "move('toggle_all_folds')", show=False),
        Binding("right_curly_bracket,J", "move('next_stage')", show=False),
        Binding("left_curly_bracket,K", "move('previous_stage')", show=False),
    ]

    def __init__(self, title: str, summary: str, stages: Sequence[StageHits]) -> None:
        self._list = SearchResultList(stages)
        super().__init__(
            f"{title}: {summary}", "enter opens, space/Z fold one/all, { } previous/next stage, q closes", self._list
        )

    def full_height(self) -> int:
        return max(self._list.row_count, _MIN_ROWS) + 2

    def action_choose(self) -> None:
        self.dismiss(self._list.position)

    def on_cursor_view_double_clicked(self) -> None:
        self.action_choose()


# ---- one node --------------------------------------------------------------------------------------------------------


class ProvenanceStep(NamedTuple):
    """A stage, and its lines that come from the followed node."""

    row: StageRow
    trace: NodeTrace


class FollowScreen(TableScreen[ProvenanceStep]):
    """The lines of a node at every stage. Returns the position of its first line in the chosen stage, or `None`.

    `node` is the name of the node in the title. The cursor starts at the stage `current`.
    """

    KEYS_TEXT = "enter goes to the line, / searches, s sorts, q closes"

    def __init__(self, node: str, steps: Sequence[ProvenanceStep], current: StageKey | None) -> None:
        super().__init__(_STAGE_COLUMNS, steps)
        self._title = f"{node} in all stages"
        self._table.cursor = next((index for index, step in enumerate(steps) if step.row.key == current), 0)

    def foot_text(self, row: ProvenanceStep) -> str:
        """The first lines of the node in the stage of the row."""
        return "  |  ".join(row.trace.excerpts[:4]) or "no line of this stage comes from the node"

    def action_choose(self) -> None:
        if self.current is not None and self.current.trace.lines:
            self.dismiss(StagePosition(self.current.row.key, self.current.trace.lines[0]))


def _text_cell(step: ProvenanceStep) -> Cell:
    """Returns the first line of the node in a stage; dim, with a mark, if the line does not name the node itself."""
    if not step.trace.excerpts:
        return ("-", "dim")
    mark = "(derived) " if step.trace.marks[0] else ""
    return (mark + step.trace.excerpts[0], "dim" if mark else "text")


def _line_count_cell(step: ProvenanceStep) -> Cell:
    """Returns the numbers of the lines that name the node and of the derived ones: `3 +12`."""
    derived = f" +{formatting.count(step.trace.derived)}" if step.trace.derived else ""
    return (f"{formatting.count(step.trace.direct)}{derived}", "number")


_STAGE_COLUMNS: tuple[Column[ProvenanceStep], ...] = (
    Column("stage", 26, lambda step: (step.row.stage.name, "accent" if step.row.stage.changed else "dim")),
    Column("phase", 9, lambda step: (step.row.stage.phase, "dim"), min_width=100),
    Column("lines", 9, _line_count_cell, right_aligned=True, key=lambda step: step.trace.direct + step.trace.derived),
    Column(
        "line", 7, lambda step: (str(step.trace.lines[0] + 1) if step.trace.lines else "", "number"), right_aligned=True
    ),
    Column("text", 0, _text_cell),
)


class NodeHistoryScreen(TableScreen[NodeRemark]):
    """What passes report about a node. Returns the chosen remark, whose stage the user wants to see, or `None`.

    `status`, if not empty, is added to the title at first.
    """

    KEYS_TEXT = "enter goes to the stage of the pass, / searches, s sorts, q closes"

    def __init__(self, node: str, history: Sequence[NodeRemark], status: str = "") -> None:
        super().__init__(_HISTORY_COLUMNS, history)
        self._heading = f"Pass history of {node}"
        self._title = f"{self._heading}: {status}" if status else self._heading

    def show_progress(self, text: str) -> None:
        """Adds `text` to the title of the box; an empty text restores the title."""
        self.set_box_title(f"{self._heading}: {text}" if text else self._heading)

    def foot_text(self, row: NodeRemark) -> str:
        return f"{row.step}: {remark_text(row)}"


_HISTORY_COLUMNS: tuple[Column[NodeRemark], ...] = (
    Column("step", 28, lambda remark: (remark.step, "accent")),
    Column("remark", 0, lambda remark: (remark_text(remark), "text")),
)
