"""Input of an editor survives any exit of the workbench, until it is accepted or discarded."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from buddy.app.screens.editor import EditorScreen
from buddy.app.workbench.app import Workbench
from buddy.app.workspace.recipe_files import EditorDraft, SavedDraft, saved_drafts
from buddy.app.workspace.settings import Settings

pytestmark = pytest.mark.slow
Open = Callable[..., Any]
PATIENCE = 240.0
# A session with an edit of the recipe and an open editor; it says what it has, and stays as it is.
SESSION = """
import asyncio, sys
from pathlib import Path
from buddy.app.screens.editor import EditorScreen
from buddy.app.workspace.settings import Settings
from buddy.app.workbench.app import Workbench

async def main(source, store):
    app = Workbench(source, store=Path(store), settings=Settings())
    async with app.run_test(size=(120, 40)) as pilot:
        while app.state.compiled_recipe is None or app.state.busy:
            await asyncio.sleep(0.05)
        app.recipe_edit_commands._use_threads(2)
        while app.state.compiled_recipe != app.workspace.recipe:
            await asyncio.sleep(0.05)
        app.context.layout.show_pane("ir")
        while app.ir.chosen_row is None:
            await asyncio.sleep(0.05)
        app.text_edit_commands.edit_ir_built_in()
        while not isinstance(app.screen, EditorScreen) or not app.screen.area.has_focus:
            await asyncio.sleep(0.05)
        await pilot.press(*"// mine")
        print(app.state.welcome.pid, flush=True)
        await asyncio.sleep(3600)

# It ends by itself, should nobody kill it.
asyncio.run(asyncio.wait_for(main(*sys.argv[1:]), 300))
"""


def test_a_draft_exists_until_it_is_dropped(tmp_path: Path) -> None:
    recipe = tmp_path / "kept" / "program.toml"
    draft = EditorDraft(recipe, "03 one/two: x")
    assert (draft.read_saved("was"), saved_drafts(recipe)) == (None, ([], []))
    draft.delete()
    assert draft.save("typed\r\n", "was") == ""
    draft.close()
    again = EditorDraft(recipe, "03 one/two: x")
    assert (again.read_saved("was"), again.read_saved("is")) == (
        SavedDraft("typed\r\n", False),
        SavedDraft("typed\r\n", True),
    )
    again.close()
    assert saved_drafts(recipe) == (["03 one two x"], [])
    assert saved_drafts(recipe.with_name("another.toml")) == ([], [])
    draft.delete()
    assert saved_drafts(recipe) == ([], [])
    (tmp_path / "file").write_text("")
    assert "could not be saved" in EditorDraft(tmp_path / "file" / "program.toml", "x").save("typed", "was")


@pytest.mark.parametrize(
    ("start", "said"), [("text", "restored from the last session"), ("other", "the initial text was different")]
)
async def test_a_draft_of_a_changed_text_is_marked_as_older(start: str, said: str, tmp_path: Path) -> None:
    app = Workbench(str(tmp_path / "none.py"), store=tmp_path / "kept", settings=Settings())
    draft = EditorDraft(tmp_path / "kept" / "program.toml", "x")
    draft.save("typed", start)
    async with app.run_test(size=(80, 24)) as pilot:
        screen = EditorScreen("Some", "text", draft=draft)
        app.push_screen(screen)
        while not any(said in "".join(segment.text for segment in strip) for strip in _strips(screen)):
            await pilot.pause(0.05)
        assert screen.area.text == "typed"


async def test_unsaved_drafts_are_reported_with_the_other_startup_messages(tmp_path: Path) -> None:
    app = Workbench(str(tmp_path / "none.py"), store=tmp_path / "kept", settings=Settings())
    draft = EditorDraft(app.workspace.path_of(0), "x")
    draft.save("typed", "was")
    draft.close()
    app.session_commands.startup_messages = ["the settings are not used"]
    async with app.run_test(size=(80, 24)) as pilot:
        while not all(
            part in app.context.status.message
            for part in ("unsaved input of the last session", "the settings are not used")
        ):
            await pilot.pause(0.05)


def _strips(screen: EditorScreen) -> list[Any]:
    return screen._compositor.render_strips()


def _opened(app: Any) -> bool:
    return isinstance(app.screen, EditorScreen) and app.focused is not None and app.focused is app.screen.area


async def test_a_draft_is_restored_and_deleted_after_the_answer(workbench: Open) -> None:
    async with workbench("arith_add.py") as bench:
        bench.app.text_edit_commands.edit_pipeline()
        await bench.until(lambda: _opened(bench.app), "the editor")
        await bench.press(*"cse,")
        typed = bench.app.screen.area.text
    async with workbench("arith_add.py") as bench:
        app = bench.app
        assert saved_drafts(app.workspace.path).unsaved == ["pipeline"]
        app.text_edit_commands.edit_pipeline()
        await bench.until(lambda: _opened(app), "the editor")
        assert app.screen.area.text == typed
        await bench.press("ctrl+c")
        assert _opened(app), "it is not thrown away unasked"
        await bench.press("ctrl+c")
        await bench.until(lambda: not _opened(app), "the end of the editor")
        assert saved_drafts(app.workspace.path) == ([], [])
        app.text_edit_commands.edit_pipeline()
        await bench.until(lambda: _opened(app), "the editor")
        assert app.screen.area.text != typed
        await bench.press(*"cse,", "ctrl+s")
        await bench.until(lambda: not _opened(app), "the end of the editor")
        await bench.until(lambda: app.workspace.all_edits[0][1].title == "the pipeline edited as text", "the edit")
        assert saved_drafts(app.workspace.path) == ([], [])


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel ends what a killed process has started")
async def test_a_killed_workbench_leaves_no_process_and_loses_no_input(workbench: Open, tmp_path: Path) -> None:
    source = Path(__file__).resolve().parents[3] / "samples" / "arith_add.py"
    # Unbuffered: what is printed inside an application of Textual is written, and never flushed.
    command = [sys.executable, "-u", "-c", SESSION, str(source), str(tmp_path / "kept")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        engine = int(process.stdout.readline())
        below = [engine, *map(int, Path(f"/proc/{engine}/task/{engine}/children").read_text().split())]
        kept = tmp_path / "kept"
        _wait(lambda: any("mine" in path.read_text() for path in kept.rglob("*.unsaved")), "the draft")
        os.kill(process.pid, signal.SIGKILL)
    _wait(lambda: not any(map(_lives, below)), f"the end of {below}")
    async with workbench("arith_add.py") as bench:
        app = bench.app
        assert app.workspace.recipe.threads == 2
        assert len(saved_drafts(app.workspace.path).unsaved) == 1
        app.context.layout.show_pane("ir")
        app.text_edit_commands.edit_ir_built_in()
        await bench.until(lambda: _opened(app), "the editor")
        assert "// mine" in app.screen.area.text
        await bench.press("ctrl+c", "ctrl+c")
        await bench.until(lambda: not _opened(app), "the end of the editor")
        await bench.press("u")
        assert app.workspace.recipe.threads == 1


def _wait(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, f"waited for {what}"
        time.sleep(0.05)


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
