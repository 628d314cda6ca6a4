"""Tuning in the workbench: a search for the fastest recipe in the background, its history, and whether to take it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from buddy.app.reports.tuning import VariationError, attempt_line, plot_of, read_variation, summary
from buddy.compiler.protocol import Attempted, Tune, Tuned, Variation
from buddy.compiler.protocol.recipe import Recipe

if TYPE_CHECKING:
    from buddy.app.commands.graphs import GraphCommands
    from buddy.app.panes.context import WorkbenchContext

_TITLE = "seconds, then WHAT=VALUE,VALUE … to vary (nothing: block sizes and the passes that most often matter)"


class TuneCommands:
    """Searches around the recipe on the screen, which stays as it is until the user takes the best one."""

    def __init__(self, context: WorkbenchContext, graphs: GraphCommands) -> None:
        self._context, self._graphs = context, graphs
        self._attempts: list[Attempted] = []
        self._search_job = context.jobs.single("tune", "a search is under way: ctrl+c stops it")
        self._progress = context.jobs.progress(lambda what: f"tuning: {what}")

    def ask_tuning(self) -> None:
        if self._search_job.may_begin():
            self._context.dialogs.ask(_TITLE, f"{Tune(0, Recipe()).seconds:g}", self._begin)

    def _begin(self, text: str) -> None:
        try:
            seconds, variations = parse_tune_request(text)
        except ValueError as error:
            self._context.say(str(error))
            return
        self._search_job.begin(self._search, self._context.workspace.recipe, seconds, variations)

    async def _search(self, recipe: Recipe, seconds: float, variations: tuple[Variation, ...]) -> None:
        self._attempts = []
        frame = Tune(0, recipe, variations=variations, seconds=seconds)
        request = self._context.session.request(frame, self._came)
        found = await self._search_job.result_of(request, "not tuned", "the search was stopped")
        if found is not None:
            self._show(recipe, found)

    def _came(self, frame: object) -> None:
        if isinstance(frame, Attempted):
            self._attempts.append(frame)
            self._context.say(f"tuning, {attempt_line(frame)}{self._context.glyphs.ellipsis} ctrl+c stops")
        else:
            self._progress(frame)

    def _show(self, recipe: Recipe, found: Tuned) -> None:
        """The history, then the question whether to take what was found."""
        from buddy.app.screens.plot import PlotScreen

        lines = summary(found, self._attempts[0].choices if self._attempts else ())
        self._context.say("; ".join(line.strip() for line in lines))
        offer = lambda _=None: self._offer(recipe, found)  # noqa: E731
        plot = plot_of(self._attempts)
        if any(series.x for series in plot.series):
            self._context.dialogs.open(PlotScreen([plot], self._context.glyphs), offer)
        else:
            offer()

    def _offer(self, recipe: Recipe, found: Tuned) -> None:
        if found.recipe == recipe:
            return
        gain = f"{found.gain:.2f} times as fast" if found.gain else "right, and the recipe as it was is not"
        question = (
            f"{' '.join(choice for choice in found.choices if not choice.endswith('=default'))}: {gain}. Take it?"
        )
        self._context.dialogs.confirm(question, lambda: self._take(found.recipe), "the recipe stays as it is")

    def _take(self, recipe: Recipe) -> None:
        self._graphs.show(recipe.graph)
        self._context.edits.edit(recipe, "the fastest recipe that was found")


def parse_tune_request(text: str) -> tuple[float, tuple[Variation, ...]]:
    """Seconds and variations, in any order. Raises `ValueError` that says what is wrong."""
    seconds, variations = 60.0, []
    for word in text.split():
        if "=" in word:
            variations.append(read_variation(word))
            continue
        try:
            seconds = float(word)
        except ValueError:
            raise VariationError(f"{word!r} is neither a number of seconds nor WHAT=VALUES") from None
        if not 0 < seconds < 1e6:
            raise VariationError(f"{word} is no time to search for")
    return seconds, tuple(variations)
