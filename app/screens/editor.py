"""Text editors with validation: the pipeline, and the IR of a stage."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal, NamedTuple

from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.timer import Timer
from textual.widgets import Static, TextArea

from buddy.app.reports import formatting
from buddy.app.screens.modal import AnsweringScreen
from buddy.app.session.requests import Requester
from buddy.app.session.session import Session
from buddy.app.widgets.look import Cells, look_of
from buddy.app.workspace.files import EditorDraft
from buddy.app.workspace.pipeline_text import Completion, PipelineError, check_pipeline, completions, parse
from buddy.compiler.protocol import CheckIr, PassInfo

# Seconds without a key after which the draft is saved.
DRAFT_SECONDS = 0.5
_RESTORED = "restored from the last session; press ctrl+c twice to discard it"
_RESTORED_OLDER = "restored, but the text was different then; press ctrl+c twice to discard it"
_ALSO_OPEN = "another workbench has this editor open too; its input is kept separately"


class TextProblem(NamedTuple):
    """An error in a text. Line and column start at 0; -1 means unknown."""

    message: str
    line: int = -1
    column: int = 0


class EditorScreen(AnsweringScreen[str]):
    """Returns the text when the user accepts it and `check` finds no error, `None` when the user goes back.

    Until then the input is saved in `draft`, and restored if the workbench exits in between.
    """

    NOTE_LINES: ClassVar[int] = 1
    TAB: ClassVar[Literal["focus", "indent"]] = "indent"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+s", "accept", "Accept", show=False, priority=True),
        Binding("escape,ctrl+c", "leave", "Cancel", show=False, priority=True),
    ]

    def __init__(
        self,
        title: str,
        text: str,
        wrong: TextProblem | None = None,
        before: str = "",
        draft: EditorDraft | None = None,
    ) -> None:
        super().__init__()
        # A text edited before this screen opened needs confirmation to be discarded, too.
        self._original = before or text
        self._title, self._wrong = title, wrong
        self._warned = self._answered = False
        self._draft = draft
        self._draft_timer: Timer | None = None
        left = draft.read_saved(self._original) if draft is not None and wrong is None else None
        if left is not None and left.text != text:
            text, self._wrong = left.text, TextProblem(_RESTORED_OLDER if left.is_outdated else _RESTORED)
        elif draft is not None and draft.open_elsewhere and wrong is None:
            self._wrong = TextProblem(_ALSO_OPEN)
        self.area = TextArea(text, soft_wrap=False, show_line_numbers=True, tab_behavior=self.TAB, compact=True)

    async def check(self, text: str) -> TextProblem | None:
        """The first error in the text, or `None`."""
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
        """Show a message under the text."""
        from rich.text import Text

        look = look_of(self.app.theme)
        told = Text("\n").join(Text.assemble(*((text, look.style(role)) for text, role in line)) for line in lines)
        self.query_one("#note", Static).update(told)

    def show_wrong(self, wrong: TextProblem) -> None:
        """Move the cursor to the error, and show its message."""
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
            self._close_with(text)
        else:
            self.show_wrong(wrong)

    def action_leave(self) -> None:
        """Go back. A changed text is discarded only on the second call."""
        if self.area.text == self._original or self._warned:
            self._close_with(None)
        else:
            self._warned = True
            self.note([[("[?] ", "warn"), ("the text has changed: press ctrl+c again to discard the changes", "text")]])

    def on_text_area_changed(self) -> None:
        self._warned = False
        if self._draft_timer is not None:
            self._draft_timer.stop()
        if self._draft is not None:
            self._draft_timer = self.set_timer(DRAFT_SECONDS, self._save_draft)

    # ---- drafts --------------------------------------------------------------------------------------------------

    def _save_draft(self) -> None:
        """Save the input as a draft. A failure is shown under the text."""
        if self._draft is not None and not self._answered:
            if self.area.text == self._original:
                self._draft.delete()
            elif problem := self._draft.save(self.area.text, self._original):
                self.note([[("[!] ", "bad"), (problem, "text")]])

    def _close_with(self, text: str | None) -> None:
        """Close with the accepted text, or `None`, and delete the draft."""
        self._answered = True
        if self._draft is not None:
            self._draft.delete()
            self._draft.close()
        self.dismiss(text)

    def on_unmount(self) -> None:
        """Save the draft if the workbench exits while the editor is open."""
        if self._draft is not None and not self._answered:
            if self.area.text != self._original:
                self._draft.save(self.area.text, self._original)
            self._draft.close()


class IrEditor(EditorScreen):
    """An editor that accepts a module only if MLIR parses and verifies it."""

    def __init__(
        self, session: Session, title: str, text: str, wrong: TextProblem | None = None, before: str = "",
        draft: EditorDraft | None = None,
    ) -> None:  # fmt: skip
        super().__init__(title, text, wrong, before, draft)
        self._session = session

    async def check(self, text: str) -> TextProblem | None:
        return await check_module(self._session, text)


async def check_module(session: Session, text: str) -> TextProblem | None:
    """The first error that MLIR's parser or verifier finds in a module, or `None`."""
    problems: list[str] = []
    found = await Requester(session, problems.append).request(CheckIr(0, text))
    if found is None:
        return TextProblem("".join(problems))
    return TextProblem(found.message, found.line - 1, max(found.column - 1, 0)) if found.message else None


