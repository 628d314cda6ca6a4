"""Searches for patterns in the IR pane: in the chosen stage, and in all stages."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from buddy.app.actions import key_of
from buddy.app.panes.context import WorkbenchContext
from buddy.app.panes.ir_comparison import IrComparison
from buddy.app.panes.ir_document import IrDocument, IrView
from buddy.app.panes.ir_jumps import IrJumps
from buddy.app.panes.ir_stages import IrStages
from buddy.app.reports.text.search_hits import (
    NO_PATTERN,
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
    """The pattern of the search, and the lines of the chosen stage that match it, in order."""

    def __init__(self) -> None:
        self.pattern = NO_PATTERN
        self.lines: list[int] = []
        self._line_set: set[int] = set()
        self._is_incomplete = False

    def __contains__(self, line: int) -> bool:
        return line in self._line_set

    def clear(self, pattern: Pattern | None = None) -> None:
        """Remove the lines, and set the pattern if one is given."""
        self.pattern = self.pattern if pattern is None else pattern
        self.set_lines((), False)

    def set_lines(self, lines: Sequence[int], more: bool) -> None:
        """Set the lines. `more` is true if the search has stopped at its limit, so there are further lines."""
        self.lines, self._line_set, self._is_incomplete = list(lines), set(lines), more

    def first_from(self, line: int) -> int | None:
        """The first matching line from `line` on, wrapping around at the end."""
        if not self.lines:
            return None
        return self.lines[bisect_left(self.lines, line) % len(self.lines)]

    def last_before(self, line: int) -> int | None:
        """The last matching line before `line`, wrapping around at the start."""
        return self.lines[bisect_left(self.lines, line) - 1] if self.lines else None

    def position_text(self, line: int) -> str:
        """The position of a line among the matches: `match 2 of 7`."""
        number = bisect_left(self.lines, line) + 1
        return f"match {number} of {len(self.lines)}{'+' if self._is_incomplete else ''}"

    def highlight(self, cells: Cells) -> Cells:
        """Gives the matches in `cells` the role `match`."""
        text = "".join(part for part, _ in cells)
        matching = {k for match in self.pattern.compile().finditer(text) for k in range(*match.span())}
        if not matching:
            return cells
        highlighted: Cells = []
        offset = 0
        for part, role in cells:
            for character in part:
                new_role = "match" if offset in matching else role
                if highlighted and highlighted[-1][1] == new_role:
                    highlighted[-1] = (highlighted[-1][0] + character, new_role)
                else:
                    highlighted.append((character, new_role))
                offset += 1
        return highlighted


class IrSearch:
    """Searches stages for a pattern. `running` is true during a search of all stages."""

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
        """Ask for a pattern, and go to the first match from the cursor on."""
        self._context.dialogs.ask(
            "search", self.matches.pattern.typed, lambda text: self.find(read_pattern(text), jump=True)
        )

    def find(self, pattern: Pattern, *, jump: bool) -> None:
        """Search the stage; with `jump`, go to the first match from the cursor on. An empty pattern ends the search."""
        self._context.jobs.begin("ir-search", self._find, pattern, jump)

    def repeat(self) -> None:
        """Search for the same pattern in the stage that is shown now."""
        if self.matches.pattern.source:
            self.find(self.matches.pattern, jump=False)

    async def _find(self, pattern: Pattern, jump: bool) -> None:
        self.matches.clear(pattern)
        if pattern.source and not await self._load_matches(pattern):
            return
        self._view.refresh()
        if not pattern.source:
            return
        if not self.matches.lines:
            self._context.say(f"{pattern.typed!r} is not in this stage")
        elif jump:
            self.go_to_match(self.matches.first_from(self._view.line_number))

    async def _load_matches(self, pattern: Pattern) -> bool:
        """Request the matching lines. If the pattern is invalid or the request fails, shows why and returns false."""
        text = self._document.text
        result = await self._context.queries.search(text, pattern) if self._is_valid(pattern) else None
        if result is not None:
            self.matches.set_lines(result.lines, result.more)
        return result is not None

    def _is_valid(self, pattern: Pattern) -> bool:
        """Whether the pattern is a valid regular expression or plain text. If not, shows the reason."""
        try:
            pattern.compile()
        except PatternError as error:
            self._context.say(f"invalid regular expression: {error.reason}; start with \\V to search for plain text")
            return False
        return True

    def next_match(self) -> None:
        """Go to the next match; in a diff without matches, to the next change."""
        if self._document.diff is not None and not self.matches.lines:
            self._comparison.next_change()
        else:
            self.go_to_match(self.matches.first_from(self._view.line_number + 1))

    def previous_match(self) -> None:
        """Go to the previous match; in a diff without matches, to the previous change."""
        if self._document.diff is not None and not self.matches.lines:
            self._comparison.previous_change()
        else:
            self.go_to_match(self.matches.last_before(self._view.line_number))

    def go_to_match(self, line: int | None) -> None:
        """Jump to a line with a match, and show its position among the matches."""
        if line is None:
            self._context.say(f"{self.matches.pattern.typed!r} is not in this stage")
            return
        self._jumps.go_to(line)
        self._context.say(self.matches.position_text(line))

    # ---- in all stages -------------------------------------------------------------------------------------------

    def ask_search_all(self) -> None:
        """Ask for a pattern, and list the stages with matches and their matching lines."""
        self._context.dialogs.ask(
            "search all stages",
            self.matches.pattern.typed,
            lambda text: self._context.jobs.open_after("ir-search", self._find_all, read_pattern(text)),
        )

    def ask_first(self) -> None:
        """Ask for a pattern, and go to the first line that matches it in the first stage with matches."""
        self._context.dialogs.ask(
            "first stage with",
            self.matches.pattern.typed,
            lambda text: self._context.jobs.begin("ir-search", self._find_first, read_pattern(text)),
        )

    async def _find_all(self, pattern: Pattern) -> None:
        rows, stages = await self._search_all_stages(pattern)
        if stages:
            self.list_results(pattern.typed, first_and_last_text(rows, stages), stages)

    async def _find_first(self, pattern: Pattern) -> None:
        rows, stages = await self._search_all_stages(pattern)
        if stages:
            self.matches.clear(pattern)
            self._context.layout.show_pane("ir")
            self._jumps.go_to_position(StagePosition(stages[0].row.key, stages[0].hits.lines[0]))
            self._context.say(f"{pattern.typed}: {first_and_last_text(rows, stages)}")

    async def _search_all_stages(self, pattern: Pattern) -> tuple[Sequence[StageRow], list[StageHits]]:
        """Returns all stages, and those with matches. Both are empty if the pattern is empty or invalid."""
        if not pattern.source or not self._is_valid(pattern):
            return (), []
        rows = list(self._stages.rows)
        self.running = True
        self._context.say(
            f"searching {len(rows)} stages{self._context.glyphs.ellipsis} press {key_of('cancel')} to cancel"
        )
        try:
            result = await self._context.queries.search_each([row.stage.text for row in rows], pattern)
        finally:
            self.running = False
        stages = stages_with_hits(rows, result.hits) if result is not None else []
        if result is not None:
            self._context.say("" if stages else f"{pattern.typed!r} is in no stage")
        if stages:
            self.matches.clear(pattern)
        return rows, stages

    def list_results(self, title: str, summary: str, stages: Sequence[StageHits]) -> None:
        """List the matching lines of `stages`, and go to the chosen line."""
        from buddy.app.screens.search_results import SearchResultsScreen

        self._context.dialogs.open(SearchResultsScreen(title, summary, stages), self._show_result)

    def _show_result(self, position: StagePosition | None) -> None:
        if position is not None:
            self._context.layout.show_pane("ir")
            self._jumps.go_to_position(position)
            if position.key == self._stages.key:
                self.repeat()
