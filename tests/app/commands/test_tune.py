"""Tuning from the passes pane: the prompt, the messages, and the question before the recipe is used."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from buddy.app.commands.run import parse_tune_request
from buddy.app.reports.searches import VariationError, attempt_line, tuning_lines, tuning_plot
from buddy.app.screens.detail import DetailScreen
from buddy.app.screens.results import LogScreen, ResultScreen
from buddy.compiler.protocol import Attempted, Tuned, Variation
from buddy.compiler.protocol.recipe import Recipe

Open = Callable[..., Any]
TRIES = (
    Attempted(1, 0, ("fuse-rows=on",), 0.8, 0.008, 0.01, 0.2, best=True, elapsed=1.0),
    Attempted(1, 1, ("fuse-rows=off",), 0.9, 0.009, 0.01, 0.2, elapsed=2.0),
    Attempted(1, 2, ("fuse-rows=off",), problem="crashed: SIGSEGV", elapsed=3.0),
    Attempted(1, 3, ("fuse-rows=on",), 0.5, 0.005, 0.01, 0.2, best=True, elapsed=4.0),
)


def test_seconds_and_variations_parse_in_any_order() -> None:
    assert parse_tune_request("30 fuse-rows=on,off") == (30.0, (Variation("fuse-rows", (True, False)),))
    assert parse_tune_request("") == (60.0, ())
    assert parse_tune_request("threads=1,2 7") == (7.0, (Variation("threads", (1, 2)),))


@pytest.mark.parametrize("text", ["soon", "0", "-1", "nan", "inf", "a="])
def test_other_words_are_rejected(text: str) -> None:
    with pytest.raises(VariationError):
        parse_tune_request(text)


def test_the_history_has_each_attempt_and_the_best_so_far() -> None:
    tried, best = tuning_plot(TRIES).series
    assert tuple(tried.y) == (0.8, 0.9, 0.5)
    assert tuple(best.y) == (0.8, 0.8, 0.5)
    assert tuple(tried.x) == (1.0, 2.0, 4.0)
    assert "1 more" in tuning_plot(TRIES).note
    assert attempt_line(TRIES[0]) == "1: 0.800 x the time of eager, best so far"
    assert attempt_line(TRIES[2]) == "3: crashed: SIGSEGV (fuse-rows=off)"


def test_the_summary_lists_only_changed_choices() -> None:
    found = Tuned(1, Recipe(), ("fuse-rows=off", "threads=1"), 4, 12, 0.5, 1.6, 1.4, 1.7, 9.0, ("a note",))
    lines = tuning_lines(found, ("fuse-rows=on", "threads=1"))
    assert lines == [
        "tried 4 of 12 recipes in 9 s",
        "1.600 x speedup (95 % interval: 1.400 to 1.700), 0.500 x the time of eager",
        "  fuse-rows=off",
        "note: a note",
    ]
    assert tuning_lines(found, found.choices)[1] == "no faster recipe was found"


@pytest.mark.slow
async def test_only_one_search_runs_and_the_workbench_is_busy_until_the_last_job_ends(
    workbench: Open, messages: Callable[..., list[str]]
) -> None:
    async with workbench("arith_add.py", size=(80, 24)) as bench:
        app, said = bench.app, messages(bench.app)
        with app.context.jobs.wait():
            app.tune_commands._begin_search("600")  # seconds: it does not end by itself
            await bench.until(lambda: app.context.jobs.wait_count == 2, "the search")
            app.tune_commands.ask_tuning()
            # What the search has tried is said again and again, in the place of that.
            assert any("a search is running" in each for each in said)
            app.context.layout.show_pane("passes")
            await bench.press("ctrl+c")
            await bench.until(lambda: app.context.jobs.wait_count == 1, "the end of the search")
            assert app.situation().busy, "the other job goes on"
            await bench.until(lambda: any("Press f in Passes to tune again" in each for each in said), "how it ended")
        assert not app.context.jobs.waiting
        app.tune_commands.ask_tuning()
        await bench.sees("seconds, then")  # Another search can be asked for.
        assert app.screen.query_one("Prompt Input").size.width >= 20, "with room to type in, however long the title"


@pytest.mark.slow
async def test_a_result_waits_while_the_user_types(workbench: Open, messages: Callable[..., list[str]]) -> None:
    async with workbench("arith_add.py", size=(120, 40)) as bench:
        app, said = bench.app, messages(bench.app)
        app.context.layout.show_pane("passes")
        await bench.press("f")
        prompt = app.screen.query_one("Prompt Input")
        prompt.value = "2 threads=1,2"
        await bench.press("enter")
        await bench.until(lambda: app.tune_commands._search_job.running, "the search")
        app.context.layout.show_pane("graph")
        await bench.press("f")
        await bench.type("ad")
        assert app.focused is prompt
        await bench.until(lambda: any("Press L to see the result" in each for each in said), "the end")
        assert not isinstance(app.screen, ResultScreen), "a page would get the keys that the user types"
        await bench.type("d")
        assert prompt.value == "add"
        await bench.press("enter")
        await bench.press("L")
        await bench.opened(LogScreen)
        await bench.press("enter")
        await bench.opened(ResultScreen)
        await bench.press("q")


@pytest.mark.slow
async def test_the_result_page_applies_the_recipe_that_was_found(workbench: Open) -> None:
    async with workbench("arith_add.py", size=(80, 24)) as bench:
        app = bench.app
        recipe = app.workspace.recipe
        step = next(index for index, step in enumerate(recipe.steps) if step.name == "cse")
        tuned = Tuned(1, recipe.toggled(step), ("cse=off",), 4, 12, 0.5, 1.6, 1.4, 1.7, 9.0)
        app.tune_commands._attempts = list(TRIES)
        app.tune_commands._show_result(recipe, tuned)
        await bench.until(lambda: isinstance(app.screen, ResultScreen), "the page")
        await bench.sees("1.600 x speedup")
        await bench.press("escape")
        assert app.workspace.recipe == recipe, "nothing was chosen"
        await bench.press("L")
        await bench.until(lambda: isinstance(app.screen, LogScreen), "the log")
        await bench.sees("Tuning: tried 4 of 12")
        await bench.press("enter")
        await bench.until(lambda: isinstance(app.screen, ResultScreen), "the page again")
        await bench.press("u")
        await bench.until(lambda: app.workspace.recipe == tuned.recipe, "the recipe")


@pytest.mark.slow
async def test_a_result_waits_in_the_log_while_a_dialog_is_open(workbench: Open) -> None:
    async with workbench("arith_add.py", size=(80, 24)) as bench:
        app = bench.app
        await bench.press("question_mark")
        help_screen = app.screen
        tuned = Tuned(1, app.workspace.recipe, ("fuse-rows=on",), 4, 12, 0.5, 1.6, 1.4, 1.7, 9.0)
        app.tune_commands._show_result(app.workspace.recipe, tuned)
        assert app.screen is help_screen
        assert app.context.status.message == "Tuning: finished. Press L to see the result"
        app.context.status.show_progress("tuning: 3")
        await bench.press("escape", "L")
        await bench.until(lambda: isinstance(app.screen, LogScreen), "the log")
        await bench.sees("Tuning: finished")
        assert not bench.shows("tuning: 3"), "progress is not kept"
        # The message is longer than the screen is wide; enter shows it in full.
        long = "wrote " + "a/long/path/" * 10
        await bench.press("escape")
        app.context.say(long)
        await bench.press("L")
        await bench.until(lambda: isinstance(app.screen, LogScreen), "the log")
        await bench.press("j")
        entry = next(index for index, entry in enumerate(app.screen._entries) if entry.content == long)
        app.screen._rows.move_to(entry)
        await bench.press("enter")
        await bench.until(lambda: isinstance(app.screen, DetailScreen), "the message")
        await bench.sees("a/long/path/")
