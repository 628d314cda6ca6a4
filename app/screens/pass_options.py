"""A form with the options of a pass."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.suggester import SuggestFromList
from textual.widgets import Input, Static

from buddy.app.screens.modal import AnsweringScreen
from buddy.app.widgets.prompt import StillInput
from buddy.app.workspace.pipeline_text import option_error, option_value
from buddy.compiler.protocol import OptionInfo, PassInfo
from buddy.compiler.protocol.recipe import OptionValue, PassStep, option_text

# The options of a step: pairs of a name and a value.
Options = tuple[tuple[str, OptionValue], ...]


class OptionScreen(AnsweringScreen[Options]):
    """A form with a field for each option of the pass `info`, filled with the values of `step`.

    Returns the options that differ from their defaults, or `None` if the user cancels.
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
                for number, option in enumerate(self._info.options):
                    yield Static(_option_title(option), markup=False, classes="option")
                    yield StillInput(
                        self._initial_text(option), placeholder=option.default, compact=True, id=f"option-{number}",
                        suggester=SuggestFromList(option_completions(option), case_sensitive=False),
                    )  # fmt: skip
                    yield Static("", markup=False, classes="field-error", id=f"field-error-{number}")

    def on_mount(self) -> None:
        # Two lines for each option.
        self.query_one("#box").styles.height = min(2 * len(self._info.options) + 4, max(self.app.size.height - 4, 6))
        self.query(Input).first().focus()

    def _initial_text(self, option: OptionInfo) -> str:
        return option_text(self._step_options[option.name]) if option.name in self._step_options else ""

    def action_accept(self) -> None:
        options = self._info.options
        texts = [self.query_one(f"#option-{number}", Input).value.strip() for number in range(len(options))]
        if self._show_errors(texts):
            return
        pairs = zip(options, texts, strict=True)
        self.dismiss(
            tuple((option.name, option_value(text)) for option, text in pairs if text not in ("", option.default))
        )

    def _show_errors(self, texts: list[str]) -> bool:
        """Shows an error at each field with an invalid text, and focuses the first such field.

        `texts` are the texts of all fields. Returns whether any is invalid.
        """
        errors = [
            option_error(text, option.default, option.words)
            for option, text in zip(self._info.options, texts, strict=True)
        ]
        for number, error in enumerate(errors):
            self._show_error(number, error)
        first_invalid = next((number for number, error in enumerate(errors) if error), None)
        if first_invalid is not None:
            self.query_one(f"#option-{first_invalid}", Input).focus()
        return first_invalid is not None

    def _show_error(self, number: int, error: str) -> None:
        """Shows an error below field `number`; an empty text removes it."""
        line = self.query_one(f"#field-error-{number}", Static)
        line.update(f"[!] {error}" if error else "")
        line.display = bool(error)

    def on_input_changed(self, event: Input.Changed) -> None:
        self._show_error(int((event.input.id or "").rpartition("-")[2]), "")


def _option_title(option: OptionInfo) -> str:
    """Returns the name, default value, allowed words and summary of an option."""
    default = f" (default: {option.default})" if option.default else ""
    words = f", one of {', '.join(option.words)}" if option.words else ""
    return f"{option.name}{default}{words}" + (f": {option.summary}" if option.summary else "")


def option_completions(option: OptionInfo) -> list[str]:
    """Returns the completions in the field of an option: its allowed words, or the values of a boolean."""
    return list(option.words) or (["true", "false"] if option.default in ("true", "false") else [])
