"""Plots: positions of values on their axes, and the plot screen with its cursor."""

from __future__ import annotations

import math
from typing import Any

import pytest
from textual.app import App
from textual.widgets import Input

from buddy.app.reports import formatting
from buddy.app.reports.plots import (
    Plot,
    PlotAxis,
    Series,
    bar_series,
    round_steps,
    scale_of,
    scales,
    thin_points,
    visible_points,
)
from buddy.app.screens.plot import PlotScreen
from buddy.app.widgets.plot_view import PlotView
from buddy.app.widgets.prompt import Prompt
from buddy.themes.palette import DEFAULT
from buddy.themes.textual_themes import textual_themes
from tests.app.picturing import at_rest, passed_on

ERRORS = Series("grown", tuple(range(8)), (0.0, 1e-8, 3e-8, 2e-7, math.nan, 1e-6, -1.0, 1e-5), names=tuple("abcdefgh"))
OWN = Series("own", (0.0, 4.0, 7.0), (1e-8, 1e-8, 2e-8), "points", ("x", "y", "z"))
GROWTH = Plot("Error growth", (ERRORS, OWN), PlotAxis("node"), PlotAxis("max|d|", log=True), "relative to eager")
BARS = Plot(
    "Times",
    (bar_series(("eager", "buddy", "before"), (3.0, 1.0, 2.0), "s"),),
    PlotAxis("", names=("eager", "buddy", "before")),
)


def test_a_logarithmic_axis_has_zero_at_its_end_and_no_negative_values() -> None:
    scale = scale_of(PlotAxis(log=True), [0.0, 1e-8, 1e-5])
    assert scale.position(1e-5) == pytest.approx(-5)
    assert scale.position(0.0) == -9
    assert scale.position(-1.0) is None
    assert scale.position(math.nan) is None
    assert [scale.label_at(place) for place in scale.ticks(-9, -5, 10)] == ["0", "1e-08", "1e-07", "1e-06", "1e-05"]


def test_ticks_are_round_and_fit() -> None:
    assert round_steps(0.0, 1.0, 5) == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1.0])
    assert round_steps(3.0, 97.0, 5) == pytest.approx([20, 40, 60, 80])
    assert round_steps(2.0, 2.0, 5) == [2.0]
    within_a_decade = scale_of(PlotAxis(log=True), [2.0, 6.0])
    assert [within_a_decade.label_at(place) for place in within_a_decade.ticks(math.log10(2), math.log10(6), 5)] == [
        "2", "3", "4", "5", "6",
    ]  # fmt: skip
    assert scale_of(PlotAxis(log=True), [1.0, 1e30]).ticks(0, 30, 4) == [0, 8, 16, 24]
    assert scale_of(PlotAxis(names=("a", "b", "c", "d")), []).ticks(-0.5, 3.5, 2) == [0, 2]


def test_a_long_line_keeps_the_extremes_of_every_column() -> None:
    spike = Series("", tuple(range(10_000)), tuple(1.0 if x == 4321 else 0.0 for x in range(10_000)))
    points = visible_points(spike, *scales(Plot("", (spike,))))
    kept = thin_points(points, 0, 9999, 50)
    assert len(kept) <= 4 * 51
    assert 4321 in {point.number for point in kept}
    assert [point.number for point in kept] == sorted(point.number for point in kept)


class Bare(App[None]):
    """An application with only a plot screen."""

    CSS_PATH = "../../../app/workbench/workbench.tcss"

    def __init__(self, *plots: Plot, glyphs: formatting.Glyphs = formatting.UNICODE, choose_hint: str = "") -> None:
        super().__init__()
        self._plots, self._glyphs, self._choose_hint = plots, glyphs, choose_hint
        self.chosen: str | None = None

    def on_mount(self) -> None:
        for theme in textual_themes():
            self.register_theme(theme)
        self.theme = DEFAULT
        self.push_screen(PlotScreen(self._plots, self._glyphs, choose_hint=self._choose_hint), self._choose)

    def _choose(self, name: str | None) -> None:
        self.chosen = name

    def text(self) -> list[str]:
        return ["".join(segment.text for segment in strip) for strip in self.screen._compositor.render_strips()]


