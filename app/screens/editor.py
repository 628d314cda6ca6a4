"""A simple editor over the workbench: a text, what is wrong with it and where, and a way out that loses nothing."""

from __future__ import annotations

from typing import ClassVar, Literal, NamedTuple

from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.timer import Timer
from textual.widgets import Static, TextArea

from buddy.app.screens.modal import AnsweringScreen
from buddy.app.widgets.look import Cells, look_of
from buddy.app.workspace.drafts import Draft

# Seconds without a key after which what has been typed is kept.
DRAFT_SECONDS = 0.5
_LEFT = "typed when the workbench ended; ctrl+c twice throws it away"
_LEFT_OLDER = "typed over another text than is here now; ctrl+c twice throws it away"
_BESIDE = "another workbench has this editor open too; what is typed there stays there"


class Wrong(NamedTuple):
    """What is wrong with a text; line and column count from 0, -1 where no place is known."""

    message: str
    line: int = -1
    column: int = 0


class EditorScreen(AnsweringScreen[str]):
    """Returns the text once `check` finds nothing wrong with it, `None` when the user goes back.

    Until then what is typed is kept in `draft`, and is there again where the workbench has ended meanwhile.
    """

    NOTE_LINES: ClassVar[int] = 1
    TAB: ClassVar[Literal["focus", "indent"]] = "indent"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+s", "accept", "Accept", show=False, priority=True),
        Binding("escape,ctrl+c", "leave", "Cancel", show=False, priority=True),
    ]

    def __init__(
        self, title: str, text: str, wrong: Wrong | None = None, before: str = "", draft: Draft | None = None
    ) -> None:
        super().__init__()
        # What has been edited elsewhere already is not thrown away unasked either.
        self._before = before or text
        self._title, self._wrong = title, wrong
        self._warned = self._answered = False
        self._draft = draft
        self._later: Timer | None = None
        left = draft.left(self._before) if draft is not None and wrong is None else None
        if left is not None and left.text != text:
            text, self._wrong = left.text, Wrong(_LEFT_OLDER if left.older else _LEFT)
        elif draft is not None and draft.beside and wrong is None:
            self._wrong = Wrong(_BESIDE)
        self.area = TextArea(text, soft_wrap=False, show_line_numbers=True, tab_behavior=self.TAB, compact=True)

    async def check(self, text: str) -> Wrong | None:
        """What is wrong with the text, if anything."""
        return None

    def compose(self) -> ComposeResult:
        with Vertical(id="box", classes="editor") as box:
            box.border_title = self._title
            box.border_subtitle = "ctrl+s accepts, ctrl+z undoes, ctrl+c goes back"
            yield self.area
            yield Static("", id="note")

    def on_mount(self) -> None:
        area = self.area
        area.cursor_blink = False
        area.indent_width = 2
        self.query_one("#note").styles.height = self.NOTE_LINES
        area.focus()
        if self._wrong is not None:
            self.show_wrong(self._wrong)

    def note(self, lines: list[Cells]) -> None:
        """Say something under the text."""
        from rich.text import Text

        look = look_of(self.app.theme)
        told = Text("\n").join(Text.assemble(*((text, look.style(role)) for text, role in line)) for line in lines)
        self.query_one("#note", Static).update(told)

    def show_wrong(self, wrong: Wrong) -> None:
        """Put the cursor where the text is wrong, and say why."""
        if wrong.line >= 0:
            self.area.move_cursor((wrong.line, wrong.column), center=True)
        self.note([[("[!] ", "bad"), (wrong.message, "text")]])

    def action_accept(self) -> None:
        self._accept()

    @work(exclusive=True, group="accept")
    async def _accept(self) -> None:
        text = self.area.text
        self.note([[("checking", "accent")]])
        wrong = await self.check(text)
        if wrong is None:
            self._answer(text)
        else:
            self.show_wrong(wrong)

    def action_leave(self) -> None:
        """Go back; what has been typed is thrown away only when this is asked for twice."""
        if self.area.text == self._before or self._warned:
            self._answer(None)
        else:
            self._warned = True
            self.note([[("[?] ", "warn"), ("the text has been changed: ctrl+c once more throws that away", "text")]])

    def on_text_area_changed(self) -> None:
        self._warned = False
        if self._later is not None:
            self._later.stop()
        if self._draft is not None:
            self._later = self.set_timer(DRAFT_SECONDS, self._keep)

    # ---- what is typed -------------------------------------------------------------------------------------------

    def _keep(self) -> None:
        """Keep what has been typed; where it cannot be, that is said under it."""
        if self._draft is not None and not self._answered:
            if self.area.text == self._before:
                self._draft.drop()
            elif problem := self._draft.keep(self.area.text, self._before):
                self.note([[("[!] ", "bad"), (problem, "text")]])

    def _answer(self, text: str | None) -> None:
        """Close, with the text that is accepted or without: either way nothing is left to be kept."""
        self._answered = True
        if self._draft is not None:
            self._draft.drop()
            self._draft.close()
        self.dismiss(text)

    def on_unmount(self) -> None:
        """The workbench is left while the editor is open."""
        if self._draft is not None and not self._answered:
            if self.area.text != self._before:
                self._draft.keep(self.area.text, self._before)
            self._draft.close()
