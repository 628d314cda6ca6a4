"""The state that the engine's frames build."""

from __future__ import annotations

import pytest

from buddy.app.session.state import State
from buddy.app.workspace.session_file import make_record
from buddy.compiler import protocol as p
from buddy.compiler.protocol.recipe import Recipe
from buddy.compiler.protocol.run_report import InputChoice


@pytest.fixture
def state() -> State:
    made = State()
    made.apply(p.Welcome(1, "0.1", 42))
    made.record_start("open", 1)
    rows = (p.NodeRow(0, "mm", "call_function", "mm", "aten.mm.default", "(a, b)", "{}"),)
    made.apply(p.Captured(1, (p.GraphInfo("net", rows),)))
    return made


def ran(request: int, max_abs: float) -> p.Ran:
    timing = p.Timing(0.1, 0.09, 0.11, 10)
    output = p.OutputReport("out0", (4,), "f32", max_abs, 0.0, "ok")
    return p.Ran(request, p.RunReport(0, (output,), timing, timing, 1, 0, 0.5))


def test_capture_ends_the_opening(state: State) -> None:
    assert (state.captured, state.busy, state.info.name if state.info else "") == (True, False, "net")


def test_a_cancelled_opening_is_reported_until_the_next_one() -> None:
    state, cancelled = State(), p.Diagnostic("cancelled", severity="note")
    for request in (1, 2):
        state.record_start("open", request)
        assert not state.opening_cancelled
        state.apply(p.Failed(request, cancelled, cancelled=True))
        assert (state.opening_cancelled, state.problem) == (True, None)
    state.record_start("open", 3)
    state.record_start("open", 4)
    state.apply(p.Failed(3, cancelled, cancelled=True))
    assert not state.opening_cancelled, "another attempt has replaced it"


def test_a_compilation_ends_with_its_stages_and_none_stale(state: State, recipe: Recipe, stages: list[p.Stage]) -> None:
    state.record_start("compile", 2, recipe)
    for stage in stages:
        state.apply(p.StageDone(2, 0, stage))
    state.apply(p.Compiled(2, 0, tuple(stages), 1.5, reused=2))
    assert (state.busy, state.compiled_recipe, state.n_reused_stages) == (False, recipe, 2)
    assert not any(row.outdated_reason for row in state.board.rows())


def test_stages_of_an_overtaken_compilation_are_not_shown(state: State, recipe: Recipe, stages: list[p.Stage]) -> None:
    state.record_start("compile", 2, recipe)
    state.record_start("compile", 3, recipe.toggled(0))
    state.apply(p.StageDone(2, 0, stages[0]))
    state.apply(p.Compiled(2, 0, tuple(stages), 1.0))
    assert state.board.rows() == []
    assert state.compiled_recipe is None
    assert list(state.jobs) == [3]


def test_a_compilation_that_a_run_of_its_recipe_overtakes_is_shown(
    state: State, recipe: Recipe, stages: list[p.Stage]
) -> None:
    state.record_start("compile", 2, recipe)
    state.record_start("run", 3, recipe)
    state.apply(p.Compiled(2, 0, tuple(stages), 1.0))
    state.apply(ran(3, 0.0))
    assert (state.busy, state.compiled_recipe) == (False, recipe)
    assert [row.outdated_reason for row in state.board.rows()] == [""] * len(stages)


def test_a_failure_is_a_problem_until_the_next_complete_compilation(
    state: State, recipe: Recipe, stages: list[p.Stage]
) -> None:
    state.record_start("compile", 2, recipe)
    state.apply(p.Failed(2, p.Diagnostic("no", "there", "this"), stages=tuple(stages[:2])))
    assert state.problem is not None
    assert [row.stage.name for row in state.board.rows()] == ["fx", "lower"]
    state.record_start("compile", 3, recipe.toggled(0))
    state.apply(p.Compiled(3, 0, tuple(stages), 1.0))
    assert state.problem is None


def test_a_cancelled_job_is_no_problem_and_its_missing_stages_have_a_reason(
    state: State, recipe: Recipe, stages: list[p.Stage]
) -> None:
    state.record_start("compile", 2, recipe)
    state.apply(p.Compiled(2, 0, tuple(stages), 1.0))
    state.record_start("compile", 3, recipe.toggled(0))
    state.apply(p.Failed(3, p.Diagnostic("cancelled"), cancelled=True))
    assert state.problem is None
    assert {row.outdated_reason for row in state.board.rows()} == {"cancelled"}


