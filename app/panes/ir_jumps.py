"""Jumps in the IR pane: to lines of any stage, back and forward, and to bookmarks."""

from __future__ import annotations

from typing import Any

from buddy.app.panes.context import WorkbenchContext
from buddy.app.panes.ir_document import IrDocument, IrView
from buddy.app.panes.ir_stages import IrStages
from buddy.app.reports.text.search_hits import Pattern
from buddy.app.session.stages import StagePosition
from buddy.app.workspace.session_file import Bookmark


class JumpHistory:
    """The jump list, with back and forward, within a stage and across stages."""

    def __init__(self) -> None:
        self._back: list[StagePosition] = []
        self._forward: list[StagePosition] = []

    def leave(self, place: StagePosition) -> None:
        """Add the position before a jump."""
        self._back.append(place)
        self._forward.clear()

    def back(self, here: StagePosition) -> StagePosition | None:
        """The position before the last jump."""
        return self._move(self._back, self._forward, here)

    def forward(self, here: StagePosition) -> StagePosition | None:
        """The position from which the user went back."""
        return self._move(self._forward, self._back, here)

    @staticmethod
    def _move(source: list[StagePosition], other: list[StagePosition], here: StagePosition) -> StagePosition | None:
        if not source:
            return None
        other.append(here)
        return source.pop()


class IrJumps:
    """Moves the cursor of the IR pane to lines, and remembers where it was."""

    def __init__(self, context: WorkbenchContext, view: IrView, document: IrDocument, stages: IrStages) -> None:
        self._context, self._view, self._document, self._stages = context, view, document, stages
        self._history = JumpHistory()

    def clear(self) -> None:
        """Forget the positions in the stages of another graph."""
        self._history = JumpHistory()

    # ---- lines ---------------------------------------------------------------------------------------------------

    @property
    def _here(self) -> StagePosition | None:
        key = self._stages.key
        return StagePosition(key, self._view.line_number) if key is not None else None

    def go_to(self, line: int) -> None:
        """Jump to a line of this stage."""
        self._leave()
        self._view.center(self._view.row_of(line))

    def go_from_here(self, place: StagePosition) -> None:
        """Jump to a line of any stage."""
        self._leave()
        self._show(place)

    def _leave(self) -> None:
        if self._here is not None:
            self._history.leave(self._here)

    def _show(self, place: StagePosition) -> None:
        row, stage = self._stages.find(place.key), self._stages.stage
        if row is None:
            self._context.say(f"there is no stage {place.key[0]} any more")
        elif place.key == self._stages.key and stage is not None and self._document.text == stage.text:
            self._view.center(self._view.row_of(place.line))
        else:
            self._view.show_line(row, place.line)

    def go_back(self) -> None:
        """Return to the position before the last jump."""
        self._travel(self._history.back(self._here) if self._here is not None else None)

    def go_forward(self) -> None:
        """Return to the position from which the user went back."""
        self._travel(self._history.forward(self._here) if self._here is not None else None)

    def _travel(self, place: StagePosition | None) -> None:
        if place is None:
            self._context.say("no further jumps")
        else:
            self._show(place)

    def ask_line(self) -> None:
        """Ask for a line number, and jump to that line."""
        self._context.dialogs.ask("line", "", self._go_to_number)

    def _go_to_number(self, text: str) -> None:
        number = text.strip().replace(",", "")
        if number.isdecimal():
            self.go_to(max(0, min(int(number[:9]), self._document.lines) - 1))
        elif number:
            self._context.say(f"{text.strip()!r} is not a line number")

    # ---- bookmarks -----------------------------------------------------------------------------------------------

    def toggle_bookmark(self) -> None:
        """Set or remove a bookmark on the cursor's line."""
        row, key = self._view.cursor, self._stages.key
        line, number = self._document.line_at(row), self._document.own_line(row)
        if line is None or number < 0 or key is None:
            return
        mark = Bookmark(self._context.state.graph, key, number, line.text.strip())
        added = self._context.bookmarks.toggle(mark)
        self._context.say("bookmarked: ' lists bookmarks" if added else "bookmark removed")
        self._view.refresh_row(row)

    def has_bookmark(self, number: int) -> bool:
        """Whether a line of the chosen stage has a bookmark."""
        marks = self._context.bookmarks
        return bool(marks.marks) and number in marks.lines_of(self._context.state.graph, self._stages.key)

    def open_bookmarks(self) -> None:
        """List the bookmarks of the graph, and go to the chosen one."""
        from buddy.app.screens.picker import PickerChoice, PickerScreen

        marks = [mark for mark in self._context.bookmarks.marks if mark.graph == self._context.state.graph]
        if not marks:
            self._context.say("no bookmarks: M sets one")
            return
        choices: list[Any] = [PickerChoice(f"{mark.key[0]}:{mark.line + 1}", mark.text, mark) for mark in marks]
        self._context.dialogs.open(PickerScreen("Bookmarks", choices), self._bookmark_chosen)

    def _bookmark_chosen(self, mark: Bookmark | None) -> None:
        if mark is not None:
            self._context.jobs.begin("ir-search", self._go_to_bookmark, mark)

    async def _go_to_bookmark(self, mark: Bookmark) -> None:
        """Jump to the line with the bookmarked text; if an edit has moved it, to the nearest line with that text."""
        row = self._stages.find(mark.key)
        if row is None:
            self._context.say(f"there is no stage {mark.key[0]} now")
            return
        pattern = Pattern(mark.text, mark.text, regex=False)
        found = await self._context.queries.search(row.stage.text, pattern) if mark.text else None
        lines = found.lines if found is not None and found.lines else (mark.line,)
        self.go_from_here(StagePosition(mark.key, min(lines, key=lambda line: abs(line - mark.line))))
