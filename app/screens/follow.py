"""Screens about one node: its lines at every stage, and what passes report about it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from buddy.app.reports import formatting
from buddy.app.reports.node_history import NodeRemark, remark_text
from buddy.app.screens.table_screen import TableScreen
from buddy.app.session.stages import StageKey, StagePosition, StageRow
from buddy.app.widgets.look import Cell
from buddy.app.widgets.table import Column
from buddy.compiler.protocol import NodeTrace


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
    """Returns the first line of the node in a stage, dim if it does not name the node itself but is derived from it."""
    if not step.trace.excerpts:
        return ("-", "dim")
    mark = "(derived) " if step.trace.marks[0] else ""
    return (mark + step.trace.excerpts[0], "dim" if mark else "text")


def _line_count_cell(step: ProvenanceStep) -> Cell:
    """Returns the numbers of direct and of derived lines: `3 +12`."""
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
        """Add `text` to the title of the box; an empty text restores the title."""
        self.set_box_title(f"{self._heading}: {text}" if text else self._heading)

    def foot_text(self, row: NodeRemark) -> str:
        return f"{row.step}: {remark_text(row)}"


_HISTORY_COLUMNS: tuple[Column[NodeRemark], ...] = (
    Column("step", 28, lambda remark: (remark.step, "accent")),
    Column("remark", 0, lambda remark: (remark_text(remark), "text")),
)
