"""A profile in the workbench: columns, filter and order of the table, the tree of modules, the roofline."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from buddy.app.commands.performance import roofline
from buddy.app.screens.plot import PlotScreen
from buddy.app.screens.profile import FlameScreen, FlameTree, HotSpotScreen
from buddy.app.screens.results import LogScreen, ResultScreen
from buddy.compiler.support.timing import cycle_counter
from tests.app.reports.test_profile import INFO, REPORT

pytestmark = pytest.mark.skipif(cycle_counter() is None, reason="no known cycle counter on this machine")
Open = Callable[..., Any]


@pytest.mark.slow
async def test_the_table_is_filtered_and_sorted_by_time(workbench: Open) -> None:
    async with workbench("mlp.py", size=(200, 50)) as bench:
        graph, app = bench.app.graph, bench.app
        assert not bench.shows("GFLOP/s")
        await bench.press("g", "C")
        await bench.sees("no profile yet")
        await bench.press("g", "c")
        await bench.sees("engine busy")
        await bench.sees("ctrl+c cancels")
        await bench.until(lambda: isinstance(app.screen, ResultScreen), "the result")
        assert app.state.profile is not None
        await bench.sees("by op kind")
        await bench.sees("aten.addmm")
        await bench.press("escape")
        await bench.sees("engine ready")
        await bench.settled()
        await bench.sees("in addmm")  # gelu is part of the product before it
        await bench.press("+")
        await bench.sees("GFLOP/s")  # where there is room
        await bench.press("+")
        assert app.workspace.recipe == app.state.compiled_recipe, "the recipe on the screen stays"
        await bench.press("f")
        await bench.type("time>1us")
        await bench.press("enter", *["right"] * 8, "s")
        assert graph.order.sorted_by == "ms", "the last column that fits"
        times = [graph.seconds(row) for row in graph.rows]
        assert times == sorted(times, reverse=True)
        assert {row.name for row in graph.rows} >= {"addmm", "addmm_1"}
        await bench.press("f", "ctrl+u", "enter", "L")
        await bench.until(lambda: isinstance(app.screen, LogScreen), "the log")
        await bench.pilot.pause(0.05)
        await bench.press("enter")
        await bench.until(lambda: isinstance(app.screen, ResultScreen), "the result again")
        await bench.pilot.pause(0.05)
        await bench.press("C")
        await bench.until(lambda: isinstance(app.screen, FlameScreen), "the tree of modules")
        await bench.pilot.pause(0.05)
        tree = app.screen.query_one(FlameTree)
        await bench.press(
            *["j"]
            * next(
                n
                for n, row in enumerate(tree._rows)
                if row.entry.name == "addmm.0" and row.entry.node.startswith("down")
            )
        )
        assert tree.node
        await bench.press("enter")
        assert graph.current.name == "addmm_1"
        await bench.press("g", "R")
        await bench.until(lambda: isinstance(app.screen, PlotScreen), "the roof")
        await bench.press("q")
        if app.state.profile.sampling.spots:
            await bench.press("g", "H")
            await bench.until(lambda: isinstance(app.screen, HotSpotScreen), "the instructions")
            await bench.pilot.pause(0.05)
            text = app.screen.current.text
            await bench.press("enter")
            await bench.until(lambda: bench.shows(text.split()[0]), "the line of assembly")
            assert app.ir.chosen_stage.language == "asm"
        await bench.press("t")
        stale = app.state.profile
        app.context.edits.edit(app.workspace.recipe.toggled(len(app.workspace.recipe.steps) - 6), "another recipe")
        await bench.settled()
        assert app.state.profile is stale
        await bench.sees("ms?")  # the times are of an earlier recipe


def test_the_roofline_is_limited_by_memory_then_by_arithmetic() -> None:
    plot = roofline(REPORT, INFO)
    assert plot is not None
    nodes, roof = plot.series
    assert dict(zip(nodes.names, zip(nodes.x, nodes.y, strict=True), strict=True)) == {
        "mm.0": (4.0, pytest.approx(2.0)),
        "exp.0": (pytest.approx(1e-4), pytest.approx(1e-3)),
    }
    edge = REPORT.peak.gflops / REPORT.peak.gbytes
    assert roof.x[1] == edge
    assert roof.y == (pytest.approx(roof.x[0] * REPORT.peak.gbytes), REPORT.peak.gflops, REPORT.peak.gflops)
    assert roof.x[0] < min(nodes.x)
    assert roof.x[2] > max(nodes.x)
