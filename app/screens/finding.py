"""The result of a bisection, and what to do with it."""

from __future__ import annotations

from typing import ClassVar

from textual.binding import Binding, BindingType

from buddy.app.reports.bisection import finding_lines
from buddy.app.screens.detail import TextScreen
from buddy.app.widgets.look import Cells
from buddy.compiler.protocol import BisectionResult


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