def test_running_a_compiled_recipe_makes_nothing_stale(state: State, recipe: Recipe, stages: list[p.Stage]) -> None:
    state.record_start("compile", 2, recipe)
    state.apply(p.Compiled(2, 0, tuple(stages), 1.0))
    state.record_start("run", 3, recipe)
    assert not any(row.outdated_reason for row in state.board.rows())


def test_a_run_that_crashes_leaves_the_stages_alone(state: State, recipe: Recipe, stages: list[p.Stage]) -> None:
    state.record_start("run", 2, recipe)
    state.apply(p.Compiled(2, 0, tuple(stages), 1.0))
    state.apply(p.Failed(2, p.Diagnostic("the kernel crashed")))
    assert set(state.problems) == {"run"}
    assert not any(row.outdated_reason for row in state.board.rows())


def test_the_report_before_an_edit_is_kept(state: State, recipe: Recipe) -> None:
    for request, max_abs, edited in ((2, 1e-2, recipe), (3, 1e-6, recipe.toggled(0)), (4, 2e-6, recipe.toggled(0))):
        state.record_start("run", request, edited)
        state.apply(ran(request, max_abs))
    assert state.report is not None
    assert state.previous_report is not None
    assert (state.previous_report.outputs[0].max_abs, state.report.outputs[0].max_abs) == (1e-2, 2e-6)


def test_printed_text_is_split_into_lines_across_frames(state: State) -> None:
    for piece in ("one\ntw", "o\n", "three"):
        state.apply(p.Printout(piece))
    assert state.printout == ["one", "two", "three"]


def test_an_unexpected_worker_exit_without_a_failed_request_is_logged(state: State) -> None:
    how = "SIGSEGV, an access to invalid memory"
    for end in ("asked", "request", "idle", "start"):
        state.apply(p.WorkerState("compiler", "dead", how, end, again=end == "idle"))
        state.apply(p.WorkerState("compiler", "starting"))
    assert [str(entry) for entry in state.log] == [
        f"the compiler worker exited: {how} · while it was idle · another worker is starting",
        f"the compiler worker exited: {how} · while it started · it starts again when it is needed",
    ]


def test_after_the_engine_exits_nothing_runs_and_stages_are_stale(
    state: State, recipe: Recipe, stages: list[p.Stage]
) -> None:
    state.record_start("compile", 2, recipe)
    state.apply(p.Compiled(2, 0, tuple(stages), 1.0))
    state.record_start("run", 3, recipe)
    state.record_engine_exit(p.Diagnostic("gone"))
    assert (state.engine, state.busy, state.compiled_recipe) == ("lost", False, None)
    assert all(row.outdated_reason for row in state.board.rows())


def test_graphs_of_an_earlier_session_are_marked_until_the_script_has_run(state: State, recipe: Recipe) -> None:
    graphs = state.graphs
    restored = State()
    restored.runs = [make_record(1e9, recipe, ran(1, 0.5).report, InputChoice())]
    restored.record_start("open", 1)
    restored.apply(p.Reopened(1, graphs, saved_at=2e9))
    restored.restore_report(0)
    assert (restored.captured, restored.busy, restored.restored_at) == (True, True, 2e9)
    assert restored.report is not None
    assert restored.run_recipe is None, "its results are outdated"
    restored.apply(p.Captured(1, graphs))
    assert restored.restored_at == 0
    assert restored.graph_state.restored_run is not None, "the program has not been run yet"
    restored.record_start("run", 2, recipe)
    restored.apply(ran(2, 0.25))
    assert restored.graph_state.restored_run is None
    assert restored.run_recipe == recipe
    assert restored.previous_report is not None


def test_a_failed_opening_leaves_the_graphs_of_the_earlier_session_marked(state: State) -> None:
    restored = State()
    restored.record_start("open", 1)
    restored.apply(p.Reopened(1, state.graphs, saved_at=2e9))
    restored.apply(p.Failed(1, p.Diagnostic("the data is missing")))
    assert restored.restored_at == 2e9
    assert restored.problem is not None
