"""Tables whose rows may arrive later: runs, passes tried on a stage, findings of a bisection."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from textual import work
from textual.binding import Binding, BindingType

from buddy.app.panes.pane import Column, columns_at, table_head, table_row
from buddy.app.reports import formatting
from buddy.app.reports.searches import PassPreview, deltas_text, finding_lines, rank_previews
from buddy.app.screens.detail import TextScreen
from buddy.app.screens.modal import ListScreen
from buddy.app.session.requests import Requester
from buddy.app.widgets.cursor_view import CursorView
from buddy.app.widgets.look import Cell, Cells
from buddy.app.workspace.session_file import RunRecord, recipe_summary
from buddy.compiler.protocol import BisectionResult, Preset, Tried, TryPasses
from buddy.compiler.protocol.recipe import PassStep, Recipe

if TYPE_CHECKING:
    from buddy.app.session.session import Session


class FindingScreen(TextScreen[str | None]):
    """Returns `take` (use the correct recipe), `save`, `again`, or `None`."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "answer('take')", show=False, priority=True),
        Binding("s", "answer('save')", show=False),
        Binding("b", "answer('again')", show=False),
    ]

    def __init__(self, finding: BisectionResult) -> None:
        self._has_fix = bool(finding.steps or finding.lowerings or finding.in_eager)
        take = "enter uses the recipe, " if self._has_fix else ""
        super().__init__("Bisection", _lines(finding), f"{take}s saves, b searches again, y copies, q closes")

    def action_answer(self, act: str) -> None:
        """Close with the answer. `take` does nothing if no recipe was found."""
        self.dismiss(act if act != "take" or self._has_fix else None)


def _lines(finding: BisectionResult) -> list[Cells]:
    """The result, and the IR before and after the pass."""
    lines = [_cells(number, line) for number, line in enumerate(finding_lines(finding))]
    after = finding.after if finding.after != finding.before else ""
    for title, text in (("before the pass", finding.before), ("after the pass", after)):
        if text:
            lines += [[], [(title, "title")], *([(line, "text")] for line in text.splitlines())]
    return lines


def _cells(number: int, line: str) -> Cells:
    """The first line, the result, is highlighted; on other lines, the label is dim."""
    head, colon, rest = line.partition(": ")
    if not number or not colon:
        return [(line, "title" if not number else "text")]
    return [(head + colon, "dim"), (rest, "text")]


Row = TypeVar("Row")
FOOT = 3


class TableRows(CursorView, Generic[Row]):
    """The table. `about` returns more text about the row under the cursor."""

    def __init__(self, columns: Sequence[Column[Row]], rows: Sequence[Row], about: Callable[[Row], str]) -> None:
        super().__init__()
        self.rows = list(rows)
        self._columns, self._about = columns, about

    @property
    def row_count(self) -> int:
        return len(self.rows)

    @property
    def current(self) -> Row | None:
        return self.rows[self.cursor] if self.cursor < len(self.rows) else None

    def row_cells(self, row: int, width: int) -> Cells:
        marker = (">" if row == self.cursor else " ", "key")
        return [marker, *table_row(columns_at(self._columns, width), self.rows[row], width - 1, self.glyphs)]

    def head(self, width: int) -> list[Cells]:
        return [[(" ", "dim"), *table_head(columns_at(self._columns, width), width - 1, self.glyphs)]]

    def foot(self, width: int) -> list[Cells]:
        told = self._about(self.current) if self.current is not None else ""
        pieces = textwrap.wrap(told, max(width - 2, 10))[:FOOT]
        return [[], *([(f" {piece}", "text")] for piece in (*pieces, *[""] * (FOOT - len(pieces))))]

    def empty(self, width: int) -> list[Cells]:
        return [[(" nothing yet", "dim")]]

    def show(self, rows: Sequence[Row]) -> None:
        """Replace the rows. A cursor that the user has moved stays on its row if the row still exists."""
        current, self.rows = self.current, list(rows)
        if self.cursor and current in self.rows:
            self.cursor = self.rows.index(current)
        self.rows_changed()


class TableScreen(ListScreen[Any], Generic[Row]):
    """Shows rows. A subclass defines what the keys return."""

    TITLE_TEXT: ClassVar[str] = ""
    KEYS_TEXT: ClassVar[str] = "enter chooses, q closes"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("f1,question_mark", "dismiss(None)", "Close", show=False, priority=True),
        Binding("enter", "choose", "Choose", show=False),
    ]

    def __init__(self, columns: Sequence[Column[Row]], rows: Sequence[Row] = ()) -> None:
        self._table: TableRows[Row] = TableRows(columns, rows, self.about)
        super().__init__(self.TITLE_TEXT, self.KEYS_TEXT, self._table)

    def about(self, row: Row) -> str:
        """The text about a row, shown under the table."""
        return ""

    def wanted_height(self) -> int:
        return max(len(self._table.rows), 3) + FOOT + 4

    def show(self, rows: Sequence[Row]) -> None:
        """Show these rows, and fit the box to them."""
        self._table.show(rows)
        self.fit()

    def tell(self, text: str) -> None:
        """Show progress in the title of the box."""
        self.set_box_title(f"{self.TITLE_TEXT}: {text}" if text else self.TITLE_TEXT)

    @property
    def current(self) -> Row | None:
        return self._table.current

    def action_choose(self) -> None:
        if self.current is not None:
            self.dismiss(self.current)

    def on_cursor_view_opened(self) -> None:
        self.action_choose()


