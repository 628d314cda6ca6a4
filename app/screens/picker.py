"""A searchable list of choices: phases, passes, lowerings, presets, themes."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.fuzzy import Matcher
from textual.widgets import Input

from buddy.app.reports import formatting
from buddy.app.screens.modal import AnsweringScreen
from buddy.app.widgets.cursor_view import LEAST_ROWS, CursorView
from buddy.app.widgets.look import Cells
from buddy.app.widgets.still_input import StillInput

FOOT = 2


@dataclass(frozen=True)
class PickerChoice:
    """An entry: its title, its summary, and the value that choosing it returns."""

    title: str
    summary: str
    value: Any
    marked: bool = False


class ChoiceList(CursorView, can_focus=False):
    """The entries that match the query, best first."""

    def __init__(self, choices: Sequence[PickerChoice]) -> None:
        super().__init__()
        self.choices = list(choices)
        self.shown = list(choices)
        self.cursor = next((k for k, choice in enumerate(choices) if choice.marked), 0)

    @property
    def row_count(self) -> int:
        return len(self.shown)

    def row_cells(self, row: int, width: int) -> Cells:
        choice = self.shown[row]
        room = self._room(width)
        marker = ">" if row == self.cursor else " "
        mark = "* " if choice.marked else "  "
        title = formatting.clip(choice.title, room, self.glyphs).ljust(room)
        summary = formatting.clip(choice.summary, max(width - room - 5, 0), self.glyphs)
        return [(marker, "key"), (mark, "ok"), (title, "accent"), ("  " + summary, "dim")]

    def foot(self, width: int) -> list[Cells]:
        """The full summary of the entry under the cursor, if any entry is longer than its line."""
        if all(len(choice.summary) <= width - self._room(width) - 5 for choice in self.choices):
            return []
        pieces = textwrap.wrap(self.current.summary.strip() if self.current else "", max(width - 2, 1))[:FOOT]
        return [[], *([(f" {piece}", "text")] for piece in (*pieces, *[""] * (FOOT - len(pieces))))]

    def _room(self, width: int) -> int:
        """The width of the title column."""
        return min(max((len(entry.title) for entry in self.choices), default=0), max(width // 2, 24))

    def background(self, row: int) -> str:
        return "cursor" if row == self.cursor else ""

    def empty(self, width: int) -> list[Cells]:
        return [[(" no match", "dim")]]

    def narrow(self, query: str) -> None:
        """Show the entries that match `query`: by title (fuzzy), or by words of the summary."""
        self.shown = rank_choices(self.choices, query)
        self.cursor = 0
        self.rows_changed()

    @property
    def current(self) -> PickerChoice | None:
        return self.shown[self.cursor] if self.shown else None


class PickerScreen(AnsweringScreen[Any]):
    """Returns the chosen value, or `None`. `preview` is called with the value of each entry under the cursor."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,ctrl+c", "dismiss(None)", "Cancel", show=False, priority=True),
        Binding("down,ctrl+n,ctrl+j", "move('move_down')", show=False, priority=True),
        Binding("up,ctrl+k", "move('move_up')", show=False, priority=True),
        Binding("pagedown,ctrl+d", "move('move_page_down')", show=False, priority=True),
        Binding("pageup,ctrl+u", "move('move_page_up')", show=False, priority=True),
    ]

    def __init__(
        self, title: str, choices: Sequence[PickerChoice], preview: Callable[[Any], object] | None = None
    ) -> None:
        super().__init__()
        self._title = title
        self._choices = choices
        self._preview = preview

    def compose(self) -> ComposeResult:
        with Vertical(id="box") as box:
            box.border_title = self._title
            box.border_subtitle = "enter chooses, ctrl+c cancels"
            yield StillInput(placeholder="type to search", compact=True)
            yield ChoiceList(self._choices)

    def on_mount(self) -> None:
        box = self.query_one("#box")
        foot = FOOT + 1 if self.query_one(ChoiceList).foot(self.app.size.width - 10) else 0
        rows = max(len(self._choices), LEAST_ROWS) if foot else len(self._choices)
        box.styles.height = min(rows + 4 + foot, max(self.app.size.height - 4, 8))

    def on_input_changed(self, event: Input.Changed) -> None:
        self.query_one(ChoiceList).narrow(event.value)
        if event.value:
            self._show_current()

    def on_cursor_view_moved(self) -> None:
        self._show_current()

    def _show_current(self) -> None:
        choice = self.query_one(ChoiceList).current
        if self._preview is not None and choice is not None:
            self._preview(choice.value)

    def on_input_submitted(self) -> None:
        choice = self.query_one(ChoiceList).current
        if choice is not None:
            self.dismiss(choice.value)

    def on_cursor_view_opened(self) -> None:
        self.on_input_submitted()

    def action_move(self, method: str) -> None:
        getattr(self.query_one(ChoiceList), method)()


def rank_choices(choices: Sequence[PickerChoice], query: str) -> list[PickerChoice]:
    """The choices that match `query`, best first; all of them for an empty query."""
    if not query.strip():
        return list(choices)
    matcher = Matcher(query.strip())
    words = query.lower().split()
    scored = []
    for choice in choices:
        score = matcher.match(choice.title)
        summary = choice.summary.lower()
        if score <= 0 and all(word in summary for word in words):
            score = 1e-3
        scored.append((score, choice))
    return [choice for score, choice in sorted(scored, key=lambda pair: -pair[0]) if score > 0]
