"""The workbench on the real engine, driven by keys."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from buddy.app.actions import replace_keys
from buddy.app.screens.detail import DetailScreen
from buddy.app.screens.modal import ConfirmScreen
from buddy.app.screens.picker import PickerScreen
from buddy.app.workspace.settings import Settings
from buddy.compiler.support.timing import main_thread_wait_seconds
from buddy.themes.palette import themes

pytestmark = pytest.mark.slow
Open = Callable[..., Any]


async def test_opening_a_program_shows_its_graph_its_passes_and_its_ir(workbench: Open) -> None:
    async with workbench("arith_add.py", size=(160, 50)) as bench:
        assert bench.app.state.problem is None
        await bench.sees("add")
        await bench.sees("[=] graph  flash-attention-prefill")
        await bench.sees("func.func @forward")
        await bench.sees("engine ready")


async def test_running_compares_with_eager(workbench: Open) -> None:
    async with workbench("arith_add.py") as bench:
        await bench.sees("to run and compare with eager")
        await bench.press("r")
        await bench.until(lambda: bench.app.state.report is not None, "the report")
        await bench.settled()
        assert bench.app.state.report.ok
        await bench.sees("OK       ")
        await bench.sees("eager's speed")


async def test_a_node_switched_to_eager_runs_in_eager_until_undo(workbench: Open) -> None:
    async with workbench("mlp.py", size=(160, 50)) as bench:
        node = next(row for row in bench.app.graph.rows if row.name == "gelu")
        bench.app.graph.show_node(node.stable)
        await bench.press("space")
        await bench.settled()
        assert bench.app.state.problem is None
        assert any("[ ]" in line and "gelu" in line for line in bench.screen)
        await bench.press("r")
        await bench.until(lambda: bench.app.state.report is not None, "the report")
        assert bench.app.state.report.nodes_eager == 1
        assert bench.app.state.report.ok
        await bench.press("u")
        await bench.settled()
        assert bench.app.workspace.recipe.choices == ()
        await bench.sees("STALE")


async def test_switching_a_pass_off_leaves_earlier_stages_and_changes_later_ones(workbench: Open) -> None:
    name = "fold-transposes"
    async with workbench("mlp.py", size=(160, 50)) as bench:
        before = {row.key: row.stage.text for row in bench.app.state.board.rows()}
        passes = bench.app.passes
        await bench.press("tab")
        passes.move_to(next(k for k, row in enumerate(passes.rows) if row.name == name))
        await bench.press("space")
        await bench.settled()
        after = {row.key: row.stage.text for row in bench.app.state.board.rows()}
        assert any("[ ]" in line and name in line for line in bench.screen)
        assert (name, 0) not in after
        assert after[("lower", 0)] == before[("lower", 0)]
        assert after[("one-shot-bufferize", 0)] != before[("one-shot-bufferize", 0)]
        assert bench.app.state.n_reused_stages > 0
        await bench.press("space")
        await bench.settled()
        assert bench.app.ir.chosen_key == (name, 0), "the IR of the pass that has the cursor is shown"


async def test_a_failing_pass_is_marked_and_its_tab_has_the_ir_before_and_at_the_failure(workbench: Open) -> None:
    async with workbench("arith_add.py", size=(160, 50)) as bench:
        passes = bench.app.passes
        await bench.press("tab")
        passes.move_to(next(k for k, row in enumerate(passes.rows) if row.name == "one-shot-bufferize"))
        await bench.press("space")
        await bench.settled()
        problem = bench.app.state.problem
        assert problem is not None
        assert problem.what
        assert problem.todo
        assert any("[!]" in line for line in bench.screen)
        rows = bench.app.state.board.rows()
        assert any(row.outdated_reason for row in rows), "later stages keep the last good text"
        await bench.press("u")
        await bench.settled()
        assert bench.app.state.problem is None
        assert not any(row.outdated_reason for row in bench.app.state.board.rows())


async def test_phases_and_stages_have_keys(workbench: Open) -> None:
    async with workbench("mlp.py") as bench:
        ir = bench.app.ir
        for number, language in ((1, "fx"), (3, "mlir"), (9, "llvm"), (10, "asm")):
            await bench.press(str(number % 10))
            await bench.drawn()
            assert ir.chosen_stage.language == language
        await bench.press("[")
        await bench.drawn()
        assert ir.chosen_stage.name == "translate"
        await bench.press("{")
        await bench.drawn()
        assert ir.chosen_stage.changed
        key = ir.chosen_key
        assert bench.app.passes.current.stage.key == key, "the passes pane follows"


async def test_a_search_finds_lines_and_n_goes_to_the_next(workbench: Open) -> None:
    async with workbench("mlp.py") as bench:
        ir = bench.app.ir
        await bench.press("3", "tab", "tab")
        await bench.drawn()
        await bench.press("/")
        await bench.type("linalg.generic")
        await bench.press("enter")
        await bench.until(lambda: bool(ir.search.matches.lines), "matches")
        first = ir.cursor
        assert "linalg.generic" in ir.line_at(first).text
        await bench.press("n")
        assert ir.cursor == ir.search.matches.lines[1]
        await bench.press("N", "left_parenthesis")
        assert ir.cursor in ir.search.matches.lines


async def test_selecting_a_node_goes_to_its_line_and_a_line_to_its_node(workbench: Open) -> None:
    async with workbench("mlp.py", size=(160, 50)) as bench:
        graph, ir = bench.app.graph, bench.app.ir
        place = next(k for k, row in enumerate(graph.rows) if row.name == "gelu")
        graph.move_to(place)
        stable = graph.rows[place].stable
        await bench.until(lambda: stable in (ir.line_at(ir.cursor).nodes if ir.line_at(ir.cursor) else ()), "the line")
        await bench.sees("act/gelu.0")
        ir.focus()
        await bench.press("g", "g")
        row = next(
            k
            for k in range(ir.document.line_count)
            if (line := ir.line_at(k)) and line.nodes and stable not in line.nodes
        )
        ir.move_to(row)
        await bench.passed_on()
        assert bench.app.context.selection.node == ir.line_at(row).nodes[0]
        assert graph.current.stable == bench.app.context.selection.node


async def test_key_sequences_show_the_possible_second_keys(workbench: Open) -> None:
    async with workbench("mlp.py") as bench:
        bench.app.ir.focus()
        await bench.press("G", "g")
        await bench.sees("gd definition")
        await bench.press("g")
        assert bench.app.ir.cursor == 0
        assert not bench.shows("gd definition")


async def test_the_second_keys_are_listed_after_a_pause_in_pages_and_by_mouse(workbench: Open) -> None:
    async with workbench("arith_add.py", size=(80, 24)) as bench:
        app, which_key = bench.app, bench.app.key_sequences.which_key
        await bench.press("g")
        await bench.until(lambda: which_key.display, "the list")
        await bench.sees("B Compare with torch-mlir")
        assert not bench.shows("l Graphs"), "disabled, because the program has one graph"
        assert which_key.region.bottom == app.size.height - 2, "the status line and the keys are visible"
        first_page = bench.screen
        await bench.press("down")
        assert bench.screen != first_page or which_key.page_count == 1
        await bench.press("escape")
        assert not which_key.display
        assert not app.key_sequences.pending
        await bench.press("g")
        await bench.until(lambda: which_key.display, "the list again")
        await bench.sees("i Backend")
        y, line = next((y, line) for y, line in enumerate(bench.screen) if "i Backend" in line)
        await bench.pilot.click(offset=(line.index("i Backend"), y))
        await bench.opened(PickerScreen)
        assert not which_key.display


async def test_the_list_of_second_keys_fits_a_terminal_whose_size_changes(workbench: Open) -> None:
    async with workbench("arith_add.py", size=(200, 50)) as bench:
        which_key = bench.app.key_sequences.which_key
        await bench.press("g")
        await bench.until(lambda: which_key.display, "the list")
        await bench.sees("B Compare with torch-mlir")
        await bench.pilot.resize_terminal(40, 12)
        await bench.until(lambda: which_key.size.width == 40, "the narrow list")
        assert which_key.size.height == 5, "half of the screen, without the border"
        await bench.sees("down shows more")
        for _ in range(which_key.page_count - 1):
            await bench.press("down")
        await bench.pilot.resize_terminal(200, 50)
        await bench.until(lambda: which_key.size.width == 200, "the wide list")
        await bench.sees("B Compare with torch-mlir")


async def test_a_fast_second_key_lists_nothing_and_a_click_elsewhere_ends_the_sequence(
    workbench: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A loaded machine may take long between the two keys.
    monkeypatch.setattr("buddy.app.workbench.dispatch.WHICH_KEY_SECONDS", 600.0)
    async with workbench("arith_add.py") as bench:
        which_key = bench.app.key_sequences.which_key
        opened: list[str] = []
        which_key.open = lambda prefix, continuations: opened.append(prefix)  # type: ignore[method-assign]
        await bench.pilot.press("g", "g")
        assert bench.app.graph.cursor == 0
        assert not opened
        assert bench.app.key_sequences._timer is None, "nothing is listed later"
        await bench.press("g")
        await bench.pilot.click(offset=(60, 10))
        assert not bench.app.key_sequences.pending


@pytest.fixture
def default_keys() -> Iterator[None]:
    """Restores the default keys after a test that replaces some."""
    yield
    replace_keys({})


@pytest.mark.usefixtures("default_keys")
async def test_remapped_sequences_are_listed_and_the_key_line_is_clicked(workbench: Open) -> None:
    settings = Settings(keys={"runs": "z q", "graph.filter": "z f"})
    async with workbench("arith_add.py", settings=settings) as bench:
        column = bench.screen[-1].index("z more")
        await bench.pilot.click(offset=(column, bench.app.size.height - 1))
        await bench.until(lambda: bench.app.key_sequences.which_key.display, "the list")
        await bench.sees("f Filter")
        await bench.press("escape")
        await bench.pilot.click(offset=(bench.screen[-1].index("? help"), bench.app.size.height - 1))
        await bench.opened(DetailScreen)


async def test_a_disabled_key_shows_the_reason(workbench: Open) -> None:
    async with workbench("arith_add.py") as bench:
        await bench.press("u")
        await bench.sees("Undo: nothing to undo")
        bench.app.graph.move_to(0)
        await bench.press("space")
        await bench.sees("is a placeholder, which has no lowering")


async def test_messages_disappear_after_a_while(workbench: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    async with workbench("arith_add.py", wait=False) as bench:
        monkeypatch.setattr("buddy.app.panes.jobs.MESSAGE_SECONDS", 0.05)
        bench.app.context.say("said")
        assert bench.app.context.status.message == "said"
        await bench.until(lambda: not bench.app.context.status.message, "silence")


async def test_a_pass_is_inserted_from_the_catalogue_moved_and_removed(workbench: Open) -> None:
    async with workbench("arith_add.py", size=(160, 50)) as bench:
        await bench.until(lambda: bool(bench.app.state.passes), "the catalogue")
        passes = bench.app.passes
        await bench.press("tab")
        passes.move_to(next(k for k, row in enumerate(passes.rows) if row.name == "lower"))
        await bench.press("i")
        await bench.type("symbol-dce")
        await bench.press("enter")
        await bench.settled()
        names = [step.name for step in bench.app.workspace.recipe.steps]
        assert "symbol-dce" in names
        assert passes.current.name == "symbol-dce"
        await bench.press("J")
        moved = [step.name for step in bench.app.workspace.recipe.steps]
        assert moved.index("symbol-dce") == names.index("symbol-dce") + 1
        await bench.press("x")
        assert "symbol-dce" not in [step.name for step in bench.app.workspace.recipe.steps]


async def test_the_number_of_threads_is_chosen_from_a_list(workbench: Open) -> None:
    async with workbench("arith_add.py", size=(160, 50)) as bench:
        await bench.sees("1 thread")
        await bench.press("t")
        await bench.type("2")
        await bench.press("enter")
        await bench.settled()
        assert bench.app.workspace.recipe.threads == 2
        await bench.sees("2 threads")


async def test_options_are_edited_in_a_form(workbench: Open) -> None:
    async with workbench("arith_add.py", size=(160, 50)) as bench:
        await bench.until(lambda: bool(bench.app.state.passes), "the catalogue")
        passes = bench.app.passes
        await bench.press("tab")
        place = next(k for k, row in enumerate(passes.rows) if row.name == "canonicalize")
        passes.move_to(place)
        info = next(info for info in bench.app.state.passes if info.name == "canonicalize")
        number = next(k for k, option in enumerate(info.options) if option.name == "max-iterations")
        await bench.press("E")
        await bench.press(*["tab"] * number)
        await bench.type("many")
        await bench.press("enter")
        await bench.sees("[!] many is not a whole number")
        await bench.press(*["backspace"] * 4)
        await bench.type("7")
        assert not bench.shows("not a whole number")
        await bench.press("enter")
        assert ("max-iterations", 7) in passes.rows[place].step.options


async def test_below_100_columns_one_pane_is_shown_and_named_in_the_status_line(workbench: Open) -> None:
    async with workbench("mlp.py", size=(80, 24)) as bench:
        await bench.sees("[Graph]")
        assert not bench.shows("func.func")
        await bench.press("tab", "tab")
        await bench.sees("[IR]")
        await bench.sees("func.func")
        assert not bench.shows("[x]")
        await bench.press("shift+tab")
        await bench.sees("[Passes]")
        await bench.pilot.resize_terminal(160, 50)
        await bench.sees("func.func")
        await bench.sees("act/gelu.0")


async def test_zoom_maximizes_a_pane_and_restores_the_layout(workbench: Open) -> None:
    async with workbench("mlp.py") as bench:
        width = bench.app.graph.width
        await bench.press("+")
        await bench.until(lambda: bench.app.graph.width > 100, "a wide pane")
        await bench.press("+")
        await bench.until(lambda: bench.app.graph.width == width, "the pane as it was")


async def test_themes_are_previewed(workbench: Open) -> None:
    async with workbench("arith_add.py") as bench:
        before = bench.app.theme
        await bench.press("T")
        seen = [bench.app.theme]
        for _ in list(themes())[1:]:
            await bench.press("down")
            seen.append(bench.app.theme)
        assert seen == list(themes())
        await bench.press("escape")
        assert bench.app.theme == before == "buddy-dark"
        await bench.press("T")
        await bench.type("light")
        assert bench.app.theme != before
        await bench.press("enter")
        assert themes()[bench.app.theme].title.endswith("ight")
        await bench.sees("config.toml")


async def test_the_recipe_is_restored_in_the_next_session(workbench: Open) -> None:
    async with workbench("arith_add.py") as bench:
        await bench.press("space")
        await bench.settled()
        edited = bench.app.workspace.recipe
    async with workbench("arith_add.py") as bench:
        assert bench.app.workspace.recipe == edited
        await bench.sees("recipe: restored")
        await bench.sees("[ ]")


async def test_a_stage_is_written_to_a_file(workbench: Open, tmp_path: Path) -> None:
    async with workbench("arith_add.py") as bench:
        await bench.press("3", "tab", "tab")
        await bench.drawn()
        await bench.press("w")
        field = bench.app.screen.query_one("#prompt Input")
        field.value = str(tmp_path / "out.mlir")
        await bench.press("enter")
        await bench.until((tmp_path / "out.mlir").exists, "the file")
        assert "func.func @forward" in (tmp_path / "out.mlir").read_text()


async def test_an_invalid_regular_expression_is_reported(workbench: Open) -> None:
    async with workbench("arith_add.py") as bench:
        await bench.press("3", "tab", "tab")
        await bench.drawn()
        await bench.press("/")
        await bench.type("(")
        await bench.press("enter")
        await bench.sees("invalid regular expression")


@pytest.mark.parametrize(
    ("script", "word"),
    [
        ("raise RuntimeError('no weights here')", "no weights here"),
        ("import sys; sys.exit(3)", "status 3"),
        ("x = 1", "model"),
        ("input('name? ')", "input"),
    ],
)
async def test_a_failing_script_is_one_message_and_the_workbench_continues(
    workbench: Open, tmp_path: Path, script: str, word: str
) -> None:
    path = tmp_path / "script.py"
    path.write_text(f"print('printed first')\n{script}\n")
    async with workbench(path, size=(160, 50)) as bench:
        problem = bench.app.state.problem
        assert problem is not None
        assert word in str(problem)
        await bench.sees("printed first")
        await bench.sees("[!]")
        await bench.press("tab", "?")
        await bench.sees("Help: Passes")


async def test_a_missing_file_is_reported(workbench: Open, tmp_path: Path) -> None:
    async with workbench(tmp_path / "none.py") as bench:
        assert bench.app.state.problem is not None
        assert "none.py" in str(bench.app.state.problem)


async def test_an_endless_script_can_be_cancelled_and_restarted(workbench: Open, tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    path.write_text("import time\nprint('going round', flush=True)\nwhile True: time.sleep(0.1)\n")
    async with workbench(path, wait=False) as bench:
        await bench.until(lambda: bench.shows("going round"), "the printout")
        await bench.press("ctrl+c")
        await bench.until(lambda: not bench.app.state.busy, "the cancel")
        cancelled = "Cancelled. Press R to run the script again"
        await bench.until(lambda: "".join(bench.screen).count(cancelled) == 3, "graph, IR and status line")
        assert not bench.shows("cancelling")
        path.write_text("import torch\n\n\ndef model(x):\n    return x + 1\n\n\nexample_inputs = (torch.ones(3),)\n")
        await bench.press("R")
        await bench.until(lambda: bench.app.state.compiled_recipe is not None, "the compilation")
        assert bench.app.state.problem is None


async def test_a_killed_engine_is_restarted_without_loss(workbench: Open) -> None:
    async with workbench("arith_add.py") as bench:
        await bench.press("space")
        await bench.settled()
        edited, pid = bench.app.workspace.recipe, bench.app.state.welcome.pid
        os.kill(pid, signal.SIGKILL)
        await bench.until(lambda: bench.app.state.welcome.pid != pid, "another engine")
        await bench.settled()
        assert bench.app.workspace.recipe == edited
        assert bench.app.state.compiled_recipe == edited
        await bench.sees("func.func @forward")


async def test_keys_work_while_the_engine_is_busy(workbench: Open) -> None:
    async with workbench("mlp.py") as bench:
        loop, ir = asyncio.get_running_loop(), bench.app.ir
        bench.app.context.edits.edit(
            bench.app.workspace.recipe.with_choice(bench.app.graph.current.stable, "eager"), "in eager"
        )
        ir.focus()
        waits = []
        while bench.app.state.busy or len(waits) < 3:
            # What others take of the cores is the machine's: this process was ready, and is waited for.
            start, late = loop.time(), main_thread_wait_seconds(os.getpid())
            await bench.pilot.press("j" if len(waits) % 2 == 0 else "k")
            waits.append(loop.time() - start - (main_thread_wait_seconds(os.getpid()) - late))
        assert sorted(waits)[len(waits) // 2] < 0.5, "a compile in this process would block for its whole length"


async def test_quitting_asks_while_a_job_runs_or_the_recipe_is_not_saved(workbench: Open) -> None:
    async with workbench("arith_add.py", wait=False) as bench:
        app = bench.app
        await bench.until(lambda: app.busy, "a job")
        await bench.press("q")
        await bench.opened(ConfirmScreen)
        await bench.sees("A job is running")
        await bench.press("q")
        assert len(app.screen_stack) == 1, "q closes the question"
        await bench.settled()
        app.workspace.problem = "the recipe could not be saved: disk full"
        await bench.press("ctrl+q")
        screen = await bench.opened(ConfirmScreen)
        assert screen._question == "The recipe could not be saved: disk full. Quit?"
        await bench.press("escape")
        assert not app._exit
        app.workspace.problem = ""
        await bench.until(lambda: not app.busy, "the end of all jobs")
        await bench.press("q")
        assert app._exit
        assert app.return_value == 0
