"""What a bisection found: the answer first, then what to do with it."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen

from buddy.app.bisection import finding_lines
from buddy.app.screens.detail import TextLines, folded
from buddy.app.widgets.look import Cells
from buddy.compiler.protocol import Finding


class FindingScreen(ModalScreen[str | None]):
    """Returns `take` (the recipe that is right), `save`, `again`, or `None`."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,ctrl+c", "dismiss(None)", "Close", show=False, priority=True),
        Binding("enter", "answer('take')", show=False, priority=True),
        Binding("s", "answer('save')", show=False),
        Binding("b", "answer('again')", show=False),
        Binding("y", "copy", show=False),
        Binding("j,down", "move('move_down')", show=False),
        Binding("k,up", "move('move_up')", show=False),
        Binding("ctrl+d,pagedown,space", "move('move_page_down')", show=False),
        Binding("ctrl+u,pageup", "move('move_page_up')", show=False),
    ]

    def __init__(self, finding: Finding) -> None:
        super().__init__()
        self._finding = finding
        self._lines = [_cells(number, line) for number, line in enumerate(finding_lines(finding))]
        after = finding.after if finding.after != finding.before else ""
        for title, text in (("before the pass", finding.before), ("after it", after)):
            if text:
                self._lines += [[], [(title, "title")], *([(line, "text")] for line in text.splitlines())]

    @property
    def _helps(self) -> bool:
        """Whether there is a recipe to take."""
        found = self._finding
        return bool(found.steps or found.lowerings or found.in_eager)

    def compose(self) -> ComposeResult:
        with Vertical(id="box") as box:
            box.border_title = "Bisection"
            take = "enter takes the recipe, " if self._helps else ""
            box.border_subtitle = f"{take}s saves, b searches again, y copies, q closes"
            yield TextLines(self._lines)

    def on_mount(self) -> None:
        width = max(20, min(self.app.size.width - 4, 118) - 4)
        height = sum(len(folded(line, width)) for line in self._lines)
        self.query_one("#box").styles.height = min(height + 2, max(self.app.size.height - 4, 6))

    def action_answer(self, act: str) -> None:
        self.dismiss(act if act != "take" or self._helps else None)

    def action_move(self, method: str) -> None:
        getattr(self.query_one(TextLines), method)()

    def action_copy(self) -> None:
        self.app.copy_to_clipboard("\n".join(finding_lines(self._finding)))


def _cells(number: int, line: str) -> Cells:
    """The first line is the answer; of the others, what they are about is dim."""
    head, colon, rest = line.partition(": ")
    if not number or not colon:
        return [(line, "title" if not number else "text")]
    return [(head + colon, "dim"), (rest, "text")]