SHOWN = 4


class PipelineScreen(EditorScreen):
    """Returns the text of a valid pipeline, or `None`."""

    NOTE_LINES = SHOWN + 1
    # With "indent", the text area would consume tab before the binding.
    TAB = "focus"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("tab", "complete", "Complete", show=False, priority=True),
        Binding("ctrl+n", "turn(1)", show=False, priority=True),
        Binding("ctrl+p", "turn(-1)", show=False, priority=True),
    ]

    def __init__(self, text: str, catalogue: Sequence[PassInfo], draft: EditorDraft | None = None) -> None:
        super().__init__("Pipeline", text, draft=draft)
        self._catalogue = catalogue
        self._candidates: list[Completion] = []
        self._chosen = 0

    def on_mount(self) -> None:
        self.query_one("#box").border_subtitle = "tab completes, ctrl+n ctrl+p choose, ctrl+s accepts, ctrl+c goes back"
        self._update_note()

    async def check(self, text: str) -> TextProblem | None:
        error = self._error(text)
        return TextProblem(error.message, *_place(text, error.offset)) if error else None

    def _error(self, text: str) -> PipelineError | None:
        try:
            check_pipeline(parse(text), self._catalogue)
        except PipelineError as error:
            return error
        return None

    # ---- messages while typing -----------------------------------------------------------------------------------

    def on_text_area_changed(self) -> None:
        self._chosen = 0
        self._update_note()

    def on_text_area_selection_changed(self) -> None:
        self._update_note()

    def _update_note(self) -> None:
        """Show the first error, or the number of passes, and the completions of the word at the cursor."""
        text, offset = self.area.text, self._offset
        error = self._error(text)
        if error is None:
            items = parse(text)
            off = sum(not item.enabled for item in items)
            state: Cells = [("[x] ", "ok"), (f"{len(items) - off} passes" + f", {off} off" * bool(off), "text")]
        else:
            line, _ = _place(text, error.offset)
            state = [("[!] ", "bad"), (f"line {line + 1}: {error.message}", "text")]
        start, self._candidates = completions(text, offset, self._catalogue)
        typed = offset > start or text[max(0, start - 1) : start] == "{"
        whole = any(candidate.word == text[start:offset] for candidate in self._candidates)
        self.note([state, *(self._completion_lines() if typed and not whole else [])])

    def _completion_lines(self) -> list[Cells]:
        first = max(0, min(self._chosen - 1, len(self._candidates) - SHOWN))
        width = self.area.size.width
        lines: list[Cells] = []
        for k, candidate in enumerate(self._candidates[first : first + SHOWN], first):
            mark = ">" if k == self._chosen else " "
            summary = formatting.clip(candidate.summary, max(width - len(candidate.word) - 6, 0), formatting.UNICODE)
            lines.append([(f" {mark} ", "key"), (candidate.word, "accent"), (f"  {summary}", "dim")])
        return lines

    @property
    def _offset(self) -> int:
        row, column = self.area.cursor_location
        return sum(len(line) + 1 for line in self.area.text.split("\n")[:row]) + column

    # ---- completion ----------------------------------------------------------------------------------------------

    def action_turn(self, by: int) -> None:
        if self._candidates:
            self._chosen = (self._chosen + by) % len(self._candidates)
            self._update_note()

    def action_complete(self) -> None:
        """Insert the chosen completion."""
        text, offset = self.area.text, self._offset
        start, found = completions(text, offset, self._catalogue)
        if found:
            word = found[min(self._chosen, len(found) - 1)].word
            self.area.replace(word, _place(text, start), _place(text, offset))


def _place(text: str, offset: int) -> tuple[int, int]:
    """The line and column of a character offset, starting at 0."""
    before = text[:offset]
    return before.count("\n"), offset - (before.rfind("\n") + 1)
