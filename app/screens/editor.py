"""Editors that validate their text: one for the pipeline, one for the IR of a stage."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal, NamedTuple

from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.timer import Timer
from textual.widgets import Static, TextArea
from textual.widgets.text_area import Selection

from buddy.app.reports import formatting
from buddy.app.reports.text.search_hits import Pattern
from buddy.app.screens.modal import AnsweringScreen
from buddy.app.session.requests import Requester
from buddy.app.session.session import Session
from buddy.app.widgets.look import Cells, look_of
from buddy.app.widgets.prompt import Prompt
from buddy.app.widgets.search import FoundLines, ViewSearch
from buddy.app.workspace.pipeline_text import Completion, PipelineError, check_pipeline, completions, parse_pipeline
from buddy.app.workspace.recipe_files import EditorDraft
from buddy.compiler.protocol import CheckIr, PassInfo

# The draft is saved when the text has not changed for this many seconds.
DRAFT_SECONDS = 0.5
_RESTORED_TEXT = "restored from the last session; press ctrl+c twice to discard it"
_RESTORED_OUTDATED_TEXT = "restored, but the initial text was different; press ctrl+c twice to discard it"
_ALSO_OPEN_TEXT = "another workbench has this editor open, too; each saves its own draft"


class TextProblem(NamedTuple):
    """An error in a text. Line and column start at 0; -1 means unknown."""

    message: str
    line: int = -1
    column: int = 0


class SearchedTextArea:
    """The text of an editor as a `SearchedView`.

    `ViewSearch` steps from line to line, but the user of an editor from match to match, also in one line. So the
    "lines" here are positions among the matches: match k is line 2k + 1, and a cursor between the matches k - 1 and k
    is on line 2k. `report` shows the state of the search.
    """

    def __init__(self, area: TextArea, report: Callable[[str], object]) -> None:
        self._area, self._report = area, report
        # The row, the first column and the column after the end of each match.
        self._spans: list[tuple[int, int, int]] = []

    def find_lines(self, pattern: Pattern) -> FoundLines | None:
        compiled = pattern.compile()
        self._spans = [
            (row, *match.span())
            for row, line in enumerate(self._area.text.split("\n"))
            for match in compiled.finditer(line)
            if match.end() > match.start()
        ]
        return FoundLines([2 * index + 1 for index in range(len(self._spans))])

    async def request_lines(self, pattern: Pattern) -> FoundLines | None:
        raise NotImplementedError  # Not called, because `find_lines` returns the lines.

    @property
    def search_line(self) -> int:
        row, column = min(self._area.selection.start, self._area.selection.end)
        # The first match at the cursor or after it.
        index = bisect_left(self._spans, (row, column, 0))
        is_at_match = index < len(self._spans) and self._spans[index][:2] == (row, column)
        return 2 * index + is_at_match

    def preview_match(self, line: int) -> None:
        row, start, end = self._spans[line // 2]
        self._area.selection = Selection((row, start), (row, end))
        self._area.scroll_cursor_visible(center=True)

    def go_to_match(self, line: int) -> None:
        """Moves the cursor to a match, without selecting it: the next letter must not replace it."""
        row, start, _ = self._spans[line // 2]
        self._area.move_cursor((row, start), center=True)

    def reading_position(self) -> object:
        return self._area.selection, self._area.scroll_offset

    def restore_reading_position(self, position: Any) -> None:
        self._area.selection, offset = position
        self._area.scroll_to(offset.x, offset.y, animate=False, force=True)

    def redraw_matches(self) -> None:
        """A text area shows only the current match."""

    def report_search(self, text: str) -> None:
        self._report(text)


class EditorScreen(AnsweringScreen[str]):
    """Lets the user edit a text. Returns it when the user accepts it and `check` finds no error, `None` on escape.

    `problem` is shown when the editor opens. `original` is the text before any edit (default: `text`). The edited text
    is saved in `draft`. If the workbench exits before the editor closes, the next editor with that draft and without a
    `problem` restores the text.
    """

    # The height of the message under the text.
    NOTE_LINES: ClassVar[int] = 1
    TAB_BEHAVIOR: ClassVar[Literal["focus", "indent"]] = "indent"
    KEYS_TEXT: ClassVar[str] = "ctrl+s accepts, ctrl+z undoes, ctrl+f searches, escape goes back"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+s", "accept", "Accept", show=False, priority=True),
        Binding("ctrl+f", "search", "Search", show=False, priority=True),
        Binding("f3,ctrl+g", "step_search(1)", "Next match", show=False, priority=True),
        Binding("shift+f3", "step_search(-1)", "Previous match", show=False, priority=True),
    ]

    def __init__(
        self,
        title: str,
        text: str,
        problem: TextProblem | None = None,
        original: str = "",
        draft: EditorDraft | None = None,
    ) -> None:
        super().__init__()
        # `text` may have been edited before this screen opened: then closing it discards changes from the start.
        self._original = original or text
        self._title, self._problem = title, problem
        # Whether the user was warned, after the last change, that closing discards the changes.
        self._has_warned = False
        # Whether the user has closed the editor: not if the workbench exits.
        self._has_closed = False
        self._draft = draft
        self._draft_timer: Timer | None = None
        saved = draft.read_saved(self._original) if draft is not None and problem is None else None
        if saved is not None and saved.text != text:
            text = saved.text
            self._problem = TextProblem(_RESTORED_OUTDATED_TEXT if saved.is_outdated else _RESTORED_TEXT)
        elif draft is not None and draft.open_elsewhere and problem is None:
            self._problem = TextProblem(_ALSO_OPEN_TEXT)
        self.area = TextArea(
            text, soft_wrap=False, show_line_numbers=True, tab_behavior=self.TAB_BEHAVIOR, compact=True
        )
        self._search = ViewSearch(SearchedTextArea(self.area, self._show_search), self)

    async def check(self, text: str) -> TextProblem | None:
        """Returns the first error in the text, or `None`."""
        return None

    def compose(self) -> ComposeResult:
        with Vertical(id="box", classes="editor") as box:
            box.border_title = self._title
            box.border_subtitle = self.KEYS_TEXT
            yield self.area
            yield Static("", id="note")
            yield Prompt()

    def on_mount(self) -> None:
        area = self.area
        area.cursor_blink = False
        area.indent_width = 2
        self.query_one("#note").styles.height = self.NOTE_LINES
        area.focus()
        if self._problem is not None:
            self.show_problem(self._problem)

    def show_note(self, lines: list[Cells]) -> None:
        from rich.text import Text

        look = look_of(self.app.theme)
        note = Text("\n").join(Text.assemble(*((text, look.style(role)) for text, role in line)) for line in lines)
        self.query_one("#note", Static).update(note)

    def show_problem(self, problem: TextProblem) -> None:
        """Moves the cursor to the error, if its line is known, and shows the message."""
        if problem.line >= 0:
            self.area.move_cursor((problem.line, problem.column), center=True)
        self.show_note([[("[!] ", "bad"), (problem.message, "text")]])

    def action_accept(self) -> None:
        self._accept()

    @work(exclusive=True, group="accept")
    async def _accept(self) -> None:
        """Checks the text, then returns it or shows the error."""
        text = self.area.text
        self.show_note([[("checking", "accent")]])
        problem = await self.check(text)
        if problem is None:
            self._close_with(text)
        else:
            self.show_problem(problem)

    def close_unanswered(self) -> None:
        """Closes the editor without an answer. If the text has changed, warns, and closes on the second call."""
        if self.area.text == self._original or self._has_warned:
            self._close_with(None)
        else:
            self._has_warned = True
            self.show_note(
                [[("[?] ", "warn"), ("the text has changed: press ctrl+c again to discard the changes", "text")]]
            )

    # ---- search --------------------------------------------------------------------------------------------------

    def action_search(self) -> None:
        self._search.ask(self.query_one(Prompt))

    def action_step_search(self, by: int) -> None:
        self._search.step(by)

    def _show_search(self, text: str) -> None:
        """Shows the pattern and the count instead of the keys."""
        keys = ", f3 next, shift+f3 previous match" if self._search.matches.lines else ""
        self.query_one("#box").border_subtitle = f"{text}{keys}" if text else self.KEYS_TEXT

    def on_text_area_changed(self) -> None:
        self._search.text_replaced()
        self._has_warned = False
        if self._draft_timer is not None:
            self._draft_timer.stop()
        if self._draft is not None:
            self._draft_timer = self.set_timer(DRAFT_SECONDS, self._save_draft)

    # ---- drafts --------------------------------------------------------------------------------------------------

    def _save_draft(self) -> None:
        """Saves the text as a draft, or deletes the draft of an unchanged text. Shows a failure under the text."""
        if self._draft is not None and not self._has_closed:
            if self.area.text == self._original:
                self._draft.delete()
            elif problem := self._draft.save(self.area.text, self._original):
                self.show_note([[("[!] ", "bad"), (problem, "text")]])

    def _close_with(self, text: str | None) -> None:
        """Deletes the draft, and closes with `text` (`None`: the user goes back)."""
        self._has_closed = True
        if self._draft is not None:
            self._draft.delete()
            self._draft.close()
        self.dismiss(text)

    def on_unmount(self) -> None:
        """Saves the draft if the workbench exits while the editor is open."""
        if self._draft is not None and not self._has_closed:
            if self.area.text != self._original:
                self._draft.save(self.area.text, self._original)
            self._draft.close()


class IrEditor(EditorScreen):
    """An editor that accepts a module only if MLIR parses and verifies it. It opens at `line` (from 0)."""

    def __init__(
        self, session: Session, title: str, text: str, problem: TextProblem | None = None, original: str = "",
        draft: EditorDraft | None = None, line: int = 0,
    ) -> None:  # fmt: skip
        super().__init__(title, text, problem, original, draft)
        self._session, self._line = session, line

    def on_mount(self) -> None:
        """Moves the cursor to `line`. If the text has an error with a line, the cursor is there instead."""
        if self._problem is None or self._problem.line < 0:
            self.area.move_cursor((self._line, 0), center=True)

    async def check(self, text: str) -> TextProblem | None:
        return await check_module(self._session, text)


async def check_module(session: Session, text: str) -> TextProblem | None:
    """Returns the first error that MLIR's parser or verifier finds in the module `text`; `None` for a valid module.

    If the engine cannot check the module, returns the reason.
    """
    problems: list[str] = []
    check = await Requester(session, problems.append).request(CheckIr(0, text))
    if check is None:
        return TextProblem("".join(problems))
    return TextProblem(check.message, check.line - 1, max(check.column - 1, 0)) if check.message else None


# The number of completions that are shown at a time.
SHOWN_COMPLETIONS = 4


class PipelineScreen(EditorScreen):
    """The editor of the pipeline, with completion. Returns the text of a valid pipeline, or `None`."""

    NOTE_LINES = SHOWN_COMPLETIONS + 1
    KEYS_TEXT = "tab completes, ctrl+n ctrl+p choose, ctrl+s accepts, ctrl+f searches, escape goes back"
    # With "indent", the text area would consume tab before the binding.
    TAB_BEHAVIOR = "focus"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("tab", "complete", "Complete", show=False, priority=True),
        Binding("ctrl+n", "next_completion(1)", show=False, priority=True),
        Binding("ctrl+p", "next_completion(-1)", show=False, priority=True),
    ]

    def __init__(self, text: str, catalogue: Sequence[PassInfo], draft: EditorDraft | None = None) -> None:
        super().__init__("Pipeline", text, draft=draft)
        self._catalogue = catalogue
        self._completions: list[Completion] = []
        self._completion_index = 0

    def on_mount(self) -> None:
        self._update_note()

    async def check(self, text: str) -> TextProblem | None:
        error = self._find_error(text)
        return TextProblem(error.message, *_line_and_column(text, error.offset)) if error else None

    def _find_error(self, text: str) -> PipelineError | None:
        """Returns the first error in the text of a pipeline, or `None`."""
        try:
            check_pipeline(parse_pipeline(text), self._catalogue)
        except PipelineError as error:
            return error
        return None

    # ---- messages while typing -----------------------------------------------------------------------------------

    def on_text_area_changed(self) -> None:
        self._completion_index = 0
        self._update_note()

    def on_text_area_selection_changed(self) -> None:
        self._update_note()

    def _update_note(self) -> None:
        """Shows the first error, or the number of passes, and the completions of the word at the cursor."""
        text, offset = self.area.text, self._offset
        error = self._find_error(text)
        if error is None:
            steps = parse_pipeline(text)
            n_disabled = sum(not step.enabled for step in steps)
            disabled_text = f", {n_disabled} disabled" if n_disabled else ""
            status: Cells = [("[x] ", "ok"), (f"{len(steps) - n_disabled} passes{disabled_text}", "text")]
        else:
            line, _ = _line_and_column(text, error.offset)
            status = [("[!] ", "bad"), (f"line {line + 1}: {error.message}", "text")]
        start, self._completions = completions(text, offset, self._catalogue)
        typed_word = text[start:offset]
        # Show all options after "{", but no passes before the user has typed a character of a name.
        has_prefix = bool(typed_word) or text[max(0, start - 1) : start] == "{"
        is_complete = any(completion.word == typed_word for completion in self._completions)
        self.show_note([status, *(self._completion_lines() if has_prefix and not is_complete else [])])

    def _completion_lines(self) -> list[Cells]:
        """Returns the completions around the chosen one, one per line, each with its summary."""
        first = max(0, min(self._completion_index - 1, len(self._completions) - SHOWN_COMPLETIONS))
        width = self.area.size.width
        lines: list[Cells] = []
        for index, completion in enumerate(self._completions[first : first + SHOWN_COMPLETIONS], first):
            mark = ">" if index == self._completion_index else " "
            summary = formatting.clip(completion.summary, max(width - len(completion.word) - 6, 0), formatting.UNICODE)
            lines.append([(f" {mark} ", "key"), (completion.word, "accent"), (f"  {summary}", "dim")])
        return lines

    @property
    def _offset(self) -> int:
        """The offset of the cursor in the text, in characters."""
        row, column = self.area.cursor_location
        return sum(len(line) + 1 for line in self.area.text.split("\n")[:row]) + column

    # ---- completion ----------------------------------------------------------------------------------------------

    def action_next_completion(self, by: int) -> None:
        if self._completions:
            self._completion_index = (self._completion_index + by) % len(self._completions)
            self._update_note()

    def action_complete(self) -> None:
        """Inserts the chosen completion, unless the search has focus."""
        if self.focused is not self.area:
            return
        text, offset = self.area.text, self._offset
        start, candidates = completions(text, offset, self._catalogue)
        if candidates:
            word = candidates[min(self._completion_index, len(candidates) - 1)].word
            self.area.replace(word, _line_and_column(text, start), _line_and_column(text, offset))


def _line_and_column(text: str, offset: int) -> tuple[int, int]:
    """Returns the line and the column of a character offset; all three start at 0."""
    preceding = text[:offset]
    return preceding.count("\n"), offset - (preceding.rfind("\n") + 1)
