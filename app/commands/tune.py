"""Searches for the fastest variation of the recipe."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from buddy.app.actions import key_of
from buddy.app.reports.results import PLOT, USE, precisions_result, tuning_result
from buddy.app.reports.tuning import VariationError, attempt_line, error_time_plot, read_variation, tuning_plot
from buddy.compiler.protocol import Attempted, Tune, Tuned, Variation
from buddy.compiler.protocol.recipe import Recipe
from buddy.compiler.protocol.tuning import default_seconds

if TYPE_CHECKING:
    from buddy.app.commands.graphs import GraphCommands
    from buddy.app.panes.context import WorkbenchContext


_TUNE_PROMPT = (
    "seconds, then SETTING=VALUE,VALUE … to vary (default: block sizes, passes), or max-error=1e-2 for precisions"
)
_MAX_ERROR = "max-error"
# Longer than any search that a user waits for: 11 days.
_MAX_SECONDS = 1e6


class TuneCommands:
    """Searches for the fastest variation of the current recipe. The recipe changes only if the user accepts it."""

    def __init__(self, context: WorkbenchContext, graphs: GraphCommands) -> None:
        self._context, self._graphs = context, graphs
        # The recipes that the running search has tried, or that the latest one did.
        self._attempts: list[Attempted] = []
        self._search_job = context.jobs.single_job("tune", f"a search is running: press {key_of('cancel')} to stop it")
        self._progress = context.jobs.progress_callback(lambda activity: f"tuning: {activity}")

    def ask_tuning(self) -> None:
        """Ask for the limits of a search, and start it."""
        if self._search_job.may_begin():
            self._context.dialogs.ask(_TUNE_PROMPT, f"{Tune(0, Recipe()).seconds:g}", self._begin_search)

    def _begin_search(self, text: str) -> None:
        """Start a search with the limits and variations in `text`."""
        try:
            seconds, variations, max_error = parse_tune_request(text)
        except ValueError as error:
            self._context.say(str(error))
            return
        self._search_job.begin(self._search, self._context.workspace.recipe, seconds, variations, max_error)

    async def _search(
        self, recipe: Recipe, seconds: float, variations: tuple[Variation, ...], max_error: float | None
    ) -> None:
        """Wait for the search of the engine, and show the result."""
        self._attempts = []
        frame = Tune(0, recipe, variations=variations, seconds=seconds, max_error=max_error)
        request = self._context.session.request(frame, self._show_progress)
        tuned = await self._search_job.result_of(
            request, "not tuned", f"Cancelled. Press {key_of('passes.tune')} in Passes to tune again"
        )
        if tuned is not None:
            self._show_result(recipe, tuned)

    def _show_progress(self, frame: object) -> None:
        """Show a tried recipe, or the progress of the search."""
        if isinstance(frame, Attempted):
            self._attempts.append(frame)
            stop = f"press {key_of('cancel')} to stop"
            message = f"tuning, {attempt_line(frame)}{self._context.glyphs.ellipsis} {stop}"
            self._context.status.show_progress(message)
        else:
            self._progress(frame)

    def _show_result(self, recipe: Recipe, tuned: Tuned) -> None:
        """Show the fastest recipes, of which the user may use the first, or the chosen precisions and their errors."""
        attempts, is_better = list(self._attempts), tuned.recipe != recipe

        def use_answer(answer: str) -> None:
            if answer == USE:
                self._use_recipe(tuned.recipe)
            elif answer == PLOT:
                self._plot(tuned, attempts)

        if not tuned.nodes:
            self._context.results.show(tuning_result(tuned, attempts, is_better), use_answer)
            return
        state = self._context.session.state
        state.record_precisions(recipe.graph, tuned.nodes)
        info = state.graphs[recipe.graph] if recipe.graph < len(state.graphs) else None
        names = {row.stable: row.display_name for row in (info.rows if info is not None else ())}
        self._context.results.show(precisions_result(tuned, attempts, is_better, names), use_answer)

    def _plot(self, tuned: Tuned, attempts: list[Attempted]) -> None:
        """Plot the time of each attempt over its error, if precisions were chosen, and over the time of the search."""
        from buddy.app.screens.plot import PlotScreen

        plots = [*([error_time_plot(tuned, attempts)] if tuned.nodes else []), tuning_plot(attempts)]
        self._context.dialogs.open(PlotScreen(plots, self._context.glyphs))

    def _use_recipe(self, recipe: Recipe) -> None:
        self._graphs.show(recipe.graph)
        self._context.edits.edit(recipe, "the fastest recipe found")


def parse_tune_request(text: str) -> tuple[float, tuple[Variation, ...], float | None]:
    """Returns the time limit in seconds, the variations and the maximum error in `text`, which is like `_TUNE_PROMPT`.

    Without a time limit, returns that of `default_seconds`. Without a maximum error, returns `None` for it. Raises
    `VariationError` for an invalid word.
    """
    seconds, variations, max_error = None, list[Variation](), None
    for word in text.split():
        name, _, value = word.partition("=")
        if name == _MAX_ERROR:
            max_error = _parse_error(value)
            continue
        if "=" in word:
            variations.append(read_variation(word))
            continue
        try:
            seconds = float(word)
        except ValueError:
            raise VariationError(f"{word!r} is neither a number of seconds nor SETTING=VALUES") from None
        if not 0 < seconds < _MAX_SECONDS:
            raise VariationError(f"{word} is not a time limit: give more than 0 and less than a million seconds")
    return seconds or default_seconds(max_error, variations), tuple(variations), max_error


def _parse_error(text: str) -> float:
    """The value of `max-error`. Raises `VariationError`."""
    try:
        error = float(text)
    except ValueError:
        error = math.nan
    if not 0 <= error < math.inf:
        raise VariationError(f"{_MAX_ERROR}={text} is not an error: give a number of at least 0, such as 1e-2")
    return error
