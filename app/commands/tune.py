"""Tuning: searches for the fastest recipe in the background, shows the history, and offers the best recipe."""

from __future__ import annotations

from typing import TYPE_CHECKING

from buddy.app.reports.tuning import VariationError, attempt_line, plot_of, read_variation, summary
from buddy.compiler.protocol import Attempted, Tune, Tuned, Variation
from buddy.compiler.protocol.recipe import Recipe

if TYPE_CHECKING:
    from buddy.app.commands.graphs import GraphCommands
    from buddy.app.panes.context import WorkbenchContext

_TITLE = "seconds, then WHAT=VALUE,VALUE … to vary (default: block sizes and the passes with the largest effect)"


class TuneCommands:
    """Searches variations of the current recipe. The recipe does not change until the user accepts the best one."""

    def __init__(self, context: WorkbenchContext, graphs: GraphCommands) -> None:
        self._context, self._graphs = context, graphs
        self._attempts: list[Attempted] = []
        self._search_job = context.jobs.single("tune", "a search is running: press ctrl+c to stop it")
        self._progress = context.jobs.progress(lambda what: f"tuning: {what}")

    def ask_tuning(self) -> None:
        if self._search_job.may_begin():
            self._context.dialogs.ask(_TITLE, f"{Tune(0, Recipe()).seconds:g}", self._begin_search)

    def _begin_search(self, text: str) -> None:
        try:
            seconds, variations = parse_tune_request(text)
        except ValueError as error:
            self._context.say(str(error))
            return
        self._search_job.begin(self._search, self._context.workspace.recipe, seconds, variations)

    async def _search(self, recipe: Recipe, seconds: float, variations: tuple[Variation, ...]) -> None:
        self._attempts = []
        frame = Tune(0, recipe, variations=variations, seconds=seconds)
        request = self._context.session.request(frame, self._take_frame)
        found = await self._search_job.result_of(request, "not tuned", "the search was stopped")
        if found is not None:
            self._show_result(recipe, found)

    def _take_frame(self, frame: object) -> None:
        if isinstance(frame, Attempted):
            self._attempts.append(frame)
            self._context.say(f"tuning, {attempt_line(frame)}{self._context.glyphs.ellipsis} press ctrl+c to stop")
        else:
            self._progress(frame)

    def _show_result(self, recipe: Recipe, found: Tuned) -> None:
        """Plot the history, then ask whether to use the best recipe."""
        from buddy.app.screens.plot import PlotScreen

        lines = summary(found, self._attempts[0].choices if self._attempts else ())
        self._context.say("; ".join(line.strip() for line in lines))
        offer = lambda _=None: self._offer_recipe(recipe, found)  # noqa: E731
        plot = plot_of(self._attempts)
        if any(series.x for series in plot.series):
            self._context.dialogs.open(PlotScreen([plot], self._context.glyphs), offer)
        else:
            offer()

    def _offer_recipe(self, recipe: Recipe, found: Tuned) -> None:
        if found.recipe == recipe:
            return
        gain = f"{found.gain:.2f} x speedup" if found.gain else "matches eager, unlike the current recipe"
        choices = " ".join(choice for choice in found.choices if not choice.endswith("=default"))
        question = f"{choices}: {gain}. Use this recipe?"
        self._context.dialogs.confirm(question, lambda: self._use_recipe(found.recipe), "the recipe was not changed")

    def _use_recipe(self, recipe: Recipe) -> None:
        self._graphs.show(recipe.graph)
        self._context.edits.edit(recipe, "the fastest recipe found")


def parse_tune_request(text: str) -> tuple[float, tuple[Variation, ...]]:
    """The time limit in seconds and the variations, in any order. Raises `ValueError` for an invalid word."""
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
            raise VariationError(f"{word} is not a time limit: give more than 0 and less than a million seconds")
    return seconds, tuple(variations)
