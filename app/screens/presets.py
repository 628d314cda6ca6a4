"""The table of presets: compiles the program with every preset in the background, and runs it on request."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from textual import work
from textual.binding import Binding, BindingType

from buddy.app.panes.ir_comparison import TitledRecipe
from buddy.app.reports import formatting
from buddy.app.reports.compilations import PipelineFacts
from buddy.app.screens.modal import TableScreen
from buddy.app.session.requests import Requester
from buddy.app.widgets.look import Cell
from buddy.app.widgets.table import Column
from buddy.compiler.protocol.recipe import Recipe

if TYPE_CHECKING:
    from buddy.app.session.session import Session


class PresetsScreen(TableScreen[PipelineFacts]):
    """A row for each of `recipes`, which are pairs (title, recipe). Compiles all when it opens; `r` runs all.

    Returns (`"use"` or `"compare"`, `TitledRecipe`) for the chosen row, or `None`. Closing the screen cancels
    compilations and runs.
    """

    TITLE_TEXT = "Presets side by side"
    KEYS_TEXT = "enter uses the preset, B compares stages, r runs all, q closes"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("B", "compare", "Compare", show=False),
        Binding("r", "run", "Run", show=False),
    ]

    def __init__(self, session: Session, recipes: Sequence[tuple[str, Recipe]]) -> None:
        super().__init__(_COLUMNS, [PipelineFacts(title, recipe) for title, recipe in recipes])
        self._session = session

    def on_mount(self) -> None:
        self._compile_all()

    def foot_text(self, row: PipelineFacts) -> str:
        if row.problem:
            return row.problem
        slowest = row.slowest()
        if slowest is None:
            return "compiling"
        return f"slowest stage: {slowest.name}, {formatting.milliseconds(slowest.milliseconds)}"

    @work(exclusive=True, group="facts")
    async def _compile_all(self) -> None:
        await self._update_rows(self._compile)

    @work(exclusive=True, group="facts")
    async def _run_all(self) -> None:
        await self._update_rows(self._compile_and_run)

    async def _update_rows(self, measure: Callable[[PipelineFacts], Awaitable[PipelineFacts]]) -> None:
        """Replaces each row by the result of `measure`. If `measure` fails, sets the problem of the row."""
        for row in list(self._table.unsorted_rows):
            self.show_progress(row.title)
            problems: list[str] = []
            measured = await Requester(self._session, problems.append).await_answer(measure(row))
            new_row = measured or replace(row, problem="".join(problems))
            self.show([new_row if other.title == row.title else other for other in self._table.unsorted_rows])
        self.show_progress("")

    async def _compile(self, row: PipelineFacts) -> PipelineFacts:
        return replace(row, compiled=await self._session.compile_for_comparison(row.recipe), problem="")

    async def _compile_and_run(self, row: PipelineFacts) -> PipelineFacts:
        compiled = row if row.compiled is not None else await self._compile(row)
        return replace(compiled, report=await self._session.run_for_comparison(row.recipe))

    def action_run(self) -> None:
        self._run_all()

    def action_choose(self) -> None:
        self._close_with("use")

    def action_compare(self) -> None:
        self._close_with("compare")

    def _close_with(self, action: str) -> None:
        if self.current is not None:
            self.dismiss((action, TitledRecipe(self.current.title, self.current.recipe)))


def _compile_time_cell(row: PipelineFacts) -> Cell:
    if row.problem:
        return ("failed", "bad")
    return (formatting.milliseconds(row.milliseconds), "text") if row.stages else ("", "dim")


def _count_cell(count: int) -> Cell:
    return (formatting.count(count) if count else "", "text")


def _run_time_cell(row: PipelineFacts) -> Cell:
    return (formatting.seconds(row.report.compiled.median), "text") if row.report else ("", "dim")


def _run_time(row: PipelineFacts) -> float | None:
    """Returns the median time of a run of the compiled code, in seconds; `None` without a run."""
    return row.report.compiled.median if row.report else None


def _speedup(row: PipelineFacts) -> float | None:
    """Returns the time of eager divided by the time of the compiled code; `None` without a result that matches."""
    report = row.report
    if report is None or report.wrong or report.not_compared or not report.compiled.median:
        return None
    return report.eager.median / report.compiled.median


def _speedup_cell(row: PipelineFacts) -> Cell:
    """Returns the speedup compared with eager, or the verdict if the result does not match or was not compared."""
    if row.report is None:
        return ("", "dim")
    if row.report.wrong:
        return (row.report.word, "bad")
    if row.report.not_compared:
        return ("ran", "warn")
    speedup = _speedup(row)
    return (f"{speedup:.2f}x" if speedup is not None else "", "ok")


_COLUMNS: tuple[Column[PipelineFacts], ...] = (
    Column("preset", 0, lambda row: (row.title, "accent")),
    Column("passes", 6, lambda row: _count_cell(row.n_passes), right_aligned=True, key=lambda row: row.n_passes),
    Column(
        "changing",
        8,
        lambda row: _count_cell(row.n_changing_passes),
        min_width=70,
        right_aligned=True,
        key=lambda row: row.n_changing_passes,
    ),
    Column("compile", 8, _compile_time_cell, right_aligned=True, key=lambda row: row.milliseconds or None),
    Column("ops", 7, lambda row: _count_cell(row.n_ops), right_aligned=True, key=lambda row: row.n_ops or None),
    Column(
        "asm",
        8,
        lambda row: _count_cell(row.n_assembly_lines),
        right_aligned=True,
        key=lambda row: row.n_assembly_lines or None,
    ),
    Column("run", 8, _run_time_cell, right_aligned=True, key=_run_time),
    Column("to eager", 8, _speedup_cell, right_aligned=True, key=_speedup),
)
