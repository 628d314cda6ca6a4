"""A workbench on a dump of another compiler."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from buddy.app.screens.picker import PickerScreen
from buddy.app.screens.stage_lists import SearchResultsScreen
from buddy.compiler.mlir.mlir_tool import TOOL_VARIABLE
from tests.support.dumps import mlir_opt, unpack, write_log

Open = Callable[..., Any]


async def test_stages_are_read_and_compared_function_by_function(workbench: Open, tmp_path: Path) -> None:
    path = unpack("mlir", tmp_path) / "after_all.log"
    async with workbench(path, size=(160, 50), wait=False) as bench:
        await bench.settled()
        app = bench.app
        assert app.ir.chosen_stage.index == 0, "a dump is read from its first stage"
        assert bench.shows("[x] @scale canonicalize")
        assert bench.shows("[=] @scale cse")
        assert bench.shows("3 passes changed nothing")
        assert bench.shows("a log of IR after or before each pass")
        # The stage before is of another function; the diff is with the one of the same function.
        generalized = next(row for row in app.ir.stages.rows if row.stage.name == "linalg-generalize-named-ops")
        app.ir.choose(generalized)
        app.show_pane("ir")
        await bench.press("d")
        await bench.drawn()
        other = app.ir.comparison.other_of(generalized)
        assert (other.name, other.anchor) == ("canonicalize", generalized.stage.anchor)
        assert bench.shows("linalg.generic")
        assert bench.shows("from canonicalize")


async def test_actions_that_need_a_pipeline_say_why_they_are_disabled(workbench: Open, tmp_path: Path) -> None:
    async with workbench(unpack("triton", tmp_path) / "kernels", size=(120, 40), wait=False) as bench:
        await bench.settled()
        bench.app.show_pane("passes")
        await bench.press("space")
        await bench.sees("the dump does not name this stage's pass")
        await bench.press("r")
        await bench.sees("but no pipeline")
        assert [tab.name for tab in bench.app.ir.stages.tabs()] == ["ttir", "ttgir", "llir", "ptx", "sass"]


async def test_a_source_line_is_followed_through_the_stages(workbench: Open, tmp_path: Path) -> None:
    async with workbench(unpack("triton", tmp_path) / "kernels", size=(160, 50), wait=False) as bench:
        await bench.settled()
        rows = bench.app.graph.rows
        assert [row.location for row in rows if row.location.endswith("kernel.py:9")]
        store = next(k for k, row in enumerate(rows) if row.location.endswith("kernel.py:9"))
        bench.app.show_pane("graph")
        bench.app.graph.center(store)
        await bench.press("enter")
        await bench.sees("tt.store")


async def test_all_stages_are_searched(workbench: Open, tmp_path: Path) -> None:
    async with workbench(unpack("xla", tmp_path) / "hlo", size=(160, 50), wait=False) as bench:
        await bench.settled()
        bench.app.show_pane("ir")
        await bench.press("g", "slash")
        await bench.press(*"fusion", "enter")
        screen = await bench.opened(SearchResultsScreen)
        assert screen is not None


async def test_a_followed_log_stays_at_its_last_stage(workbench: Open, tmp_path: Path) -> None:
    content = (unpack("mlir", tmp_path) / "after_all.log").read_bytes()
    path = tmp_path / "growing.log"
    path.write_bytes(content[: len(content) // 3])
    async with workbench(path, wait=False) as bench:
        app = bench.app
        await bench.settled()
        app.session.follows_file = True
        app.session.start_over()
        await bench.until(lambda: app.ir.chosen_stage is not None and app.state.engine == "ready", "the first stages")
        await bench.settled()
        app.ir.choose(app.ir.stages.rows[-1])
        count = len(app.ir.stages.rows)
        path.write_bytes(content)
        await bench.until(lambda: len(app.ir.stages.rows) > count, "more stages")
        await bench.until(lambda: app.ir.stages.index == len(app.ir.stages.rows) - 1, "the last stage")
        assert app.ir.chosen_stage.name == "convert-scf-to-cf"


async def test_a_dump_without_locations_says_how_to_print_them(workbench: Open, tmp_path: Path) -> None:
    async with workbench(unpack("mlir", tmp_path) / "threads.log", size=(160, 50), wait=False) as bench:
        await bench.settled()
        assert bench.shows("the dump names no source lines")


async def test_a_step_is_turned_off_and_on_and_undone(
    workbench: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TOOL_VARIABLE, mlir_opt())
    path = write_log(tmp_path / "a.log")
    async with workbench(path, size=(160, 50), wait=False) as bench:
        await bench.settled()
        app = bench.app
        recorded = [row.stage.text for row in app.state.board.rows()]
        app.show_pane("passes")
        app.passes.toggle_disabled()
        row = next(k for k, row in enumerate(app.passes.rows) if row.name == "loop-invariant-code-motion")
        app.passes.center(row)
        await bench.drawn()
        await bench.press("space")
        await bench.sees("4 steps run again by torch-mlir-opt")
        await bench.settled()
        assert [row.step.enabled for row in app.passes.rows if row.name == "loop-invariant-code-motion"] == [False] * 2
        assert bench.shows("[ ] @squa… loop-invariant-code-motion")
        assert [row.stage.stage.again for row in app.passes.rows][-5:] == [True] * 5
        assert [row.stage.text for row in app.state.board.rows()] != recorded
        await bench.press("u")
        await bench.until(lambda: [row.stage.text for row in app.state.board.rows()] == recorded, "the recorded stages")
        await bench.settled()
        assert not any(row.stage.stage.again for row in app.passes.rows)
        # Turned off again on the row of the other function, and on again.
        app.passes.center(row + 1)
        await bench.press("space")
        await bench.sees("4 steps run again by torch-mlir-opt")
        await bench.settled()
        await bench.press("space")
        await bench.until(lambda: [row.stage.text for row in app.state.board.rows()] == recorded, "the recorded stages")


async def test_a_step_that_cannot_be_left_out_says_why(
    workbench: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TOOL_VARIABLE, mlir_opt())
    async with workbench(write_log(tmp_path / "a.log"), size=(200, 50), wait=False) as bench:
        await bench.settled()
        bench.app.show_pane("passes")
        bench.app.passes.center(0)
        await bench.press("space")
        await bench.sees("no text of the whole module before symbol-dce")
        await bench.press("u")
        await bench.settled()
        next_row = next(k for k, row in enumerate(bench.app.passes.rows) if row.name.startswith("stablehlo"))
        bench.app.passes.center(next_row)
        await bench.press("space")
        await bench.sees("torch-verify-linalg-on-tensors-backend-contract failed")


async def test_the_first_stage_that_shows_a_failure_is_found(workbench: Open, tmp_path: Path) -> None:
    path = write_log(tmp_path / "a.log", "--mlir-print-ir-after-all", "--mlir-print-ir-module-scope")
    async with workbench(path, size=(160, 50), wait=False) as bench:
        await bench.settled()
        await bench.press("b")
        screen = await bench.opened(PickerScreen)
        assert screen is not None
        await bench.press(*"test", "enter")
        await bench.sees("test, with {} for the module")
        await bench.press("ctrl+u", *"grep -q linalg.generic {}", "enter")
        await bench.sees("stablehlo-legalize-to-linalg: the test exits with 0 from")