async def test_the_cursor_goes_along_a_series_and_to_the_nearest_point_of_another() -> None:
    app = Bare(GROWTH, BARS, choose_hint="goes to the node")
    async with app.run_test(size=(100, 30)) as pilot:
        await passed_on(pilot)
        text = "\n".join(app.text())
        assert "max|d| (log)" in text
        assert "1e-05" in text
        assert "2 points left out: below 0 or not finite" in text
        await pilot.press("l", "l", "l")
        await passed_on(pilot)
        assert any("4/8 d" in line and "2e-07" in line for line in app.text())
        await pilot.press("l", "j")
        await passed_on(pilot)
        assert any("2/3 y" in line for line in app.text())
        await pilot.press("enter")
        await passed_on(pilot)
    assert app.chosen == "y"


async def test_zoom_follows_the_cursor_and_0_resets_it() -> None:
    app = Bare(Plot("long", (Series("s", tuple(range(1000)), tuple(range(1000))),)))
    async with app.run_test(size=(100, 30)) as pilot:
        await passed_on(pilot)
        view = app.screen.query_one(PlotView)
        await pilot.press(*["plus"] * 8)
        await passed_on(pilot)
        near = view._x_max - view._x_min
        assert near < 100
        await pilot.press("end")
        await passed_on(pilot)
        assert view._x_min <= 999 <= view._x_max
        assert view._x_max - view._x_min == pytest.approx(near)
        await pilot.press("0")
        await passed_on(pilot)
        assert view._x_min == pytest.approx(0, abs=20)
        assert view._x_max == pytest.approx(999, abs=20)


async def test_points_are_found_by_their_names_and_values() -> None:
    app = Bare(GROWTH, BARS, choose_hint="goes to the node")
    async with app.run_test(size=(100, 30)) as pilot:
        await passed_on(pilot)
        screen, view = app.screen, app.screen.query_one(PlotView)
        # Outside of the prompt, j and k go to other series.
        await pilot.press("slash", "j")
        await passed_on(pilot)
        assert screen.query_one(Prompt).query_one(Input).value == "j"
        await pilot.press("backspace", *"^y", "enter")
        await passed_on(pilot)
        assert any("2/3 y" in line for line in app.text())
        assert "/^y  1/1" in str(screen.query_one("#box").border_subtitle)
        await pilot.press("slash", *"2e-07", "enter")
        await passed_on(pilot)
        first = (view.series, view.point)
        assert any("2e-07" in line for line in app.text())
        await pilot.press("n")
        assert (view.series, view.point) == first, "the only match"
        await pilot.press("slash", *"^y", "escape")
        await passed_on(pilot)
        assert (view.series, view.point) == first, "escape restores the position"
        assert app.screen is screen
        await pilot.press("right_square_bracket", "n")
        await passed_on(pilot)
        assert "no match" in str(screen.query_one("#box").border_subtitle)
        await pilot.press("enter")
        await passed_on(pilot)


@pytest.mark.parametrize("size", [(40, 10), (80, 24), (200, 60)])
@pytest.mark.parametrize("plot", [GROWTH, BARS, Plot("empty", ()), Plot("one", (Series("s", (1.0,), (0.0,)),))])
async def test_every_screen_draws_only_ascii_in_ascii_mode(plot: Plot, size: tuple[int, int]) -> None:
    app = Bare(plot, glyphs=formatting.ASCII)
    async with app.run_test(size=size) as pilot:
        app.screen_stack[0].set_class(True, "-ascii")
        app.screen.set_class(True, "-ascii")
        await pilot.press("l", "L", "plus", "j")
        await passed_on(pilot)
        inside = [line.strip()[1:-1] for line in app.text()[3:-3]]
        assert all(line.isascii() for line in inside), inside


async def test_bars_have_no_logarithm_and_copying_gives_a_table() -> None:
    app = Bare(BARS)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("L", "y")
        await passed_on(pilot)
        assert app.screen.query_one(PlotView).plot_data.y.log is False
        assert app.clipboard.splitlines()[1:] == ["s\teager\t0.0\t3.0", "s\tbuddy\t1.0\t1.0", "s\tbefore\t2.0\t2.0"]


def snapshot(*keys: str) -> Any:
    async def before(pilot: Any) -> None:
        await pilot.press(*keys)
        await at_rest(pilot)

    return before


def test_the_picture_of_an_error_that_grows(snap_compare: Any) -> None:
    """A line and points on a logarithmic axis, 100×30."""
    assert snap_compare(Bare(GROWTH), terminal_size=(100, 30), run_before=snapshot("l", "l"))


def test_the_picture_of_bars_in_ascii(snap_compare: Any) -> None:
    """Bars with names, 80×24, ASCII."""
    assert snap_compare(Bare(BARS, glyphs=formatting.ASCII), terminal_size=(80, 24), run_before=snapshot("l"))
