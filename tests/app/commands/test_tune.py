"""Tuning from the passes pane: the prompt, the messages, and the question before the recipe is used."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from buddy.app.commands.performance import parse_tune_request
from buddy.app.panes.graph import GraphPane
from buddy.app.reports.numerics import PrecisionGain, precision_gain
from buddy.app.reports.results import precisions_result
from buddy.app.reports.searches import (
    VariationError,
    attempt_line,
    error_time_plot,
    error_time_rows,
    precision_rows,
    tuning_json,
    tuning_lines,
    tuning_plot,
)
from buddy.app.screens.detail import DetailScreen
from buddy.app.screens.results import LogScreen, ResultScreen
from buddy.compiler.protocol import Attempted, Tuned, Variation
from buddy.compiler.protocol.numerics import Deviation, NodeNumbers
from buddy.compiler.protocol.recipe import Recipe
from buddy.compiler.protocol.searches import FrontPoint, NodePrecision, PrecisionEffect

Open = Callable[..., Any]
TRIES = (
    Attempted(1, 0, ("fuse-rows=on",), 0.8, 0.008, 0.01, 0.2, best=True, elapsed=1.0),
    Attempted(1, 1, ("fuse-rows=off",), 0.9, 0.009, 0.01, 0.2, elapsed=2.0),
    Attempted(1, 2, ("fuse-rows=off",), problem="crashed: SIGSEGV", elapsed=3.0),
    Attempted(1, 3, ("fuse-rows=on",), 0.5, 0.005, 0.01, 0.2, best=True, elapsed=4.0),
)


def test_seconds_and_variations_parse_in_any_order() -> None:
    assert parse_tune_request("30 fuse-rows=on,off") == (30.0, (Variation("fuse-rows", (True, False)),), None)
    assert parse_tune_request("") == (60.0, (), None)
    assert parse_tune_request("threads=1,2 7") == (7.0, (Variation("threads", (1, 2)),), None)
    assert parse_tune_request("max-error=1e-2") == (300.0, (), 1e-2)
    assert parse_tune_request("9 max-error=0") == (9.0, (), 0.0)


@pytest.mark.parametrize("text", ["soon", "0", "-1", "nan", "inf", "a=", "max-error=", "max-error=-1", "max-error=nan"])
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


PRECISIONS = (
    NodePrecision("mm.0", 2e-3, "bf16", (PrecisionEffect("bf16", 1e-3, 2e-3), PrecisionEffect("int8-dynamic", 2e-3))),
    NodePrecision("mm.1", 2e-3, "f32", (PrecisionEffect("bf16", 1e-4, 9e-3),)),
)
PRECISION_TRIES = (
    Attempted(1, 0, ("the first recipe",), 0.8, 0.008, 0.01, 0.2, best=True, elapsed=1.0),
    Attempted(1, 1, ("bf16 for 2 products",), problem="error 2e-2 of eager's rms, more than 0.01", error=2e-2),
    Attempted(1, 2, ("bf16 for 1 product",), 0.7, 0.007, 0.01, 0.2, best=True, elapsed=4.0, error=2e-3),
)
OF_PRECISIONS = Tuned(
    1, Recipe(), ("bf16 for 1 product",), 3, 3, 0.7, 1.14, 1.1, 1.2, 9.0, (), PRECISIONS,
    (FrontPoint(0.0, 0.0), FrontPoint(2e-3, 1e-3), FrontPoint(9.2e-3, 1.1e-3)),
)  # fmt: skip


def test_precisions_are_listed_by_the_time_that_they_save() -> None:
    assert precision_rows(OF_PRECISIONS, {"mm.0": "first"}) == [("first", "bf16", "1.000 ms", "2.0e-03")]
    assert error_time_rows(PRECISION_TRIES) == [
        ("0", "0.800", "the first recipe"), ("2.0e-03", "0.700", "bf16 for 1 product")
    ]  # fmt: skip
    assert tuning_lines(OF_PRECISIONS)[0] == "tried 3 recipes in 9 s"
    result = precisions_result(OF_PRECISIONS, PRECISION_TRIES, True, {"mm.0": "first"})
    recipes, products = result.sections
    assert [entry.name for entry in recipes.entries] == ["no error: the first recipe", "2.0e-03: bf16 for 1 product"]
    assert [(entry.name, entry.value, entry.change) for entry in products.entries] == [
        ("first: bf16", "saves 1.000 ms", "2.0e-03")
    ]
    found = tuning_json(OF_PRECISIONS, PRECISION_TRIES)
    assert [node["precision"] for node in found["nodes"]] == ["bf16", "f32"]
    assert found["nodes"][0]["effects"][0] == {"precision": "bf16", "saved": 1e-3, "error": 2e-3}
    assert len(found["front"]) == 3


def test_the_front_is_plotted_as_estimated_and_as_measured() -> None:
    estimated, measured = error_time_plot(OF_PRECISIONS, PRECISION_TRIES).series
    assert list(measured.x) == [0.0, 2e-3]
    assert list(measured.y) == [0.8, 0.7]
    assert list(estimated.x) == [0.0, 2e-3, 9.2e-3]
    assert list(estimated.y) == pytest.approx([0.8, 0.7, 0.69])


def test_the_gain_of_a_precision_is_from_profiles_and_comparisons_where_there_are_both() -> None:
    tuned, nothing = PRECISIONS[0], (None, None)
    assert precision_gain("bf16", None, *nothing, tuned) == PrecisionGain(2e-3, False, 1e-3)
    own = NodeNumbers("mm.0", "observed", own_error=Deviation(1.0, 3e-3, 0.5), precision="bf16")
    assert precision_gain("bf16", own, 5e-3, 2e-3, tuned) == PrecisionGain(3e-3, True, pytest.approx(3e-3))
    assert precision_gain("int8-dynamic", own, 5e-3, None, tuned) == PrecisionGain(None, False, 2e-3)
    unknown = precision_gain("int8-weights", None, *nothing, None)
    assert (unknown.error_text, unknown.saved_text) == ("", "")
    known = precision_gain("bf16", None, *nothing, tuned)
    assert (known.error_text, known.saved_text) == ("2e-03", "1.000")


@pytest.mark.slow
async def test_the_graph_shows_what_precisions_cost_and_save(workbench: Open) -> None:
    async with workbench("mlp.py", size=(160, 50)) as bench:
        app = bench.app
        await bench.settled()
        product = next(a.node for a in app.state.graph_state.assignments.values() if a.multiplies)
        recipe = app.workspace.recipe.with_precision(product, "bf16")
        node = NodePrecision(product, 2e-3, "bf16", (PrecisionEffect("bf16", 1.25e-3, 2e-3),))
        tuned = Tuned(1, recipe, ("bf16 for 1 product",), 2, 2, 0.5, 1.6, 1.4, 1.7, 9.0, (), (node,))
        app.tune_commands._attempts = list(PRECISION_TRIES)
        app.tune_commands._show_result(app.workspace.recipe, tuned)
        await bench.until(lambda: isinstance(app.screen, ResultScreen), "the page")
        await bench.sees("products that save the most time")
        await bench.press("u")
        await bench.settled()
        graph = app.query_one(GraphPane)
        columns = {column.title: column for column in graph._columns}
        row = next(row for row in graph.rows if row.stable == product)
        assert columns["its err"].cell(row)[0] == "2e-03"
        assert columns["saves ms"].cell(row)[0] == "1.250"
        app.context.layout.show_pane("graph")
        await bench.press("+")  # the columns need a wide pane
        for text in ("its err", "saves ms", "1.250", "2e-03"):
            await bench.sees(text)


@pytest.mark.slow
async def test_only_one_search_runs_and_the_workbench_is_busy_until_the_last_job_ends(
    workbench: Open, messages: Callable[..., list[str]]
) -> None:
    async with workbench("arith_add.py", size=(80, 24)) as bench:
        app, said = bench.app, messages(bench.app)
        with app.context.jobs.busy():
            app.tune_commands._begin_search("600")  # seconds: it does not end by itself
            await bench.until(lambda: app.context.jobs.busy_count == 2, "the search")
            app.tune_commands.ask_tuning()
            # What the search has tried is said again and again, in the place of that.
            assert any("a search is running" in each for each in said)
            app.context.layout.show_pane("passes")
            await bench.press("ctrl+c")
            await bench.until(lambda: app.context.jobs.busy_count == 1, "the end of the search")
            assert app.situation().busy, "the other job goes on"
            await bench.until(lambda: any("Press f in Passes to tune again" in each for each in said), "how it ended")
        assert not app.context.jobs.is_busy
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
        await bench.until(lambda: app.focused is prompt, "the prompt")
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
