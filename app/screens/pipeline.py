"""An editor for the pipeline as text, with error messages and completions from the catalogue."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual.binding import Binding, BindingType

from buddy.app.reports import formatting
from buddy.app.screens.editor import EditorScreen, TextProblem
from buddy.app.widgets.look import Cells
from buddy.app.workspace.drafts import EditorDraft
from buddy.app.workspace.pipeline_text import Completion, PipelineError, check_pipeline, completions, parse
from buddy.compiler.protocol import PassInfo

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
