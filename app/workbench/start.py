"""The first screen of `buddy-tui` without arguments, where the user chooses a program, a sample, a page or a verb."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from textual.app import App
from textual.binding import Binding

import buddy.app
from buddy.app.reports import formatting
from buddy.app.screens.documentation import PageScreen, page_choices
from buddy.app.screens.picker import PickerChoice, PickerScreen
from buddy.app.screens.programs import ProgramScreen
from buddy.app.widgets.cursor_view import CursorView
from buddy.app.workspace.settings import Settings, load_settings, settings_path
from buddy.app.workspace.sources import Program, RecentPrograms
from buddy.app.workspace.workspace import default_store
from buddy.themes.palette import DEFAULT, themes
from buddy.themes.textual_themes import textual_themes


class Verb(NamedTuple):
    """A verb or an option of the command line that the first screen offers, such as `doctor` or `--help`."""

    name: str


class Documentation(NamedTuple):
    """The value of the entry that opens the list of the pages of the documentation."""


# The entries of the first screen that run the command line.
VERBS = (
    PickerChoice("doctor", "check the installation with a small program", Verb("doctor")),
    PickerChoice("help", "list the options and the verbs that need no screen", Verb("--help")),
)


def choose_program(*, ascii_mode: bool = False, mouse: bool = True) -> Program | Verb | None:
    """Shows the first screen, and returns what the user chooses, or `None`.

    Without `mouse`, the mouse is not captured.
    """
    settings, _ = load_settings(settings_path())
    return StartApp(settings, default_store(), ascii_mode=ascii_mode).run(mouse=mouse)


class StartApp(App[Program | Verb]):
    """The application with the first screen. Its result is the program or the verb that the user chooses, or `None`."""

    CSS_PATH = "workbench.tcss"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS = [Binding("ctrl+q,ctrl+c", "quit", show=False, priority=True)]  # noqa: RUF012

    def __init__(self, settings: Settings, store: Path, *, ascii_mode: bool = False) -> None:
        super().__init__()
        self.animation_level = "none"
        for theme in textual_themes():
            self.register_theme(theme)
        self.theme = settings.theme if settings.theme in themes() else DEFAULT
        self.glyphs = formatting.ASCII if ascii_mode else formatting.UNICODE
        CursorView.ascii_mode = ascii_mode
        self.set_class(ascii_mode, "-ascii")
        self._recent = RecentPrograms(store).read()

    def on_mount(self) -> None:
        self.push_screen(StartScreen(self._recent), self.exit)


class StartScreen(ProgramScreen):
    """Lists the recent programs, the samples, the documentation and two verbs; a path can be typed."""

    title_text = "buddy-tui: open a program"
    hint_text = "enter opens, tab completes a path, esc leaves"
    lists_files = False

    def __init__(self, recent: Sequence[Program]) -> None:
        super().__init__(recent)
        listed = {program.source for program in recent}
        self._recent += [choice for choice in sample_choices() if choice.value.source not in listed]
        if page_choices():
            summary = "read the documentation: tutorials, how-to, reference"
            self._recent.append(PickerChoice("docs", summary, Documentation()))
        self._recent += VERBS

    def _open(self, choice: PickerChoice | None) -> None:
        if choice is not None and isinstance(choice.value, Verb):
            self.dismiss(choice.value)  # type: ignore[arg-type]
        elif choice is not None and isinstance(choice.value, Documentation):
            self._list_pages()
        else:
            super()._open(choice)

    def _list_pages(self) -> None:
        self.app.push_screen(PickerScreen("Documentation", page_choices()), self._show_page)

    def _show_page(self, path: Path | None) -> None:
        """Shows a page, then the list again, until it is left without a choice."""
        if path is not None:
            self.app.push_screen(PageScreen(path), lambda _: self._list_pages())


def sample_choices() -> list[PickerChoice]:
    """Returns the samples of a checkout, each with the first line of its docstring. An installed package has none."""
    folder = Path(buddy.app.__file__).resolve().parent.parent / "samples"
    return [
        PickerChoice(f"samples/{path.name}", _first_line(path), Program(str(path)))
        for path in sorted(folder.glob("*.py"))
    ]


def _first_line(path: Path) -> str:
    """Returns the first line of the docstring of a Python file, or "" if the file cannot be read or parsed."""
    try:
        docstring = ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""
    except (OSError, ValueError, SyntaxError):
        return ""
    return docstring.partition("\n")[0]
