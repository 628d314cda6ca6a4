"""A searchable list of choices, and a form with the options of a pass."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.fuzzy import Matcher
from textual.suggester import SuggestFromList
from textual.widgets import Input, Static

from buddy.app.reports import formatting
from buddy.app.screens.modal import AnsweringScreen
from buddy.app.widgets.cursor_view import MIN_ROWS, CursorView
from buddy.app.widgets.look import Cells
from buddy.app.widgets.prompt import StillInput
from buddy.app.workspace.pipeline_text import option_error, option_value
from buddy.compiler.protocol import OptionInfo, PassInfo
from buddy.compiler.protocol.recipe import OptionValue, PassStep, option_text

Options = tuple[tuple[str, OptionValue], ...]


class OptionScreen(AnsweringScreen[Options]):
    """A form with a field for each option of a pass. Returns the options that differ from their defaults.

    Returns `None` if the user cancels.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "accept", "Accept", priority=True),
        Binding("down,ctrl+n", "app.focus_next", show=False, priority=True),
        Binding("up,ctrl+k", "app.focus_previous", show=False, priority=True),
    ]

    def __init__(self, info: PassInfo, step: PassStep) -> None:
        super().__init__()
        self._info, self.options = info, info.options
        self._step_options = dict(step.options)

    def compose(self) -> ComposeResult:
        with Vertical(id="box") as box:
            box.border_title = f"Options of {self._info.name}"
            box.border_subtitle = "enter accepts, tab next field, right completes, ctrl+c cancels"
            with VerticalScroll(can_focus=False):
                for k, option in enumerate(self._info.options):
                    yield Static(_option_title(option), markup=False, classes="option")
                    yield StillInput(
                        self._initial_text(option), placeholder=option.default, compact=True, id=f"option-{k}",
                        suggester=SuggestFromList(option_completions(option), case_sensitive=False),
                    )  # fmt: skip
                    yield Static("", markup=False, classes="field-error", id=f"field-error-{k}")

    def on_mount(self) -> None:
        self.query_one("#box").styles.height = min(2 * len(self._info.options) + 4, max(self.app.size.height - 4, 6))
        self.query(Input).first().focus()

    def _initial_text(self, option: OptionInfo) -> str:
        return option_text(self._step_options[option.name]) if option.name in self._step_options else ""

    def action_accept(self) -> None:
        texts = [self.query_one(f"#option-{k}", Input).value.strip() for k in range(len(self._info.options))]
        if self._show_errors(texts):
            return
        pairs = zip(self._info.options, texts, strict=True)
        self.dismiss(
            tuple((option.name, option_value(text)) for option, text in pairs if text not in ("", option.default))
        )

    def _show_errors(self, texts: list[str]) -> bool:
        """Show an error at each field with an invalid value, and focus the first one. Returns whether there was any."""
        errors = [
            option_error(text, option.default, option.words)
            for option, text in zip(self._info.options, texts, strict=True)
        ]
        for k, error in enumerate(errors):
            self._show_error(k, error)
        first_invalid = next((k for k, error in enumerate(errors) if error), None)
        if first_invalid is not None:
            self.query_one(f"#option-{first_invalid}", Input).focus()
        return first_invalid is not None

    def _show_error(self, number: int, error: str) -> None:
        """Show an error below field `number`; an empty text removes it."""
        line = self.query_one(f"#field-error-{number}", Static)
        line.update(f"[!] {error}" if error else "")
        line.display = bool(error)

    def on_input_changed(self, event: Input.Changed) -> None:
        """Clear the error of a field when the user edits it."""
        self._show_error(int((event.input.id or "").rpartition("-")[2]), "")


def _option_title(option: OptionInfo) -> str:
    """The name, default value, allowed words and summary of an option."""
    default = f" (default: {option.default})" if option.default else ""
    words = f", one of {', '.join(option.words)}" if option.words else ""
    return f"{option.name}{default}{words}" + (f": {option.summary}" if option.summary else "")


def option_completions(option: OptionInfo) -> list[str]:
    """The completions in the field of an option: its allowed words, or the values of a boolean."""
    return list(option.words) or (["true", "false"] if option.default in ("true", "false") else [])


# The number of lines for the summary of the entry under the cursor.
FOOT_LINES = 2


@dataclass(frozen=True)
class PickerChoice:
    """An entry of a picker. Choosing it returns `value`; a `marked` entry is the current one."""

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
        self.cursor = next((k for k, choice in enumerate(choices) if choice.marked), 0)

    @property
    def row_count(self) -> int:
        return len(self.matches)

    def row_cells(self, row: int, width: int) -> Cells:
        choice = self.matches[row]
        title_width = self._title_width(width)
        marker = ">" if row == self.cursor else " "
        mark = "* " if choice.marked else "  "
        title = formatting.clip(choice.title, title_width, self.glyphs).ljust(title_width)
        summary = formatting.clip(choice.summary, max(width - title_width - 5, 0), self.glyphs)
        return [(marker, "key"), (mark, "ok"), (title, "accent"), ("  " + summary, "dim")]

    def foot(self, width: int) -> list[Cells]:
        """The full summary of the entry under the cursor, if the summary of any entry does not fit in its line."""
        if all(len(choice.summary) <= width - self._title_width(width) - 5 for choice in self.choices):
            return []
        pieces = textwrap.wrap(self.current.summary.strip() if self.current else "", max(width - 2, 1))[:FOOT_LINES]
        return [[], *([(f" {piece}", "text")] for piece in (*pieces, *[""] * (FOOT_LINES - len(pieces))))]

    def _title_width(self, width: int) -> int:
        """The width of the title column."""
        return min(max((len(choice.title) for choice in self.choices), default=0), max(width // 2, 24))

    def background(self, row: int) -> str:
        return "cursor" if row == self.cursor else ""

    def empty(self, width: int) -> list[Cells]:
        return [[(" no match", "dim")]]

    def narrow(self, query: str) -> None:
        """Show only the entries that match `query`: fuzzily by title, or with all its words in the summary."""
        self.matches = rank_choices(self.choices, query)
        self.cursor = 0
        self.rows_changed()

    @property
    def current(self) -> PickerChoice | None:
        return self.matches[self.cursor] if self.matches else None


class PickerScreen(AnsweringScreen[Any]):
    """A searchable list of choices. Returns the value of the chosen one, or `None`.

    When the cursor moves to another entry, `preview` is called with its value.
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
        foot = FOOT_LINES + 1 if self.query_one(ChoiceList).foot(self.app.size.width - 10) else 0
        rows = max(len(self._choices), MIN_ROWS) if foot else len(self._choices)
        box.styles.height = min(rows + 4 + foot, max(self.app.size.height - 4, 8))

    def on_input_changed(self, event: Input.Changed) -> None:
        self.query_one(ChoiceList).narrow(event.value)
        self._show_count()
        if event.value:
            self._preview_current()

    def _show_count(self) -> None:
        """Show how many of the entries match the query."""
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
    """The choices that match `query`, best first; all of them for an empty query.

    If none does, a slash at its start is ignored: it is the search key elsewhere.
    """
    if not query.strip():
        return list(choices)
    found = _ranked(choices, query)
    return found if found or not query.startswith("/") else rank_choices(choices, query[1:])


def _ranked(choices: Sequence[PickerChoice], query: str) -> list[PickerChoice]:
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
