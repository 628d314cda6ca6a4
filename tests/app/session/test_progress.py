"""The estimated remaining time, and the bell at the end of a long job."""

from __future__ import annotations

import pytest

from buddy.app.reports import formatting
from buddy.app.reports.progress_texts import waiting_texts
from buddy.app.session.progress import BusyPeriod, PartTimes, RemainingTimeEstimate, remaining_text
from buddy.app.session.stages import StageBoard
from buddy.app.session.state import State
from buddy.app.workbench.border_lines import progress_text, status_cells
from buddy.app.workspace.settings import Settings, read_settings
from buddy.compiler.protocol import Captured, Compiled, GraphInfo, Progress, Stage
from buddy.compiler.protocol.recipe import Recipe


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_the_remaining_time_is_extrapolated_from_steady_progress() -> None:
    clock = Clock()
    pace = RemainingTimeEstimate(clock)
    pace.record(7, 0.0)
    assert pace.seconds_left() is None
    clock.now = 10.0
    pace.record(7, 0.25)
    assert pace.seconds_left() == pytest.approx(30)
    clock.now = 15.0
    assert pace.seconds_left() == pytest.approx(25)
    pace.record(8, 0.0)
    assert pace.seconds_left() is None
    clock.now = 30.0
    pace.record(8, -1.0)
    assert pace.seconds_left() is None


def test_an_unknown_share_in_between_does_not_restart_the_estimate() -> None:
    clock = Clock()
    estimate = RemainingTimeEstimate(clock)
    estimate.record(7, 0.0)
    clock.now = 60.0
    estimate.record(7, 0.5)
    estimate.record(7, -1.0)
    assert estimate.seconds_left() is None
    clock.now = 63.0
    estimate.record(7, 0.525)
    assert estimate.seconds_left() == pytest.approx(63 / 0.525 - 63)


def test_parts_are_timed_and_start_again_with_the_first_one() -> None:
    clock = Clock()
    times = PartTimes(clock)
    for now, part in ((1.0, "torch"), (4.0, ""), (5.0, "script"), (7.0, "capture"), (8.0, "compile")):
        clock.now = now
        times.record(part)
    clock.now = 8.5
    assert (times.running_part, times.seconds("compile")) == ("compile", 0.5)
    times.stop()
    clock.now = 20.0
    assert [times.seconds(part) for part in ("torch", "script", "capture", "compile", "run")] == [4, 2, 1, 0.5, 0]
    times.record("compile")
    clock.now = 21.0
    assert times.seconds("compile") == 1.5, "of two graphs"
    times.record("torch")
    assert (times.running_part, times.seconds("script")) == ("torch", 0.0)


def test_an_empty_pane_says_what_appears_and_how_far_the_parts_are() -> None:
    clock, state = Clock(), State()
    state.part_times = PartTimes(clock)
    state.record_start("open", 1)
    assert waiting_texts(state, "graph", "capture", formatting.UNICODE) == [
        "The graph appears after capturing:",
        "",
        "  1/4 importing torch     some seconds",
        "  2/4 running the script  as in Python",
        "  3/4 capturing           about 1 s/100 ops",
    ]
    state.apply(Progress(1, "importing torch", part="torch"))
    clock.now = 2.0
    state.apply(Progress(1, "running the script", part="script"))
    clock.now = 2.5
    assert progress_text(state, formatting.UNICODE) == "2/4 running the script…"
    assert waiting_texts(state, "IR", "compile", formatting.UNICODE)[2:] == [
        "  1/4 importing torch     2.00 s",
        "> 2/4 running the script  500 ms…",
        "  3/4 capturing           about 1 s/100 ops",
        "  4/4 compiling           about 1 s/200 ops",
    ]


def test_the_steps_are_numbered_up_to_the_first_compilation() -> None:
    state = State()
    state.record_start("open", 1)
    state.apply(Progress(1, "running the script", part="script"))
    state.apply(Progress(1, "capturing", part="capture"))
    state.apply(Captured(1, (GraphInfo("net", ()),)))
    for request, expected in ((2, "4/4 lowering…"), (3, "lowering…")):
        state.record_start("compile", request, Recipe())
        state.apply(Progress(request, "lowering", part="compile"))
        assert progress_text(state, formatting.UNICODE) == expected
        state.apply(Compiled(request, 0, (), 1.0))


def test_the_bell_rings_once_at_the_end_of_a_long_job() -> None:
    clock = Clock()
    jobs = BusyPeriod(clock)
    rang = []
    for now, busy in ((0, True), (5, True), (12, False), (13, False), (20, True), (22, False)):
        clock.now = now
        rang.append(jobs.update(busy, 10.0))
    assert rang == [False, False, True, False, False, False]
    clock.now = 100
    assert not jobs.update(True, 0.0)
    clock.now = 200
    assert not jobs.update(False, 0.0)


def test_missing_stages_are_expected_to_take_their_last_time(stages: list[Stage]) -> None:
    board = StageBoard()
    slow = [Stage(s.index, s.name, s.phase, s.text, s.lines, milliseconds=10_000.0 * s.index) for s in stages]
    board.begin("first")
    assert board.seconds_left() is None
    board.finish(slow)
    board.begin("again")
    board.add(slow[0])
    board.add(slow[1])
    board.add(slow[2])
    assert board.seconds_left() == pytest.approx(70, abs=1)
    board.finish(slow)
    assert board.seconds_left() is None


def test_a_stalled_job_shows_its_time_and_how_to_end_it() -> None:
    clock, state = Clock(), State()
    state._remaining = RemainingTimeEstimate(clock)
    state.record_start("compile", 7, Recipe())
    state.apply(Progress(7, "pass 3/60 tile", 0.04))
    clock.now = 3.0
    assert "for" not in progress_text(state, formatting.UNICODE)
    assert _said(state).endswith("ctrl+c cancels ")
    clock.now = 34.0
    assert progress_text(state, formatting.UNICODE).endswith("4%  for 34 s")
    assert _said(state).endswith("ctrl+c stops the job ")
    state.apply(Progress(7, "pass 4/60 cse", 0.05))
    assert "for" not in progress_text(state, formatting.UNICODE)


def _said(state: State) -> str:
    return "".join(
        text for text, _ in status_cells(state, "", "", state.busy, ("graph",), None, 80, formatting.UNICODE)
    )


@pytest.mark.parametrize(
    ("seconds", "text"), [(None, ""), (0.5, ""), (40.2, "about 40 s left"), (600, "about 10 min left")]
)
def test_estimates_are_rounded(seconds: float | None, text: str) -> None:
    assert remaining_text(seconds) == text


def test_the_bell_is_a_setting(tmp_path: object) -> None:
    path = tmp_path / "config.toml"  # type: ignore[operator]
    path.write_text("bell_after = 0\n")
    assert read_settings(path) == (Settings(bell_after=0.0), "")
