"""Saved sessions, and reproducers, on the real engine."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from buddy.app.workspace.presets import ScreenState, headless_command
from buddy.app.workspace.session_file import read_session, recipe_summary, record_first_script
from buddy.app.workspace.workspace import Workspace
from buddy.compiler.protocol.recipe import OpChoice, PassStep, Recipe

slow = pytest.mark.slow
Open = Callable[..., Any]


@slow
async def test_layout_edits_and_runs_are_restored(workbench: Open) -> None:
    async with workbench("arith_add.py", size=(120, 40)) as bench:
        passes = bench.app.passes
        bench.app.context.layout.show_pane("passes")
        await bench.drawn()
        passes.move_to(next(k for k, row in enumerate(passes.rows) if row.name == "cse"))
        await bench.press("space")
        await bench.settled()
        await bench.press("r")
        await bench.until(lambda: len(bench.app.state.runs) == 1, "the run")
        bench.app.context.layout.show_pane("ir")
        bench.app.ir.choose(next(row for row in bench.app.ir.rows if row.stage.name == "lower"))
        await bench.drawn()
        await bench.press("d", "d", "plus")
        edited = bench.app.workspace.recipe
    async with workbench("arith_add.py", size=(120, 40)) as bench:
        app = bench.app
        assert app.workspace.recipe == edited
        assert (app.pane.pane_id, app.context.layout.zoomed, app.ir.chosen_stage.name) == ("ir", True, "lower")
        assert app.ir.comparison.mode == "structural"
        await bench.press("u")
        await bench.settled()
        assert app.workspace.recipe == app.workspace.preset, "an edit of the last session is undone"
        await bench.press("H", "enter")
        await bench.until(lambda: len(app.state.runs) == 2, "the second run")
        assert app.workspace.recipe == edited
        assert app.state.runs[1].recipe == edited


WIDTH_FROM_FILE = """\
import pathlib
import torch

width = int(pathlib.Path({data!r}).read_text())


def model(x):
    return x * 2 + 1


