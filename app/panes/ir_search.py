"""Search in the IR pane: in the chosen stage and in all stages."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from buddy.app.panes.context import WorkbenchContext
from buddy.app.panes.ir_comparison import IrComparison
from buddy.app.panes.ir_document import IrDocument, IrView
from buddy.app.panes.ir_jumps import IrJumps
from buddy.app.panes.ir_stages import IrStages
from buddy.app.reports.text.search_hits import (
    NOTHING,
    Pattern,
    StageHits,
    first_and_last_text,
    read_pattern,
    stages_with_hits,
)
from buddy.app.session.stages import StagePosition, StageRow
from buddy.app.widgets.look import Cells
from buddy.compiler.protocol.texts import PatternError


class Matches:
    """The lines with matches of a pattern, in order."""

    def __init__(self) -> None:
        self.pattern = NOTHING
        self.lines: list[int] = []
        self._set: set[int] = set()
        self._more = False

    def __contains__(self, line: int) -> bool:
        return line in self._set

    def clear(self, pattern: Pattern | None = None) -> None:
        """Clear the lines, and set the pattern if one is given."""
        self.pattern = self.pattern if pattern is None else pattern
        self.set_lines((), False)

    def set_lines(self, lines: Sequence[int], more: bool) -> None:
        """Set the lines; `more` means that the search has stopped at its limit."""
        self.lines, self._set, self._more = list(lines), set(lines), more

    def at_or_after(self, line: int) -> int | None:
        """The first match at or after `line`, wrapping around at the end."""
        if not self.lines:
            return None
        place = bisect_left(self.lines, line)
        return self.lines[place % len(self.lines)]

    def before(self, line: int) -> int | None:
        """The last match before `line`, wrapping around at the start."""
        return self.lines[bisect_left(self.lines, line) - 1] if self.lines else None

    def position_text(self, line: int) -> str:
        """The position of a line among the matches: `match 2 of 7`."""
        place = bisect_left(self.lines, line) + 1
        return f"match {place} of {len(self.lines)}{'+' if self._more else ''}"

    def highlight(self, cells: Cells) -> Cells:
        """`cells` with matches in the role `match`."""
        text = "".join(part for part, _ in cells)
        inside = {k for found in self.pattern.compile().finditer(text) for k in range(*found.span())}
        if not inside:
            return cells
        marked: Cells = []
        place = 0
        for part, role in cells:
            for character in part:
                wanted = "match" if place in inside else role
                if marked and marked[-1][1] == wanted:
                    marked[-1] = (marked[-1][0] + character, wanted)
                else:
                    marked.append((character, wanted))
                place += 1
        return marked


class IrSearch:
    """Searches stages for a pattern. `running` is true while all stages are searched."""

    def __init__(
        self,
        context: WorkbenchContext,
        view: IrView,
        document: IrDocument,
        stages: IrStages,
        jumps: IrJumps,
        comparison: IrComparison,
    ) -> None:
        self._context, self._view, self._document = context, view, document
        self._stages, self._jumps, self._comparison = stages, jumps, comparison
        self.matches = Matches()
        self.running = False

    # ---- in the chosen stage -------------------------------------------------------------------------------------

    def ask_pattern(self) -> None:
        """Ask for a pattern, and go to its first match from the cursor on."""
        self._context.dialogs.ask(
            "search", self.matches.pattern.typed, lambda text: self.find(read_pattern(text), jump=True)
        )

    def find(self, pattern: Pattern, *, jump: bool) -> None:
        """Search the stage, and `jump` to the first match; an empty pattern ends the search."""
        self._context.jobs.begin("ir-search", self._find, pattern, jump)

    def repeat(self) -> None:
        """Search another stage for the same pattern."""
        if self.matches.pattern.source:
            self.find(self.matches.pattern, jump=False)

    async def _find(self, pattern: Pattern, jump: bool) -> None:
        self.matches.clear(pattern)
        if pattern.source and not await self._collect(pattern):
            return
        self._view.refresh()
        if not pattern.source:
            return
        if not self.matches.lines:
            self._context.say(f"{pattern.typed!r} is not in this stage")
        elif jump:
            self.go_to_match(self.matches.at_or_after(self._view.line_number))

    async def _collect(self, pattern: Pattern) -> bool:
        text = self._document.text
        found = await self._context.queries.search(text, pattern) if self._is_valid(pattern) else None
        if found is not None:
            self.matches.set_lines(found.lines, found.more)
        return found is not None

    def _is_valid(self, pattern: Pattern) -> bool:
        try:
            pattern.compile()
        except PatternError as error:
            self._context.say(f"that is not a regular expression: {error.reason}; \\V before it: plain text")
            return False
        return True

    def next_match(self) -> None:
        """Go to the next match; in a diff without a search, to the next change."""
        if self._document.diff is not None and not self.matches.lines:
            self._comparison.next_hunk()
        else:
            self.go_to_match(self.matches.at_or_after(self._view.line_number + 1))

    def previous_match(self) -> None:
        """Go to the previous match; in a diff without a search, to the previous change."""
        if self._document.diff is not None and not self.matches.lines:
            self._comparison.previous_hunk()
        else:
            self.go_to_match(self.matches.before(self._view.line_number))

    def go_to_match(self, line: int | None) -> None:
        """Jump to a line with a match, and show its position among the matches."""
        if line is None:
            self._context.say(f"{self.matches.pattern.typed!r} is not in this stage")
            return
        self._jumps.go_to(line)
        self._context.say(self.matches.position_text(line))

    # ---- in all stages -------------------------------------------------------------------------------------------

    def ask_search_all(self) -> None:
        """Ask for a pattern, and list the stages and lines with matches."""
        self._context.dialogs.ask(
            "search all stages",
            self.matches.pattern.typed,
            lambda text: self._context.jobs.open_after("ir-search", self._find_all, read_pattern(text)),
        )

    def ask_first(self) -> None:
        """Ask for a pattern, and go to the first stage with a match."""
        self._context.dialogs.ask(
            "first stage with",
            self.matches.pattern.typed,
            lambda text: self._context.jobs.begin("ir-search", self._find_first, read_pattern(text)),
        )

    async def _find_all(self, pattern: Pattern) -> None:
        rows, listed = await self._search_each(pattern)
        if listed:
            self.list_results(pattern.typed, first_and_last_text(rows, listed), listed)

    async def _find_first(self, pattern: Pattern) -> None:
        rows, listed = await self._search_each(pattern)
        if listed:
            self.matches.clear(pattern)
            self._context.layout.show_pane("ir")
            self._jumps.go_from_here(StagePosition(listed[0].row.key, listed[0].hits.lines[0]))
            self._context.say(f"{pattern.typed}: {first_and_last_text(rows, listed)}")

    async def _search_each(self, pattern: Pattern) -> tuple[Sequence[StageRow], list[StageHits]]:
        """All stages, and those with matches."""
        if not pattern.source or not self._is_valid(pattern):
            return (), []
        rows = list(self._stages.rows)
        self.running = True
        self._context.say(f"searching {len(rows)} stages{self._context.glyphs.ellipsis} ctrl+c cancels")
        try:
            found = await self._context.queries.search_each([row.stage.text for row in rows], pattern)
        finally:
            self.running = False
        listed = stages_with_hits(rows, found.hits) if found is not None else []
        if found is not None:
            self._context.say("" if listed else f"{pattern.typed!r} is in no stage")
        if listed:
            self.matches.clear(pattern)
        return rows, listed

    def list_results(self, title: str, summary: str, listed: Sequence[StageHits]) -> None:
        """List the lines with matches, and go to the chosen line."""
        from buddy.app.screens.results import ResultsScreen

        self._context.dialogs.open(ResultsScreen(title, summary, listed), self._show_result)

    def _show_result(self, place: StagePosition | None) -> None:
        if place is not None:
            self._context.layout.show_pane("ir")
            self._jumps.go_from_here(place)
            if place.key == self._stages.key:
                self.repeat()
