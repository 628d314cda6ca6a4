"""Jumps in the IR pane: to lines, to earlier and later positions, to bookmarks, and to matches in all stages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from buddy.app.actions import key_of
from buddy.app.panes.context import WorkbenchContext
from buddy.app.panes.ir_document import IrDocument, IrView
from buddy.app.panes.ir_stages import IrStages
from buddy.app.reports.text.search_hits import (
    Pattern,
    StageHits,
    first_and_last_text,
    pattern_error,
    read_pattern,
    stages_with_hits,
)
from buddy.app.session.stages import StagePosition, StageRow
from buddy.app.widgets.search import ViewSearch
from buddy.app.workspace.session_file import Bookmark
from buddy.compiler.protocol import Progress


class JumpHistory:
    """The positions that the user can go back to and forward to. They may be in different stages."""

    def __init__(self) -> None:
        self._back: list[StagePosition] = []
        self._forward: list[StagePosition] = []

    def add(self, position: StagePosition) -> None:
        """Adds the position before a jump, and discards the positions to go forward to."""
        self._back.append(position)
        self._forward.clear()

    def go_back(self, current: StagePosition) -> StagePosition | None:
        """Returns the position before the last jump, if any, and records `current`, the cursor's position.

        The next `go_forward` returns `current`.
        """
        return self._move(self._back, self._forward, current)

    def go_forward(self, current: StagePosition) -> StagePosition | None:
        """Returns the position from which the user went back, if any. The next `go_back` returns `current`."""
        return self._move(self._forward, self._back, current)

    @staticmethod
    def _move(source: list[StagePosition], target: list[StagePosition], current: StagePosition) -> StagePosition | None:
        """Removes and returns the last position of `source`, and adds `current` to `target`."""
        if not source:
            return None
        target.append(current)
        return source.pop()


class IrJumps:
    """Moves the cursor of the IR pane to lines, and records the positions before jumps."""

    def __init__(self, context: WorkbenchContext, view: IrView, document: IrDocument, stages: IrStages) -> None:
        self._context, self._view, self._document, self._stages = context, view, document, stages
        self._history = JumpHistory()

    def clear(self) -> None:
        """Discards the history, whose positions belong to the stages of the previous graph."""
        self._history = JumpHistory()

    # ---- lines ---------------------------------------------------------------------------------------------------

    @property
    def _current_position(self) -> StagePosition | None:
        """The position of the cursor; `None` without a chosen stage."""
        key = self._stages.chosen_key
        return StagePosition(key, self._view.line_number) if key is not None else None

    def go_to(self, line: int) -> None:
        """Jumps to a line of the chosen stage."""
        self._record_position()
        self._view.center(self._view.row_of(line))

    def go_to_position(self, position: StagePosition) -> None:
        """Jumps to a line of any stage."""
        self._record_position()
        self._show(position)

    def _record_position(self) -> None:
        if self._current_position is not None:
            self._history.add(self._current_position)

    def _show(self, position: StagePosition) -> None:
        """Moves the cursor to a position; if it is in another stage, shows that stage."""
        row, stage = self._stages.find(position.key), self._stages.chosen_stage
        if row is None:
            self._context.say(f"stage {position.key[0]} no longer exists")
        elif position.key == self._stages.chosen_key and stage is not None and self._document.text == stage.text:
            self._view.center(self._view.row_of(position.line))
        else:
            self._view.show_line(row, position.line)

    def go_back(self) -> None:
        """Returns to the position before the last jump."""
        current = self._current_position
        self._go_to_recorded(self._history.go_back(current) if current is not None else None)

    def go_forward(self) -> None:
        """Returns to the position from which the user went back."""
        current = self._current_position
        self._go_to_recorded(self._history.go_forward(current) if current is not None else None)

    def _go_to_recorded(self, position: StagePosition | None) -> None:
        if position is None:
            self._context.say("no further position in the jump history")
        else:
            self._show(position)

    def ask_line(self) -> None:
        self._context.dialogs.ask("line", "", self._go_to_number)

    def _go_to_number(self, text: str) -> None:
        """Jumps to the line with the typed number, counted from 1, or to the last line if there are fewer."""
        number = text.strip().replace(",", "")
        if number.isdecimal():
            # `int` rejects numbers with thousands of digits. 9 digits suffice for the lines of any text.
            self.go_to(max(0, min(int(number[:9]), self._document.line_count) - 1))
        elif number:
            self._context.say(f"{text.strip()!r} is not a line number")

    # ---- bookmarks -----------------------------------------------------------------------------------------------

    def toggle_bookmark(self) -> None:
        row, key = self._view.cursor, self._stages.chosen_key
        line, number = self._document.line_at(row), self._document.own_line(row)
        if line is None or number < 0 or key is None:
            return
        bookmark = Bookmark(self._context.state.graph, key, number, line.text.strip())
        was_added = self._context.bookmarks.toggle(bookmark)
        self._context.say(
            f"bookmark set: {key_of('ir.bookmarks')} lists bookmarks" if was_added else "bookmark removed"
        )
        self._view.refresh_row(row)

    def has_bookmark(self, number: int) -> bool:
        bookmarks = self._context.bookmarks
        return bool(bookmarks.marks) and number in bookmarks.lines_of(
            self._context.state.graph, self._stages.chosen_key
        )

    def open_bookmarks(self) -> None:
        """Lists the bookmarks of the graph, and goes to the chosen one."""
        from buddy.app.screens.picker import PickerChoice, PickerScreen

        marks = [mark for mark in self._context.bookmarks.marks if mark.graph == self._context.state.graph]
        if not marks:
            self._context.say(f"no bookmarks: {key_of('ir.bookmark')} sets one")
            return
        choices: list[Any] = [PickerChoice(f"{mark.key[0]}:{mark.line + 1}", mark.text, mark) for mark in marks]
        self._context.dialogs.open(PickerScreen("Bookmarks", choices), self._begin_going_to_bookmark)

    def _begin_going_to_bookmark(self, mark: Bookmark | None) -> None:
        if mark is not None:
            self._context.jobs.begin("ir-search", self._go_to_bookmark, mark)

    async def _go_to_bookmark(self, mark: Bookmark) -> None:
        """Jumps to the bookmark. If an edit has moved its line, jumps to the nearest line with the same text."""
        row = self._stages.find(mark.key)
        if row is None:
            self._context.say(f"stage {mark.key[0]} no longer exists")
            return
        pattern = Pattern(mark.text, mark.text, regex=False)
        result = await self._context.queries.search(row.stage.text, pattern) if mark.text else None
        lines = result.lines if result is not None and result.lines else (mark.line,)
        self.go_to_position(StagePosition(mark.key, min(lines, key=lambda line: abs(line - mark.line))))


# ---- search of all stages --------------------------------------------------------------------------------------------


class StageSearch:
    """Searches all stages. `running` is true during a search. `search` is the search of the chosen stage."""

    def __init__(self, context: WorkbenchContext, stages: IrStages, jumps: IrJumps, search: ViewSearch) -> None:
        self._context, self._stages, self._jumps, self._search = context, stages, jumps, search
        self.running = False

    def ask_search_all(self) -> None:
        """Asks for a pattern, and lists the stages with matches and their matching lines."""
        self._context.dialogs.ask(
            "search all stages",
            self._search.matches.pattern.typed,
            lambda text: self._context.jobs.begin_opening("ir-search", self._find_all, read_pattern(text)),
        )

    def ask_first(self) -> None:
        """Asks for a pattern, and goes to the first line that matches it in the first stage with matches."""
        self._context.dialogs.ask(
            "first stage with",
            self._search.matches.pattern.typed,
            lambda text: self._context.jobs.begin("ir-search", self._find_first, read_pattern(text)),
        )

    async def _find_all(self, pattern: Pattern) -> None:
        rows, stages = await self._search_all_stages(pattern)
        if stages:
            self.list_results(pattern.typed, first_and_last_text(rows, stages), stages)

    async def _find_first(self, pattern: Pattern) -> None:
        rows, stages = await self._search_all_stages(pattern)
        if stages:
            self._context.layout.show_pane("ir")
            self._jumps.go_to_position(StagePosition(stages[0].row.key, stages[0].hits.lines[0]))
            self._context.say(f"{pattern.typed}: {first_and_last_text(rows, stages)}")

    async def _search_all_stages(self, pattern: Pattern) -> tuple[Sequence[StageRow], list[StageHits]]:
        """Searches all stages. Returns all stages, and the stages with matches; both are empty for an invalid pattern.

        Shows the progress, and a message if no stage has a match. Highlights the matches in the chosen stage.
        """
        if not pattern.source:
            return (), []
        if reason := pattern_error(pattern):
            self._context.say(reason)
            return (), []
        rows = list(self._stages.rows)
        self.running = True
        self._context.say(
            f"searching {len(rows)} stages{self._context.glyphs.ellipsis} press {key_of('cancel')} to cancel"
        )
        try:
            texts = [row.stage.text for row in rows]
            result = await self._context.queries.search_each(texts, pattern, self._show_progress)
        finally:
            self.running = False
        stages = stages_with_hits(rows, result.hits) if result is not None else []
        if result is not None:
            self._context.say("" if stages else f"{pattern.typed!r} is in no stage")
        if stages:
            self._search.highlight(pattern)
        return rows, stages

    def _show_progress(self, frame: Progress) -> None:
        self._context.say(f"{frame.activity}: press {key_of('cancel')} to cancel")

    def list_results(self, title: str, summary: str, stages: Sequence[StageHits]) -> None:
        """Lists the matching lines of `stages` under `title` and `summary`, and goes to the chosen line."""
        from buddy.app.screens.stage_lists import SearchResultsScreen

        self._context.dialogs.open(SearchResultsScreen(title, summary, stages), self._show_result)

    def _show_result(self, position: StagePosition | None) -> None:
        if position is not None:
            self._context.layout.show_pane("ir")
            self._jumps.go_to_position(position)
