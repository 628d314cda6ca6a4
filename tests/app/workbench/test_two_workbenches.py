"""Several workbenches with one program: none takes, hides or overwrites data of another one."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from buddy.app.screens.editor import EditorScreen
from buddy.app.workbench.app import Workbench
from buddy.app.workspace.files import FileLock, exclusive_lock, is_held
from buddy.app.workspace.recipe_files import EditorDraft, SavedDraft, saved_drafts
from buddy.app.workspace.session_file import Bookmark, Bookmarks, RunRecord, SavedSession, merge_sessions, read_session
from buddy.app.workspace.settings import Settings
from buddy.app.workspace.workspace import Workspace
from buddy.compiler.protocol.recipe import Recipe, to_toml
from buddy.compiler.protocol.run_report import RunReport, Timing

# A process with an editor open, in which something has been typed.
TYPING = """
import sys
from pathlib import Path
from buddy.app.workspace.recipe_files import EditorDraft
draft = EditorDraft(Path(sys.argv[1]), "pipeline")
draft.save(sys.argv[2], "was")
print("typed", flush=True)
sys.stdin.read()
draft.close()
"""


@contextmanager
def typing_elsewhere(recipe: Path, text: str) -> Iterator[subprocess.Popen[str]]:
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", TYPING, str(recipe), text], stdin=pipe, stdout=pipe, text=True) as it:
        assert it.stdout is not None
        assert it.stdout.readline() == "typed\n"
        yield it
        it.kill()


def opened(store: Path, recipe: Recipe) -> Workspace:
    workspace = Workspace("model.py", (), store)
    workspace.load(recipe)
    return workspace


# ---- drafts ------------------------------------------------------------------------------------------------------


def test_editors_of_two_workbenches_have_separate_drafts(tmp_path: Path) -> None:
    recipe = tmp_path / "program.toml"
    with typing_elsewhere(recipe, "theirs") as other:
        mine = EditorDraft(recipe, "pipeline")
        assert (mine.open_elsewhere, mine.read_saved("was")) == (True, None)
        assert saved_drafts(recipe) == ([], ["pipeline"])
        mine.save("mine", "was")
        mine.delete()
        mine.save("mine again", "was")
        mine.close()
        assert saved_drafts(recipe) == (["pipeline"], ["pipeline"])
        other.send_signal(signal.SIGKILL)
    found = set()
    for _ in range(2):
        draft = EditorDraft(recipe, "pipeline")
        assert not draft.open_elsewhere
        found.add(draft.read_saved("was"))
        draft.delete()
        draft.close()
    assert found == {SavedDraft("theirs", False), SavedDraft("mine again", False)}
    assert (saved_drafts(recipe), list(tmp_path.glob(".*.unsaved*"))) == (([], []), [])


def test_the_draft_of_a_killed_workbench_is_restored_by_the_next_one(tmp_path: Path) -> None:
    recipe = tmp_path / "program-2.toml"
    with typing_elsewhere(recipe, "typed") as other:
        other.send_signal(signal.SIGKILL)
        other.wait()
        assert saved_drafts(tmp_path / "program.toml") == (["pipeline of graph 2"], [])
        draft = EditorDraft(recipe, "pipeline")
        assert (draft.read_saved("was"), draft.open_elsewhere) == (SavedDraft("typed", False), False)
        draft.close()


async def test_an_editor_reports_that_another_workbench_has_it_open(tmp_path: Path) -> None:
    app = Workbench(str(tmp_path / "none.py"), store=tmp_path / "kept", settings=Settings())
    theirs = EditorDraft(tmp_path / "kept" / "program.toml", "x")
    theirs.save("theirs", "text")
    mine = EditorDraft(tmp_path / "kept" / "program.toml", "x")
    async with app.run_test(size=(100, 24)) as pilot:
        screen = EditorScreen("Some", "text", draft=mine)
        app.push_screen(screen)
        while not any("another workbench has this editor open" in text for text in _lines(screen)):
            await pilot.pause(0.05)
        assert screen.area.text == "text"
        await pilot.press("M", "ctrl+c", "ctrl+c")
    assert theirs.read_saved("text") == SavedDraft("theirs", False)
    theirs.close()


def _lines(screen: Any) -> list[str]:
    return ["".join(segment.text for segment in strip) for strip in screen._compositor.render_strips()]


# ---- recipes -----------------------------------------------------------------------------------------------------


def test_the_recipe_edited_last_is_restored_and_the_others_are_among_the_edits(tmp_path: Path, recipe: Recipe) -> None:
    one, two = opened(tmp_path, recipe), opened(tmp_path, recipe)
    one.edit(one.recipe.toggled(0), "first of one")
    assert (one.notice, two.has_edits_of_others) == ("", True)
    two.edit(two.recipe.toggled(1), "first of two")
    assert "edited this recipe too" in two.notice
    one.edit(one.recipe.with_choice("mm", "eager"), "second of one")
    two.edit(two.recipe.toggled(2), "second of two")
    assert [edit.title for edit in one.edits_of_others()][:2] == ["second of two", "first of two"]
    again = opened(tmp_path, recipe)
    assert again.recipe == two.recipe
    assert [edit.title for _, edit in again.all_edits] == ["second of two", "first of two", ""]
    assert [(edit.recipe, edit.title) for edit in again.edits_of_others()] == [
        (one.recipe, "second of one"),
        (recipe_of(one, 1), "first of one"),
    ]
    again.edit(one.recipe, "theirs")
    later = opened(tmp_path, recipe)
    assert (later.recipe, later.undo(), later.recipe) == (one.recipe, "theirs", two.recipe)


def recipe_of(workspace: Workspace, back: int) -> Recipe:
    return workspace.past_edits[back - 1].recipe


def test_a_reset_to_the_preset_keeps_edits_of_other_workbenches(tmp_path: Path, recipe: Recipe) -> None:
    one, two = opened(tmp_path, recipe), opened(tmp_path, recipe)
    one.edit(one.recipe.toggled(0), "off")
    two.edit(two.recipe.toggled(1), "off too")
    two.undo()
    again = opened(tmp_path, recipe)
    assert (again.origin, [edit.recipe for edit in again.edits_of_others()]) == ("preset", [one.recipe])


def test_a_single_session_has_no_edits_of_others(tmp_path: Path, recipe: Recipe) -> None:
    for number in range(3):
        workspace = opened(tmp_path, recipe)
        workspace.edit(workspace.recipe.toggled(number), f"pass {number}")
        assert (workspace.notice, workspace.has_edits_of_others) == ("", False)
    assert [edit.title for _, edit in workspace.all_edits] == ["pass 2", "pass 1", "pass 0", ""]


def test_a_workbench_that_dies_between_recipe_and_edits_loses_neither(tmp_path: Path, recipe: Recipe) -> None:
    workspace = opened(tmp_path, recipe)
    workspace.edit(workspace.recipe.toggled(0), "off")
    before = workspace.recipe
    workspace.path.write_text(to_toml(before.toggled(1)))
    again = opened(tmp_path, recipe)
    assert again.recipe == before.toggled(1)
    again.undo()
    assert (again.recipe, again.undo(), again.recipe) == (before, "off", again.preset)


def test_edits_are_found_for_any_path_of_the_program(
    tmp_path: Path, recipe: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "model.py").touch()
    monkeypatch.chdir(tmp_path)
    workspace = opened(tmp_path / "kept", recipe)
    workspace.edit(workspace.recipe.toggled(0), "off")
    again = Workspace(str(tmp_path / "model.py"), (), tmp_path / "kept")
    again.load(recipe)
    assert (again.undo(), again.recipe) == ("off", again.preset)


def test_an_unreadable_file_is_renamed_by_the_first_edit(tmp_path: Path, recipe: Recipe) -> None:
    path = Workspace("model.py", (), tmp_path).path
    path.parent.mkdir(parents=True)
    path.write_text("graph = 'seven'  # mine")
    workspace = opened(tmp_path, recipe)
    workspace.edit(workspace.recipe.toggled(0), "off")
    assert (tmp_path / "recipes" / f"{path.name}.unread").read_text() == "graph = 'seven'  # mine"
    assert opened(tmp_path, recipe).recipe == workspace.recipe


def test_saved_edits_of_others_are_bounded(tmp_path: Path, recipe: Recipe, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("buddy.app.workspace.recipe_files.MAX_SAVED_BYTES", 5_000)
    benches = [opened(tmp_path, recipe) for _ in range(12)]
    for turn in range(3):
        for number, bench in enumerate(benches):
            bench.edit(bench.recipe.with_choice(f"mm_{number}", f"{turn}"), f"{number}.{turn}")
    found = [edit.title for edit in opened(tmp_path, recipe).edits_of_others()]
    assert [title for title in found if title.endswith(".2")] == [f"{number}.2" for number in range(10, 2, -1)]
    (edits,) = (tmp_path / "recipes").glob("*.edits")
    assert edits.stat().st_size <= 10_000


async def test_a_second_workbench_reports_the_first_and_lists_its_edits(tmp_path: Path, recipe: Recipe) -> None:
    one = Workbench(str(tmp_path / "none.py"), store=tmp_path / "kept", settings=Settings())
    two = Workbench(str(tmp_path / "none.py"), store=tmp_path / "kept", settings=Settings())
    async with one.run_test(size=(100, 24)), two.run_test(size=(100, 24)) as pilot:
        assert "also open in another workbench" in two.context.status.message
        assert "open in another workbench" not in one.context.status.message
        for app in (one, two):
            app.workspace.load(recipe)
        one.workspace.edit(one.workspace.recipe.toggled(0), "off in one")
        await pilot.press("U")
        while not any("off in one" in text and "another workbench" in text for text in _lines(two.screen)):
            await pilot.pause(0.05)
        await pilot.press("down", "enter")
        while two.workspace.recipe != one.workspace.recipe:
            await pilot.pause(0.05)
    assert not list((tmp_path / "kept").rglob("*.open"))


# ---- layout ------------------------------------------------------------------------------------------------------


def test_runs_and_bookmarks_of_both_are_merged() -> None:
    def marks(*lines: int) -> list[Any]:
        return Bookmarks(Bookmark(0, ("cse", 0), line, "x") for line in lines).to_data()

    def runs(*times: float) -> tuple[RunRecord, ...]:
        return tuple(RunRecord(at, Recipe(), report) for at in times)

    timing = Timing(1.0, 1.0, 1.0, 1)
    report = RunReport(0, (), timing, timing, 0, 0, 0.0)
    base = SavedSession("graph", runs=runs(1.0), bookmarks=marks(1, 2))
    theirs = SavedSession("ir", runs=runs(1.0, 3.0), bookmarks=marks(1, 2, 3))
    mine = SavedSession("passes", runs=runs(1.0, 2.0), bookmarks=marks(1, 4))
    found = merge_sessions(base, theirs, mine)
    assert (found.pane, found.runs, found.bookmarks) == ("passes", runs(1.0, 2.0, 3.0), marks(1, 3, 4))
    assert merge_sessions(base, SavedSession(bookmarks=5), mine).bookmarks == marks(4)


# ---- locks -------------------------------------------------------------------------------------------------------


def test_a_lock_has_one_holder_and_leaves_no_file(tmp_path: Path) -> None:
    path = tmp_path / "x.lock"
    one, two = FileLock(path), FileLock(path)
    assert (one.take(), two.take(), is_held(path)) == (True, False, True)
    with exclusive_lock(path):
        """A process that is stopped during a write does not block the others."""
    one.release()
    assert (path.exists(), two.take_shared(), one.take_shared(), is_held(path)) == (False, False, True, True)
    two.release()
    assert path.exists(), "one has it still"
    one.release()
    assert list(tmp_path.iterdir()) == []
    assert read_session(path) == (SavedSession(), "")
