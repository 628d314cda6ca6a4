"""Two tables: one node in every stage with its text, and its history through all passes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from buddy.app.panes.pane import Column
from buddy.app.reports import formatting
from buddy.app.reports.node_history import NodeRemark, remark_text
from buddy.app.screens.table import TableScreen
from buddy.app.session.stages import Key, StagePosition, StageRow
from buddy.app.widgets.look import Cell
from buddy.compiler.protocol import NodeTrace


class ProvenanceStep(NamedTuple):
    """A stage, and the lines of its text that come from the node."""

    row: StageRow
    trace: NodeTrace


class FollowScreen(TableScreen[ProvenanceStep]):
    """Returns the chosen line, or `None`. The cursor starts at the stage `here`."""

    KEYS_TEXT = "enter goes to the line, q closes"

    def __init__(self, node: str, steps: Sequence[ProvenanceStep], here: Key | None) -> None:
        super().__init__(_STAGE_COLUMNS, steps)
        self._title = f"{node} in all stages"
        self._table.cursor = next((place for place, step in enumerate(steps) if step.row.key == here), 0)

    def about(self, row: ProvenanceStep) -> str:
        """The first lines of the node in the stage."""
        return "  |  ".join(row.trace.excerpts[:4]) or "no line is left: other ops do its work"

    def action_choose(self) -> None:
        if self.current is not None and self.current.trace.lines:
            self.dismiss(StagePosition(self.current.row.key, self.current.trace.lines[0]))


def _text(step: ProvenanceStep) -> Cell:
    if not step.trace.excerpts:
        return ("-", "dim")
    mark = "(derived) " if step.trace.marks[0] else ""
    return (mark + step.trace.excerpts[0], "dim" if mark else "text")


def _lines(step: ProvenanceStep) -> Cell:
    derived = f" +{formatting.count(step.trace.derived)}" if step.trace.derived else ""
    return (f"{formatting.count(step.trace.own)}{derived}", "number")


_STAGE_COLUMNS: tuple[Column[ProvenanceStep], ...] = (
    Column("stage", 26, lambda step: (step.row.stage.name, "accent" if step.row.stage.changed else "dim")),
    Column("phase", 9, lambda step: (step.row.stage.phase, "dim"), since=100),
    Column("lines", 9, _lines, right=True),
    Column("line", 7, lambda step: (str(step.trace.lines[0] + 1) if step.trace.lines else "", "number"), right=True),
    Column("text", 0, _text),
)


class NodeHistoryScreen(TableScreen[NodeRemark]):
    """Returns the entry whose stage the user wants to see, or `None`."""

    KEYS_TEXT = "enter goes to the stage of the pass, q closes"

    def __init__(self, node: str, history: Sequence[NodeRemark], status: str = "") -> None:
        super().__init__(_HISTORY_COLUMNS, history)
        self._heading = f"Pass history of {node}"
        self._title = f"{self._heading}: {status}" if status else self._heading

    def tell(self, text: str) -> None:
        self.set_box_title(f"{self._heading}: {text}" if text else self._heading)

    def about(self, row: NodeRemark) -> str:
        return f"{row.who}: {remark_text(row)}"


_HISTORY_COLUMNS: tuple[Column[NodeRemark], ...] = (
    Column("who", 28, lambda remark: (remark.who, "accent")),
    Column("what", 0, lambda remark: (remark_text(remark), "text")),
)
