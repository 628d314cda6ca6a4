"""The tour of a first start: five steps, each about a pane, that ask for a key and end when the user has pressed it."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from textual import events
from textual.strip import Strip
from textual.widget import Widget

from buddy.app.actions import PANE_TITLES, Pane, key_of
from buddy.app.panes.context import Layout
from buddy.app.widgets.look import Cells, look_of, wrap_line


class TourStep(NamedTuple):
    """A step about `pane`, which ends when one of `ending_actions` is performed.

    In `text`, the id of an action in braces stands for its key.
    """

    pane: Pane
    text: str
    ending_actions: tuple[str, ...]


# The steps of the tour, in order.
STEPS = (
    TourStep(
        "graph",
        "The ops of your model, as soon as it is captured. Press {move.down} or {move.up} to go to another op: "
        "IR shows its lines.",
        ("move.down", "move.up"),
    ),
    TourStep(
        "graph",
        "Press {graph.lowering} to choose how the op under the cursor is compiled. {search.end} closes the list.",
        ("graph.lowering",),
    ),
    TourStep(
        "passes",
        "The passes that compile the graph. {next-pane} goes there. Press {passes.toggle} to switch a pass off: "
        "the passes after it run again. If one of them fails without it, {undo} undoes.",
        ("passes.toggle",),
    ),
    TourStep(
        "outputs",
        "Press {run} to run the compiled model and compare it with eager PyTorch. The result appears here.",
        ("run",),
    ),
    TourStep(
        "ir",
        "Press {help} for all keys of a pane. {palette} searches all commands. {tour} starts this tour again.",
        ("help",),
    ),
)


class TourLines(Widget):
    """The lines of a step, between the panes and the status line. A click on the title ends the tour."""

    def __init__(self, on_title_clicked: Callable[[], None]) -> None:
        super().__init__(id="tour")
        self._on_title_clicked = on_title_clicked
        self._text: Cells = []

    def show(self, title: str, text: Cells) -> None:
        """Shows a step. The text is wrapped to the width of the screen."""
        self.border_title, self._text = title, text
        self.display = True
        self._fit()

    def hide(self) -> None:
        self.display = False

    def _lines(self) -> list[Cells]:
        return wrap_line(self._text, max(self.app.size.width - 2, 10)) if self._text else []

    def _fit(self) -> None:
        """Sets the height for the width of the screen."""
        self.styles.height = len(self._lines()) + 1  # one for the border
        self.refresh()

    def on_resize(self, event: events.Resize) -> None:
        self._fit()

    def render_line(self, y: int) -> Strip:
        lines = self._lines()
        cells: Cells = [(" ", "text"), *(lines[y] if y < len(lines) else [])]
        return look_of(self.app.theme).strip(cells, self.size.width, "panel")

    def on_click(self, event: events.Click) -> None:
        if event.get_content_offset(self) is None:  # on the border, which has the title
            self._on_title_clicked()


class Tour:
    """Shows the steps in `lines`, one after the other, and marks the pane of the step.

    `say` is called with a message when the tour ends.
    """

    def __init__(self, get_layout: Callable[[], Layout], say: Callable[[str], None]) -> None:
        self._get_layout, self._say = get_layout, say
        # The index of the step in `STEPS`. Before and after the tour, no step has it.
        self._index = -1
        self.lines = self.make_lines()

    def make_lines(self) -> TourLines:
        """Returns new lines for the screen that is composed next. Ends the tour of the previous screen."""
        self._index = -1
        self.lines = TourLines(self.skip)
        return self.lines

    @property
    def step(self) -> TourStep | None:
        """The step that is shown; `None` if the tour does not run."""
        return STEPS[self._index] if 0 <= self._index < len(STEPS) else None

    def start(self) -> None:
        """Starts the tour, or starts it again."""
        self._get_layout().show_pane(STEPS[0].pane)
        self._go_to(0)

    def skip(self) -> None:
        """Ends the tour before its last step."""
        if self.step is not None:
            self._go_to(len(STEPS))
            self._say(f"Tour skipped: {key_of('tour')} starts it again")

    def advance_after(self, action_id: str, pane: Pane) -> None:
        """Goes to the next step if the action, which was performed in `pane`, ends the current one."""
        step = self.step
        if step is None or action_id not in step.ending_actions:
            return
        if action_id.startswith("move.") and pane != step.pane:  # moved in another pane
            return
        self._go_to(self._index + 1)
        if self.step is None:
            self._say(f"End of the tour: {key_of('tour')} starts it again")

    def _go_to(self, index: int) -> None:
        """Shows the step with this index, or hides the lines if no step has it."""
        self._index = index
        step = self.step
        for pane_id, pane in self._get_layout().panes.items():
            pane.set_class(step is not None and pane_id == step.pane, "-toured")
        if step is None:
            self.lines.hide()
            return
        title = f"Tour {index + 1}/{len(STEPS)}: {PANE_TITLES[step.pane]}, {key_of('search.end')} skips"
        self.lines.show(title, _cells_of(step.text))


def _cells_of(text: str) -> Cells:
    """Returns the text of a step with each id of an action in braces replaced by the key of the action."""
    # `re.split` with a group returns texts at even indices, and ids at odd ones.
    parts = re.split(r"\{([\w.-]+)\}", text)
    cells = [(key_of(part), "key") if index % 2 else (part, "text") for index, part in enumerate(parts)]
    return [cell for cell in cells if cell[0]]