example_inputs = (torch.ones(4, width),)
"""


@slow
async def test_the_last_session_is_shown_until_the_script_has_run(
    workbench: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BUDDY_CACHE", str(tmp_path / "cache"))
    data, script = tmp_path / "width.txt", tmp_path / "program.py"
    data.write_text("5")
    script.write_text(WIDTH_FROM_FILE.format(data=str(data)))
    os.utime(script, (1e9, 1e9))
    async with workbench(script, size=(160, 50), reopens_saved_graphs=True) as bench:
        await bench.press("r")
        await bench.until(lambda: len(bench.app.state.runs) == 1, "the run")
    data.write_text("7")
    async with workbench(script, size=(160, 50), wait=False, reopens_saved_graphs=True) as bench:
        await bench.sees("from the last session")
        await bench.until(lambda: bench.app.state.compiled_recipe is not None, "the compilation of the last session")
        await bench.drawn()
        assert bench.app.state.restored_at, "the script still runs"
        assert bench.shows("4x5")
        assert bench.shows("tensor<4x5xf32>")
        assert bench.shows("STALE: from an earlier session")
        await bench.sees("other graphs than in the last session")
        await bench.settled()
        assert not bench.shows("from the last session")
        assert bench.shows("tensor<4x7xf32>")
        assert bench.shows("STALE: from an earlier session")
        await bench.press("r")
        await bench.until(lambda: len(bench.app.state.runs) == 2, "the run")
        await bench.sees("float32[4,7]")
        assert not bench.shows("STALE")


@slow
async def test_other_runtimes_run_beside_and_edits_leave_them_out(workbench: Open) -> None:
    for package in ("onnxruntime", "onnx", "onnxscript"):
        pytest.importorskip(package)
    async with workbench("arith_add.py", size=(120, 40)) as bench:
        await bench.press("g", "V")
        await bench.sees("searches for the first node that differs")
        await bench.type("ONNX Runtime")
        await bench.press("enter")
        await bench.until(lambda: bench.app.state.report is not None, "the run")
        (side,) = bench.app.state.report.sides
        assert (side.name, side.problem, side.verdict) == ("onnxruntime", "", "ok")
        await bench.sees("ORT")
        bench.app.session.auto_run = True
        bench.app.session.compile_current()
        await bench.until(lambda: len(bench.app.state.runs) == 2, "the run after an edit")
        assert bench.app.state.report.sides == ()
        await bench.press("g", "V")
        await bench.type("none")
        await bench.press("enter")
        await bench.until(lambda: len(bench.app.state.runs) == 3, "the run")
        assert bench.app.state.report.sides == ()
        assert bench.app.session.runtimes == ()


@slow
async def test_inputs_are_chosen_by_seed_and_by_file(workbench: Open, tmp_path: Path) -> None:
    async with workbench("arith_add.py", size=(120, 40)) as bench:
        await bench.press("I")
        await bench.type("random")
        await bench.press("enter", "backspace", "7", "enter")
        await bench.until(lambda: bench.app.state.report is not None, "the run")
        assert bench.app.state.report.ok
        await bench.sees("random inputs, seed 7")
        rows = [row for row in bench.app.state.info.rows if row.opcode == "placeholder"]
        shapes = [tuple(map(int, row.shape.split("x"))) for row in rows]
        np.savez(tmp_path / "x.npz", *[np.full(shape, k + 1, np.float32) for k, shape in enumerate(shapes)])
        bench.app.run_commands._use_file(str(tmp_path / "x.npz"))
        await bench.until(lambda: len(bench.app.state.runs) == 2, "the run")
        (output,) = bench.app.state.report.outputs
        assert bench.app.state.report.ok
        assert output.low == output.high == sum(range(1, len(rows) + 1))
        bench.app.run_commands._use_file(str(tmp_path / "nosuch.npz"))
        await bench.until(lambda: bench.shows("No such file"), "the refusal")
        bench.app.run_commands._use_timeout("0.001")
        await bench.press("r")
        await bench.until(lambda: bench.shows("longer than 0.001 s"), "the end of the run's time")
        kept_path = bench.app.session_commands._path
    saved = (tmp_path / "x.npz").read_bytes()
    assert saved not in kept_path.read_bytes(), "files of inputs are read again, not kept"
    async with workbench("arith_add.py", size=(120, 40)) as bench:
        await bench.until(lambda: bench.app.session.inputs.content == saved, "the inputs of the last session")
        np.savez(tmp_path / "x.npz", *[np.zeros(shape, np.float32) for shape in shapes])
        await bench.press("H", "enter")
        await bench.until(lambda: len(bench.app.state.runs) == 3, "the run")
        assert bench.app.state.report.outputs[0].high == 0
        await bench.sees("has changed since that run")


@slow
async def test_a_reproducer_is_written_with_everything(workbench: Open, tmp_path: Path) -> None:
    async with workbench("arith_add.py", size=(120, 40)) as bench:
        folder = tmp_path / "it"
        bench.app.session_commands.write_reproducer(str(folder))
        await bench.until(lambda: (folder / "replay.sh").exists() and not bench.app.context.jobs.is_busy, "the folder")
        described = json.loads((folder / "reproducer.json").read_text())
        assert len(described["stages"]) == len(bench.app.ir.rows)
        assert all((folder / stage["file"]).read_text() for stage in described["stages"])
        assert described["report"]["ok"]
        assert (folder / "script" / "arith_add.py").read_bytes() == Path(bench.app.workspace.source).read_bytes()
        values = np.load(folder / "values.npz")
        assert {name.partition("/")[0] for name in values.files} == {"input", "output", "eager"}
        await _is_asked_before_anything_is_replaced(bench, folder, tmp_path / "mine.toml")
        await _leaves_the_folder_when_cancelled(bench, folder)


@slow
async def test_a_report_is_written_with_what_is_known(workbench: Open, tmp_path: Path) -> None:
    async with workbench("arith_add.py", size=(120, 40)) as bench:
        file = tmp_path / "it.html"
        await bench.press("g", "O")
        await bench.sees("write a report to the file")
        await bench.press("ctrl+u", *str(file), "enter")
        await bench.until(lambda: file.exists() and not bench.app.context.jobs.is_busy, "the report")
        await bench.sees(f"{len(bench.app.ir.rows)} stages to")
        assert "· buddy-tui</title>" in file.read_text()
        other = tmp_path / "other.html"
        other.write_text("mine")
        bench.app.session_commands.write_report(str(other))
        await bench.press("n")
        assert other.read_text() == "mine"


async def _is_asked_before_anything_is_replaced(bench: Any, folder: Path, mine: Path) -> None:
    mine.write_text("mine")
    bench.app.context.files.write(str(mine), "theirs")
    await bench.press("n")
    assert mine.read_text() == "mine"
    await bench.sees("nothing was written")
    bench.app.context.files.write(str(mine), "theirs")
    await bench.press("y")
    assert mine.read_text() == "theirs"
    (folder / "replay.sh").unlink()
    bench.app.session_commands.write_reproducer(str(folder))
    await bench.press("n")
    await bench.pilot.pause(0.2)
    assert not (folder / "replay.sh").exists()
    bench.app.session_commands.write_reproducer(str(folder))
    await bench.press("y")
    await bench.until(lambda: (folder / "replay.sh").exists() and not bench.app.context.jobs.is_busy, "the folder")


async def _leaves_the_folder_when_cancelled(bench: Any, folder: Path) -> None:
    """The run is cancelled after all earlier files have been written."""
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    other, run = folder.with_name("other"), bench.app.session.run_with_values

    async def cancelled(recipe: Recipe) -> Any:
        asked = asyncio.ensure_future(run(recipe))
        await asyncio.sleep(0)
        bench.app.session.cancel()
        return await asked

    bench.app.session.run_with_values = cancelled
    for target in (folder, other):
        bench.app.session_commands.write_reproducer(str(target))
        await bench.press(*(["y"] if target is folder else []))
        await bench.until(lambda name=target.name: bench.shows(f"{name} could not be written"), "the end")
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before
    assert not other.exists()


@pytest.mark.parametrize("junk", [b"junk", b"\x81\xa4pane\xa1\xff", b"\x81\xa9bookmarks" + b"\x91" * 100_000])
def test_unreadable_data_is_reported_and_kept(tmp_path: Path, recipe: Recipe, junk: bytes) -> None:
    (tmp_path / "x.session").write_bytes(junk)
    kept, problem = read_session(tmp_path / "x.session")
    assert kept.pane == "graph"
    assert "could not be read" in problem
    one = Workspace("x.py", (), tmp_path)
    one.load(recipe)
    one.edit(one.recipe.toggled(0), "off")
    edits = one.path.with_suffix(".edits").read_bytes()
    bad = edits.replace(b"off", b"\xff\xff\xff")
    assert bad != edits
    one.path.with_suffix(".edits").write_bytes(bad if junk != b"junk" else junk)
    again = Workspace("x.py", (), tmp_path)
    again.load(recipe)
    assert again.recipe == one.recipe, "the recipe itself does not depend on its history"
    assert "could not be read" in again.problem


def test_undo_and_redo_survive_the_session(tmp_path: Path, recipe: Recipe) -> None:
    one = Workspace("x.py", (), tmp_path)
    one.load(recipe)
    for k in range(3):
        one.edit(one.recipe.toggled(k), f"pass {k}")
    one.undo()
    again = Workspace("x.py", (), tmp_path)
    again.load(recipe)
    assert again.redo() == "pass 2"
    assert [again.undo() for _ in range(4)] == ["pass 2", "pass 1", "pass 0", ""]
    assert again.recipe == again.preset


def test_the_command_line_uses_options_or_the_recipe_file(recipe: Recipe) -> None:
    preset = replace(recipe, source="m.py")
    kept = Path("/kept.toml")
    assert headless_command(preset, preset, kept, ScreenState("outputs")) == "buddy-tui run m.py"
    edited = replace(preset.toggled(1), threads=2, choices=(OpChoice("mm.0", "eager"),), arguments=("--size", "3"))
    assert headless_command(edited, preset, kept, ScreenState("ir", "lower", n_graphs=2)) == (
        "buddy-tui dump m.py --stage lower --threads 2 --disable one-shot-bufferize --eager mm.0 --graph 0 -- --size 3"
    )
    shown = ScreenState("ir", "canonicalize#2", "lower", structural=True)
    assert headless_command(preset, preset, kept, shown) == (
        "buddy-tui diff m.py --stage lower --stage 'canonicalize#2' --structural"
    )
    unchecked = replace(preset, checks="none")
    assert headless_command(unchecked, preset, kept, ScreenState("outputs")) == "buddy-tui run m.py --checks none"
    longer = replace(preset, steps=(*preset.steps, PassStep("cse")))
    assert headless_command(longer, preset, kept, ScreenState("passes")) == "buddy-tui stages m.py --recipe /kept.toml"


def test_a_recipe_is_summarized_by_its_differences_from_the_preset(recipe: Recipe) -> None:
    assert recipe_summary(recipe, recipe) == "default"
    assert recipe_summary(recipe.toggled(0), recipe) == "default -1"
    assert recipe_summary(replace(recipe, steps=(*recipe.steps, PassStep("cse")), dialect="tosa"), recipe) == (
        "default +1 tosa"
    )


@slow
async def test_a_reproducer_has_the_modules_that_its_script_imports(workbench: Open, tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "act.py").write_text("import torch\n\ndef act(x):\n    return torch.relu(x)\n")
    script = tmp_path / "imports.py"
    script.write_text("import torch\nfrom parts.act import act\nmodel = act\nexample_inputs = (torch.ones(3, 5),)\n")
    async with workbench(script, size=(120, 40)) as bench:
        folder = tmp_path / "made"
        bench.app.session_commands.write_reproducer(str(folder))
        await bench.until(lambda: (folder / "replay.sh").exists() and not bench.app.context.jobs.is_busy, "the folder")
        described = json.loads((folder / "reproducer.json").read_text())
        assert described["files"] == ["script/parts/act.py"]
        assert described["elsewhere"] == []
        assert (folder / "script" / "parts" / "act.py").read_text() == (tmp_path / "parts" / "act.py").read_text()


def test_only_the_first_script_is_announced(tmp_path: Path) -> None:
    store = tmp_path / "state"
    (tmp_path / "module.mlir").write_text("module {}")
    assert not record_first_script(str(tmp_path / "module.mlir"), store)
    assert record_first_script("model.py:net", store)
    assert not record_first_script("package.module:net", store)
