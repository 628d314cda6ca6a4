"""A searchable list of choices."""

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
from buddy.app.widgets.cursor_view import MIN_ROWS, CursorView
from buddy.app.widgets.look import Cells
from buddy.app.widgets.prompt import StillInput

# The number of lines for the summary of the entry under the cursor.
FOOT_LINES = 2
# The score of an entry whose summary has all words of the query: below the score of any fuzzy match of a title.
_SUMMARY_SCORE = 1e-3
# The cells of a row besides the title and the summary: 1 for the cursor's marker, 2 for the mark, 2 before the summary.
_FRAME_CELLS = 5


@dataclass(frozen=True)
class PickerChoice:
    """An entry of a picker. The picker returns `value` if the user chooses it. `marked` means: chosen already."""

    title: str
    summary: str
    value: Any
    marked: bool = False


class ChoiceList(CursorView, can_focus=False):
    """The entries that match the query, the best match first. The cursor starts at the marked entry."""

    def __init__(self, choices: Sequence[PickerChoice]) -> None:
        super().__init__()
        self.choices = list(choices)
        self.matches = list(choices)
        self.cursor = next((row for row, choice in enumerate(choices) if choice.marked), 0)

    @property
    def row_count(self) -> int:
        return len(self.matches)

    def row_cells(self, row: int, width: int) -> Cells:
        choice = self.matches[row]
        title_width = self._title_width(width)
        marker = ">" if row == self.cursor else " "
        mark = "* " if choice.marked else "  "
        title = formatting.clip(choice.title, title_width, self.glyphs).ljust(title_width)
        summary = formatting.clip(choice.summary, max(width - title_width - _FRAME_CELLS, 0), self.glyphs)
        return [(marker, "key"), (mark, "ok"), (title, "accent"), ("  " + summary, "dim")]

    def foot(self, width: int) -> list[Cells]:
        """The full summary of the entry under the cursor. Empty if the summaries of all entries fit in their lines."""
        if all(len(choice.summary) <= width - self._title_width(width) - _FRAME_CELLS for choice in self.choices):
            return []
        summary = self.current.summary.strip() if self.current else ""
        pieces = textwrap.wrap(summary, max(width - 2, 1))[:FOOT_LINES]
        blank_lines = [""] * (FOOT_LINES - len(pieces))
        return [[], *([(f" {piece}", "text")] for piece in (*pieces, *blank_lines))]

    def _title_width(self, width: int) -> int:
        """The width of the title column: that of the longest title, but at most half of the view or 24 cells."""
        longest_title = max((len(choice.title) for choice in self.choices), default=0)
        return min(longest_title, max(width // 2, 24))

    def background(self, row: int) -> str:
        return "cursor" if row == self.cursor else ""

    def empty(self, width: int) -> list[Cells]:
        return [[(" no match", "dim")]]

    def filter(self, query: str) -> None:
        """Shows only the entries that match `query`, in the order of `rank_choices`."""
        self.matches = rank_choices(self.choices, query)
        self.cursor = 0
        self.rows_changed()

    @property
    def current(self) -> PickerChoice | None:
        """The entry under the cursor, `None` if no entry matches."""
        return self.matches[self.cursor] if self.matches else None


class PickerScreen(AnsweringScreen[Any]):
    """A searchable list of choices. Returns the value of the chosen one, or `None`.

    `preview` is called with the value of the entry under the cursor when the cursor moves or the user types.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
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
            yield StillInput(placeholder="type to search", compact=True)
            yield ChoiceList(self._choices)

    def on_mount(self) -> None:
        self._show_count()
        box = self.query_one("#box")
        foot_height = FOOT_LINES + 1 if self.query_one(ChoiceList).foot(self.app.size.width - 10) else 0
        # With fewer rows than `MIN_ROWS`, the list would hide its foot.
        n_rows = max(len(self._choices), MIN_ROWS) if foot_height else len(self._choices)
        box.styles.height = min(n_rows + 4 + foot_height, max(self.app.size.height - 4, 8))

    def on_input_changed(self, event: Input.Changed) -> None:
        self.query_one(ChoiceList).filter(event.value)
        self._show_count()
        if event.value:
            self._preview_current()

    def _show_count(self) -> None:
        count = f"{len(self.query_one(ChoiceList).matches)}/{len(self._choices)}"
        self.query_one("#box").border_subtitle = f"{count}, enter chooses, escape cancels"

    def on_cursor_view_moved(self) -> None:
        self._preview_current()

    def _preview_current(self) -> None:
        choice = self.query_one(ChoiceList).current
        if self._preview is not None and choice is not None:
            self._preview(choice.value)

    def on_input_submitted(self) -> None:
        choice = self.query_one(ChoiceList).current
        if choice is not None:
            self.dismiss(choice.value)

    def on_cursor_view_double_clicked(self) -> None:
        self.on_input_submitted()

    def action_move(self, method: str) -> None:
        getattr(self.query_one(ChoiceList), method)()


def rank_choices(choices: Sequence[PickerChoice], query: str) -> list[PickerChoice]:
    """Returns the choices that match `query`, best first. Returns all for an empty query.

    If none matches, ignores a slash at the start of the query: users type it because it is the search key of panes.
    """
    if not query.strip():
        return list(choices)
    ranked = _matching_choices(choices, query)
    return ranked if ranked or not query.startswith("/") else rank_choices(choices, query[1:])


def _matching_choices(choices: Sequence[PickerChoice], query: str) -> list[PickerChoice]:
    """Returns the choices whose title matches `query` fuzzily, then those with all its words in the summary."""
    matcher = Matcher(query.strip())
    words = query.lower().split()
    scored = []
    for choice in choices:
        score = matcher.match(choice.title)
        summary = choice.summary.lower()
        if score <= 0 and all(word in summary for word in words):
            score = _SUMMARY_SCORE
        scored.append((score, choice))
    return [choice for score, choice in sorted(scored, key=lambda pair: -pair[0]) if score > 0]
