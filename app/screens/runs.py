"""The list of runs. Each can be repeated, or compared with the current recipe."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual.binding import Binding, BindingType

from buddy.app.panes.pane import Column
from buddy.app.reports import formatting
from buddy.app.screens.table import TableScreen
from buddy.app.widgets.look import Cell
from buddy.app.workspace.runs import RunRecord, recipe_summary
from buddy.compiler.protocol import Preset
from buddy.compiler.protocol.recipe import Recipe


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
        nodes = f"{report.nodes_compiled} nodes compiled, {report.nodes_eager} in eager"
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
