"""A form for the options of a pass."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.suggester import SuggestFromList
from textual.widgets import Input, Static

from buddy.app.screens.modal import AnsweringScreen
from buddy.app.widgets.still_input import StillInput
from buddy.app.workspace.pipeline_text import option_error, option_text, option_value
from buddy.compiler.protocol import OptionInfo, PassInfo
from buddy.compiler.protocol.recipe import OptionValue, PassStep

Options = tuple[tuple[str, OptionValue], ...]


class OptionScreen(AnsweringScreen[Options]):
    """Returns the options that differ from their defaults, or `None` if cancelled."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,ctrl+c", "dismiss(None)", "Cancel", show=False, priority=True),
        Binding("enter", "accept", "Accept", priority=True),
        Binding("down,ctrl+n", "app.focus_next", show=False, priority=True),
        Binding("up,ctrl+k", "app.focus_previous", show=False, priority=True),
    ]

    def __init__(self, info: PassInfo, step: PassStep) -> None:
        super().__init__()
        self._info = info
        self._given = dict(step.options)

    def compose(self) -> ComposeResult:
        with Vertical(id="box") as box:
            box.border_title = f"Options of {self._info.name}"
            box.border_subtitle = "enter accepts, tab next field, right completes, ctrl+c cancels"
            with VerticalScroll(can_focus=False):
                for k, option in enumerate(self._info.options):
                    yield Static(_title(option), markup=False, classes="option")
                    yield StillInput(
                        self._initial_text(option), placeholder=option.default, compact=True, id=f"option-{k}",
                        suggester=SuggestFromList(option_completions(option), case_sensitive=False),
                    )  # fmt: skip
                    yield Static("", markup=False, classes="misfit", id=f"misfit-{k}")

    def on_mount(self) -> None:
        self.query_one("#box").styles.height = min(2 * len(self._info.options) + 4, max(self.app.size.height - 4, 6))
        self.query(Input).first().focus()

    def _initial_text(self, option: OptionInfo) -> str:
        return option_text(self._given[option.name]) if option.name in self._given else ""

    def action_accept(self) -> None:
        typed = [self.query_one(f"#option-{k}", Input).value.strip() for k in range(len(self._info.options))]
        if self._show_errors(typed):
            return
        pairs = zip(self._info.options, typed, strict=True)
        self.dismiss(
            tuple((option.name, option_value(text)) for option, text in pairs if text not in ("", option.default))
        )

    def _show_errors(self, typed: list[str]) -> bool:
        """Whether any value has the wrong type. Shows an error at each such field, and focuses the first."""
        reasons = [
            option_error(text, option.default, option.words)
            for option, text in zip(self._info.options, typed, strict=True)
        ]
        for k, reason in enumerate(reasons):
            self._show_error(k, reason)
        wrong = next((k for k, reason in enumerate(reasons) if reason), None)
        if wrong is not None:
            self.query_one(f"#option-{wrong}", Input).focus()
        return wrong is not None

    def _show_error(self, number: int, reason: str) -> None:
        line = self.query_one(f"#misfit-{number}", Static)
        line.update(f"[!] {reason}" if reason else "")
        line.display = bool(reason)

    def on_input_changed(self, event: Input.Changed) -> None:
        """Clear the error of a field when the user edits it."""
        self._show_error(int((event.input.id or "").rpartition("-")[2]), "")


def _title(option: OptionInfo) -> str:
    default = f" (default {option.default})" if option.default else ""
    words = f", one of {', '.join(option.words)}" if option.words else ""
    return f"{option.name}{default}{words}" + (f": {option.summary}" if option.summary else "")


def option_completions(option: OptionInfo) -> list[str]:
    """The completions of the option's field: its allowed words, if it has a fixed list."""
    return list(option.words) or (["true", "false"] if option.default in ("true", "false") else [])
