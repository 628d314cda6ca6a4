"""Searches all stages for a pattern; `ViewSearch` searches only the stage on the screen."""

from __future__ import annotations

from collections.abc import Sequence

from buddy.app.actions import key_of
from buddy.app.panes.context import WorkbenchContext
from buddy.app.panes.ir_jumps import IrJumps
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
from buddy.compiler.protocol import Progress


class StageSearch:
    """Searches all stages. `running` is true during a search. `search` is the search of the chosen stage."""

    def __init__(self, context: WorkbenchContext, stages: IrStages, jumps: IrJumps, search: ViewSearch) -> None:
        self._context, self._stages, self._jumps, self._search = context, stages, jumps, search
        self.running = False

    def ask_search_all(self) -> None:
        """Ask for a pattern, and list the stages with matches and their matching lines."""
        self._context.dialogs.ask(
            "search all stages",
            self._search.matches.pattern.typed,
            lambda text: self._context.jobs.begin_opening("ir-search", self._find_all, read_pattern(text)),
        )

    def ask_first(self) -> None:
        """Ask for a pattern, and go to the first line that matches it in the first stage with matches."""
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
        """Search all stages. Returns all stages, and those with matches; both are empty for an unusable pattern.

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
        """List the matching lines of `stages`, and go to the chosen line."""
        from buddy.app.screens.search_results import SearchResultsScreen

        self._context.dialogs.open(SearchResultsScreen(title, summary, stages), self._show_result)

    def _show_result(self, position: StagePosition | None) -> None:
        if position is not None:
            self._context.layout.show_pane("ir")
            self._jumps.go_to_position(position)