class RunsScreen(TableScreen[RunRecord]):
    """Returns `("run", record)` or `("compare", record)`."""

    TITLE_TEXT = "Runs"
    KEYS_TEXT = "enter restores the recipe and runs it, B compares stages, q closes"
    BINDINGS: ClassVar[list[BindingType]] = [Binding("B", "compare", "Compare", show=False)]

    def __init__(self, runs: Sequence[RunRecord], presets: Sequence[Preset]) -> None:
        self._presets = {preset.name: preset.recipe for preset in presets}
        columns = (
            Column[RunRecord]("at", 8, lambda row: (row.clock, "dim")),
            Column[RunRecord]("recipe", 0, lambda row: (recipe_summary(row.recipe, self._preset(row)), "accent")),
            Column[RunRecord]("inputs", 14, lambda row: (_inputs(row), "dim"), since=90),
            Column[RunRecord](
                "buddy", 8, lambda row: (formatting.seconds(row.report.compiled.median), "text"), right=True
            ),
            Column[RunRecord]("eager", 8, lambda row: (formatting.seconds(row.report.eager.median), "dim"), right=True),
            Column[RunRecord]("max|d|", 8, lambda row: (formatting.difference_text(_worst(row)), "text"), right=True),
            Column[RunRecord]("", 8, _verdict),
        )
        super().__init__(columns, list(reversed(runs)))

    def _preset(self, row: RunRecord) -> Recipe | None:
        return self._presets.get(row.recipe.preset)

    def about(self, row: RunRecord) -> str:
        report = row.report
        counts = [f"{report.nodes_compiled} nodes compiled", f"{report.nodes_eager} in eager"]
        nodes = ", ".join([*counts, *formatting.eager_path_texts(report)])
        spread = f"{formatting.seconds(report.compiled.low)} to {formatting.seconds(report.compiled.high)}"
        facts = [
            f"graph {row.recipe.graph}",
            str(row.inputs),
            nodes,
            f"{report.compiled.runs} runs, quartiles {spread}",
        ]
        facts += [formatting.load_text(report.load)] if report.load is not None else []
        return "; ".join([*facts, f"compiled in {formatting.seconds(report.compile_seconds)}"])

    def action_choose(self) -> None:
        if self.current is not None:
            self.dismiss(("run", self.current))

    def action_compare(self) -> None:
        if self.current is not None:
            self.dismiss(("compare", self.current))


def _inputs(row: RunRecord) -> str:
    kinds = {"script": "script's", "random": f"seed {row.inputs.seed}"}
    return kinds.get(row.inputs.kind, row.inputs.title)


def _worst(row: RunRecord) -> float:
    return max((output.max_abs for output in row.report.outputs), default=0.0)


def _verdict(row: RunRecord) -> Cell:
    if row.report.not_compared and not row.report.wrong:
        return ("ran", "warn")
    return ("OK", "ok") if row.report.ok else (row.report.word, "bad")


# For all passes together.
_SECONDS = 60.0


class TrialsScreen(TableScreen[PassPreview]):
    """Returns the pass to insert, or `None`. Closing the screen cancels the trials."""

    TITLE_TEXT = "Passes that change this stage"
    KEYS_TEXT = "enter inserts the pass, q closes"

    def __init__(self, session: Session, text: str, tried: Sequence[PassStep], threads: int) -> None:
        super().__init__(_COLUMNS)
        self._session, self._text, self._candidates, self._threads = session, text, tuple(tried), threads
        self._attempts: list[PassPreview] = []

    def on_mount(self) -> None:
        self._try_all()

    def about(self, row: PassPreview) -> str:
        if row.tried.problem:
            return f"{row.step.name}: {row.tried.problem}"
        return deltas_text(row.tried.deltas, most=20) or "changed operands, types or attributes; the same ops"

    @work(exclusive=True, group="trials")
    async def _try_all(self) -> None:
        frame = TryPasses(0, self._text, self._candidates, self._threads, timeout=_SECONDS)
        done = await Requester(self._session, self.tell).request(frame, self._take_frame)
        if done is None:
            return
        late = f", {done.candidates - done.tried} not tried (time limit)" if done.tried < done.candidates else ""
        self._show_counts(late)

    def _take_frame(self, frame: object) -> None:
        if isinstance(frame, Tried):
            self._attempts.append(PassPreview(self._candidates[frame.number], frame))
            if frame.changed or frame.problem:
                self.show(rank_previews(self._attempts, failed=True))
            self._show_counts("")

    def _show_counts(self, end: str) -> None:
        changing = sum(attempt.tried.changed for attempt in self._attempts)
        self.tell(f"{changing} found, {len(self._attempts)}/{len(self._candidates)} tried{end}")

    def action_choose(self) -> None:
        if self.current is not None and self.current.tried.changed:
            self.dismiss(self.current.step)


def _change(row: PassPreview) -> Cell:
    return ("failed", "bad") if row.tried.problem else (deltas_text(row.tried.deltas, most=3) or "same ops", "text")


_COLUMNS: tuple[Column[PassPreview], ...] = (
    Column("pass", 34, lambda row: (row.step.name, "dim" if row.tried.problem else "accent")),
    Column("on", 6, lambda row: (row.step.anchor.rpartition(".")[2], "dim"), since=90),
    Column("ops", 0, _change),
    Column("time", 8, lambda row: (formatting.milliseconds(row.tried.milliseconds), "dim"), right=True),
)
