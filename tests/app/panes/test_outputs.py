"""The text of the outputs pane, the header, the status line and the key line."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from buddy.app.actions import PANES, Situation
from buddy.app.panes.outputs import outputs_lines
from buddy.app.reports import formatting
from buddy.app.screens.tables import RunsScreen
from buddy.app.session.monitors import FileStates
from buddy.app.session.state import State
from buddy.app.widgets.look import Cells, cells_length, wrap_line
from buddy.app.workbench import border_lines
from buddy.app.workspace.session_file import RunRecord
from buddy.app.workspace.workspace import Workspace
from buddy.compiler import protocol as p
from buddy.compiler.protocol.recipe import Recipe
from buddy.compiler.protocol.run_report import ErrorCheck, MachineLoad

EAGER, BUDDY = p.Timing(0.4, 0.39, 0.41, 10), p.Timing(0.2, 0.19, 0.21, 10)


def report(**changes: object) -> p.RunReport:
    given = {"max_abs": 1.4e-6, "max_rel": 3e-5, "verdict": "ok", **changes}
    output = p.OutputReport("out0", (1, 128), "f32", histogram=(1, 4, 1), low=-1.0, high=1.0, **given)  # type: ignore[arg-type]
    return p.RunReport(0, (output,), BUDDY, EAGER, 9, 1, 0.5)


def text_of(lines: list[Cells]) -> str:
    return "\n".join("".join(part for part, _ in line) for line in lines)


def shown(state: State, recipe: Recipe, width: int = 90, glyphs: formatting.Glyphs = formatting.UNICODE) -> str:
    return text_of(outputs_lines(state, recipe, width, glyphs))


@pytest.fixture
def state(recipe: Recipe) -> State:
    made = State(captured=True)
    made.graph_state.record_run(recipe, report())
    return made


def test_nodes_that_may_call_eager_are_counted(state: State, recipe: Recipe) -> None:
    checked = replace(report(), nodes_eager=0, error_paths=2)
    state.graph_state.record_run(recipe, checked)
    assert "9/9 nodes compiled, no fallback, 2 with an error path in eager" in shown(state, recipe)
    state.graph_state.record_run(recipe, replace(checked, slow_paths=1))
    assert "9/9 nodes compiled, 1 with a slow path in eager, 2 with an error path in eager" in shown(state, recipe, 120)


def test_a_run_shows_verdict_error_and_both_times(state: State, recipe: Recipe) -> None:
    text = shown(state, recipe)
    for part in (
        "OK",
        "out0 f32[1,128]",
        "1.4e-06",
        "400 ms",
        "200 ms",
        "2.00x eager's speed",
        "9/10 nodes compiled, 1 in eager",
    ):
        assert part in text


def test_the_slower_of_the_two_has_the_longer_bar(state: State, recipe: Recipe) -> None:
    lines = shown(state, recipe, glyphs=formatting.ASCII).splitlines()
    eager, buddy = (next(line for line in lines if line.startswith(name)) for name in ("eager", "buddy"))
    assert eager.count("#") == pytest.approx(2 * buddy.count("#"), abs=1)


def test_previous_runs_have_bars(state: State, recipe: Recipe) -> None:
    state.runs = [RunRecord(3600.0 * hour, recipe, report()) for hour in range(6)]
    lines = shown(state, recipe).splitlines()
    clocks = [run.end_time for run in state.runs]
    found = [clock for line in lines for clock in clocks if line.startswith(clock)]
    assert found == [clocks[4], clocks[3], clocks[2]], "not the one on the screen, and no more than there is room for"


def test_a_mismatch_shows_its_first_position(state: State, recipe: Recipe) -> None:
    checks = (ErrorCheck("max abs error", 1.4e-6, 1e-7, "4 x spread 2.5e-08"), ErrorCheck("rms error", 1e-8, 2e-8, ""))
    state.graph_state.report = report(verdict="mismatch", where="[0, 17]", nans=3, checks=checks)
    assert "MISMATCH out0" in shown(state, recipe)
    assert "first differs at [0, 17] · 3 NaN" in shown(state, recipe)
    assert "max abs error 1.4e-06 > 1.0e-07 allowed (4 x spread 2.5e-08)" in shown(state, recipe)
    assert "rms error" not in shown(state, recipe)


def test_a_report_of_another_recipe_is_stale_and_shows_the_previous_error(state: State, recipe: Recipe) -> None:
    state.graph_state.previous_report = report(max_abs=3.1e-2)
    text = shown(state, recipe.toggled(0))
    assert "STALE" in text
    assert "(was 3.1e-02)" in text
    assert "STALE" not in shown(state, recipe)


def test_a_report_is_stale_after_its_script_or_its_inputs_changed(state: State, recipe: Recipe) -> None:
    text = text_of(outputs_lines(state, recipe, 90, formatting.UNICODE, ["model.py"]))
    assert "STALE: model.py changed on disk; press R to reload" in text
    state.next_inputs = p.InputChoice("random", 3)
    assert "STALE: results are for the script's own inputs; press r to run again" in shown(state, recipe)
    state.graph_state.inputs = p.InputChoice("random", 3)
    assert "STALE" not in shown(state, recipe)


def test_changed_files_are_detected_and_remote_files_are_ignored(tmp_path: Path) -> None:
    first, second = tmp_path / "a.py", tmp_path / "b.py"
    for path in (first, second):
        path.write_text("1")
    disk = FileStates()
    disk.record([str(first), str(second), str(tmp_path / "elsewhere.py"), "no\0path"])
    assert disk.changed_names() == []
    first.write_text("22")
    second.unlink()
    assert disk.changed_names() == ["a.py", "b.py"]
    disk.record([str(first)])
    assert disk.changed_names() == []


def test_nan_on_both_sides_is_not_ok_and_is_counted_on_each(state: State, recipe: Recipe) -> None:
    state.graph_state.report = report(verdict="nan", nans=3, eager_nans=3, where="[0, 1]", zero_signs=2)
    text = shown(state, recipe, 120)
    assert "NaN      out0" in text
    assert "3 NaN, 3 in eager · set equal_nan to treat NaN as equal to NaN" in text
    assert "2 zeros with the opposite sign" in " ".join(text.split())
    assert "OK" not in text


def test_outputs_without_a_comparison_show_the_reason(state: State, recipe: Recipe) -> None:
    state.graph_state.report = replace(report(), outputs=())
    assert "not compared with eager: the graph returns no tensor" in shown(state, recipe)
    state.graph_state.report = replace(report(verdict="unchecked"), compared=False)
    assert "not compared with eager: there is no eager program" in shown(state, recipe)


def test_timings_show_the_load_of_the_machine(state: State, recipe: Recipe) -> None:
    state.graph_state.report = replace(report(), load=MachineLoad(1.5, 0.7, 2, 2450))
    assert "machine: load 1.50 on 2 cores, other processes used 0.7 cores, 2450 MHz" in shown(state, recipe, 120)
    assert formatting.load_text(MachineLoad(0.1, 0.0, 1)) == "machine: load 0.10 on 1 core, no other load"
    assert formatting.load_text(MachineLoad(-1.0, -1.0, 1)) == "machine: load unknown"
    told = RunsScreen([], []).foot_text(RunRecord(0.0, recipe, state.graph_state.report))
    assert "10 runs, quartiles 190 ms to 210 ms; machine: load 1.50" in told


def test_changed_inputs_are_reported(state: State, recipe: Recipe) -> None:
    import msgspec

    state.graph_state.report = msgspec.structs.replace(report(), inputs_unchanged=False)
    assert "changed its inputs or weights" in shown(state, recipe)


def test_a_problem_shows_what_where_and_what_to_do_above_the_printout(recipe: Recipe) -> None:
    state = State(printout=["hello", ""])
    state.record_start("open", 1)
    state.apply(p.Failed(1, p.Diagnostic("it raised", "model.py:3", "mend it")))
    text = shown(state, recipe)
    assert text.index("it raised") < text.index("model.py:3") < text.index("mend it") < text.index("hello")


def test_in_ascii_mode_nothing_beyond_ascii_is_drawn(state: State, recipe: Recipe, tmp_path: object) -> None:
    workspace = Workspace("model.py", store=tmp_path)  # type: ignore[arg-type]
    state.progress = p.Progress(1, "loading", 0.5)
    texts = [shown(state, recipe, glyphs=formatting.ASCII)]
    texts.append(text_of([border_lines.header_cells(state, workspace, state.busy, 120, formatting.ASCII)]))
    texts.append(text_of([border_lines.status_cells(state, "", "", state.busy, PANES, "ir", 80, formatting.ASCII)]))
    assert all(text.isascii() for text in texts)


@pytest.mark.parametrize("width", [80, 120, 160])
@pytest.mark.parametrize("pane", PANES)
def test_the_keys_fit_their_line_and_end_with_help(pane: str, width: int) -> None:
    cells = border_lines.key_cells(pane, Situation(), width)  # type: ignore[arg-type]
    assert cells_length(cells) <= width
    assert "help" in text_of([cells])
    assert "commands" in text_of([cells])


def test_a_recipe_that_was_compiled_before_has_no_time(state: State) -> None:
    state.engine, state.graph_state.compiled_recipe = "ready", Recipe()
    state.graph_state.n_reused_stages, state.graph_state.compile_seconds = 63, 0.0
    text = text_of([border_lines.status_cells(state, "", "", False, PANES, None, 80, formatting.UNICODE)])
    assert text.strip() == "compiled before: all 63 stages are from the cache"
    state.graph_state.compile_seconds = 0.5
    text = text_of([border_lines.status_cells(state, "", "", False, PANES, None, 80, formatting.UNICODE)])
    assert text.strip() == "compiled in 500 ms (63 stages from cache)"


def test_the_status_line_prefers_the_hint_then_the_message_then_the_problem(state: State) -> None:
    state.problems["compile"] = p.Diagnostic("it failed", "pass 3")

    def line(message: str, hint: str) -> str:
        return text_of(
            [border_lines.status_cells(state, message, hint, state.busy, PANES, None, 80, formatting.UNICODE)]
        )

    assert "g…" in line("said", "g…")
    assert "said" in line("said", "")
    assert "it failed (pass 3)" in line("", "")


@pytest.mark.parametrize(
    ("value", "text"), [(0.0, ""), (0.74, "0.74 ms"), (7.44, "7.4 ms"), (120.2, "120 ms"), (12_000.0, "12.0 s")]
)
def test_times_are_short(value: float, text: str) -> None:
    assert formatting.milliseconds(value) == text


def test_a_histogram_shows_every_bin_that_holds_anything() -> None:
    assert formatting.histogram((0, 1, 1000), formatting.ASCII) == " .@"


@pytest.mark.parametrize("width", [24, 40, 74])
@pytest.mark.parametrize(
    "line",
    [
        [("  space             ", "key"), ("Run the node in eager PyTorch, or compile it again", "text")],
        [("one long line of words without a second cell, which goes on and on", "text")],
    ],
)
def test_text_is_wrapped_between_words_without_loss(line: Cells, width: int) -> None:
    whole = "".join(text for text, _ in line)
    pieces = ["".join(text for text, _ in piece) for piece in wrap_line(line, width)]
    assert all(len(piece) <= width for piece in pieces)
    assert " ".join(pieces).split() == whole.split()


def test_a_word_longer_than_the_line_is_cut() -> None:
    pieces = ["".join(text for text, _ in piece) for piece in wrap_line([("x" * 25, "text")], 10)]
    assert pieces == ["x" * 10, "x" * 10, "x" * 5]


def test_facts_that_do_not_fit_are_left_out_whole() -> None:
    facts = ["1/3", "0.43 ms", "line 1 of 1,234"]
    assert formatting.join_fitting(facts, " · ", 80) == "1/3 · 0.43 ms · line 1 of 1,234"
    assert formatting.join_fitting(facts, " · ", 30) == "1/3 · 0.43 ms"
    assert formatting.join_fitting(facts, " · ", 2) == ""
