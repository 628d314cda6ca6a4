"""The current recipe: history, merged edits, and storage between sessions."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from buddy.app.commands.recipe_edits import thread_choices
from buddy.app.workspace import history
from buddy.app.workspace.files import write_bytes_atomically
from buddy.app.workspace.inputs import inputs_from_file
from buddy.app.workspace.workspace import Workspace, recipe_path
from buddy.compiler.protocol.recipe import PassStep, PluginFile, Recipe, to_toml


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def workspace(tmp_path: Path, recipe: Recipe, clock: Clock) -> Workspace:
    made = Workspace("model.py", ("--tiny",), tmp_path, clock)
    made.load(recipe)
    return made


def test_any_edit_can_be_restored_at_once(workspace: Workspace, recipe: Recipe) -> None:
    recipes = [workspace.recipe]
    for number in range(3):
        recipes.append(workspace.recipe.toggled(number))
        workspace.edit(recipes[-1], f"toggled {number}")
    workspace.undo()
    told = [(steps, edit.title) for steps, edit in workspace.all_edits]
    assert told == [(1, "toggled 2"), (0, "toggled 1"), (-1, "toggled 0"), (-2, "")]
    workspace.undo_or_redo(-2)
    assert workspace.recipe == recipes[0]
    assert [steps for steps, _ in workspace.all_edits] == [3, 2, 1, 0]
    workspace.undo_or_redo(3)
    assert workspace.recipe == recipes[3]
    assert not workspace.can_redo


def test_a_preset_gets_the_source(workspace: Workspace) -> None:
    assert (workspace.recipe.source, workspace.recipe.arguments, workspace.origin) == (
        "model.py",
        ("--tiny",),
        "preset",
    )


def test_undo_goes_back_edit_by_edit_and_redo_forward_again(workspace: Workspace) -> None:
    first = workspace.recipe
    workspace.edit(first.toggled(0), "one off")
    workspace.edit(workspace.recipe.toggled(1), "two off")
    assert [workspace.undo(), workspace.undo(), workspace.undo()] == ["two off", "one off", ""]
    assert workspace.recipe == first
    assert [workspace.redo(), workspace.redo(), workspace.redo()] == ["one off", "two off", ""]
    assert [step.enabled for step in workspace.recipe.steps] == [False, False, True]


def test_a_new_edit_drops_undone_edits(workspace: Workspace) -> None:
    workspace.edit(workspace.recipe.toggled(0), "one")
    workspace.undo()
    workspace.edit(workspace.recipe.toggled(2), "three")
    assert not workspace.can_redo


def test_an_edit_without_a_change_is_not_recorded(workspace: Workspace) -> None:
    assert not workspace.edit(workspace.recipe, "nothing")
    assert not workspace.can_undo


def test_quick_edits_of_one_kind_are_undone_together(workspace: Workspace, clock: Clock) -> None:
    first = workspace.recipe
    for lowering in ("tosa", "linalg", "math"):
        workspace.edit(workspace.recipe.with_choice("mm", lowering), lowering, merge_key="lower mm")
        clock.now += 0.2
    workspace.undo()
    assert workspace.recipe == first


def test_slow_edits_of_one_kind_are_undone_one_by_one(workspace: Workspace, clock: Clock) -> None:
    for lowering in ("tosa", "linalg"):
        workspace.edit(workspace.recipe.with_choice("mm", lowering), lowering, merge_key="lower mm")
        clock.now += 5
    workspace.undo()
    assert workspace.recipe.choice_map() == {"mm": "tosa"}


def test_every_edit_is_saved_and_restored(workspace: Workspace, tmp_path: Path, recipe: Recipe) -> None:
    workspace.edit(workspace.recipe.toggled(1), "off")
    later = Workspace("model.py", ("--tiny",), tmp_path)
    later.load(recipe)
    assert (later.recipe, later.origin) == (workspace.recipe, "restored")


def test_a_reset_to_the_preset_deletes_the_saved_recipe(workspace: Workspace) -> None:
    workspace.edit(workspace.recipe.toggled(1), "off")
    assert workspace.path.exists()
    workspace.undo()
    assert not workspace.path.exists()
    assert workspace.origin == "preset"


def test_other_arguments_have_a_separate_recipe(workspace: Workspace, tmp_path: Path, recipe: Recipe) -> None:
    workspace.edit(workspace.recipe.toggled(1), "off")
    other = Workspace("model.py", (), tmp_path)
    other.load(recipe)
    assert other.origin == "preset"


def test_a_source_has_one_recipe_for_any_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model.py").touch()
    monkeypatch.chdir(tmp_path)
    here = recipe_path("model.py:net", (), tmp_path)
    assert here == recipe_path(f"{tmp_path}/model.py:net", (), tmp_path)
    assert here != recipe_path("model.py:other", (), tmp_path)


def test_two_sources_with_a_colon_in_their_relative_path_have_two_recipes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = []
    for folder in (tmp_path / "x", tmp_path / "y"):
        (folder / "a:b").mkdir(parents=True)
        (folder / "a:b" / "model.py").touch()
        monkeypatch.chdir(folder)
        paths.append(recipe_path("a:b/model.py", (), tmp_path))
        assert paths[-1] == recipe_path(f"{folder}/a:b/model.py", (), tmp_path)
    assert paths[0] != paths[1]


def test_an_unreadable_saved_recipe_is_reported_and_kept(tmp_path: Path, recipe: Recipe) -> None:
    workspace = Workspace("model.py", (), tmp_path)
    workspace.path.parent.mkdir(parents=True)
    workspace.path.write_text("graph = 'seven'")
    workspace.load(recipe)
    assert workspace.origin == "preset"
    assert "graph" in workspace.problem


def test_a_read_only_folder_is_reported_and_the_edit_stays(tmp_path: Path, recipe: Recipe) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    workspace = Workspace("model.py", (), blocked)
    workspace.load(recipe)
    workspace.edit(workspace.recipe.toggled(0), "off")
    assert "could not be saved" in workspace.problem
    assert not workspace.recipe.steps[0].enabled


def test_the_saved_recipe_is_toml(workspace: Workspace) -> None:
    workspace.edit(workspace.recipe.with_choice("mm", "eager"), "eager")
    assert workspace.path.read_text() == to_toml(workspace.recipe)


def test_each_graph_has_its_own_recipe_history_and_file(workspace: Workspace, tmp_path: Path, recipe: Recipe) -> None:
    workspace.edit(workspace.recipe.toggled(1), "off")
    first = workspace.recipe
    workspace.show_graph(2)
    assert (workspace.recipe.graph, workspace.recipe.steps, workspace.origin) == (2, recipe.steps, "preset")
    assert not workspace.can_undo
    workspace.edit(workspace.recipe.with_choice("mm", "eager"), "eager")
    later = Workspace("model.py", ("--tiny",), tmp_path)
    later.load(recipe)
    assert later.graph == 2
    assert [later.recipe_of(number) for number in (0, 2)] == [first, workspace.recipe]
    assert later.recipe_of(1).steps == recipe.steps
    workspace.show_graph(0)
    assert workspace.undo() == "off"
    assert workspace.recipe_of(2).choice_map() == {"mm": "eager"}


def test_an_invalid_number_of_the_last_graph_is_ignored(workspace: Workspace, recipe: Recipe) -> None:
    workspace.show_graph(1)
    workspace.path_of(0).with_suffix(".graph").write_text("first")
    later = Workspace("model.py", ("--tiny",), workspace.path.parent.parent)
    later.load(recipe)
    assert later.graph == 0


def test_thread_choices_include_the_cores_and_the_current_number() -> None:
    assert thread_choices(2, 1) == [1, 2]
    assert thread_choices(1, 3) == [1, 3]
    assert thread_choices(48, 6) == [1, 2, 3, 4, 5, 6, 7, 8, 16, 32, 48]


def test_recipes_name_the_plugins_as_the_engine_has_loaded_them(tmp_path: Path) -> None:
    workspace = Workspace("model.py", (), tmp_path, plugins=(PluginFile("plug.py"),))
    workspace.load(Recipe(steps=(PassStep("canonicalize"),)))
    workspace.plugins = (PluginFile("/home/plug.py", "first"),)
    assert workspace.recipe.plugins == workspace.plugins
    assert workspace.origin == "preset"
    workspace.edit(workspace.recipe.toggled(0), "switch canonicalize off")
    workspace.plugins = (PluginFile("/home/plug.py", "second"),)
    assert workspace.recipe.plugins == workspace.plugins, "edited since"
    assert not workspace.recipe.steps[0].enabled
    assert workspace.undo() == "switch canonicalize off"
    assert workspace.recipe.plugins == workspace.plugins
    assert workspace.origin == "preset"


def test_a_write_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    with pytest.raises(IsADirectoryError):
        write_bytes_atomically(tmp_path / "taken", b"text")
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]


def test_inputs_are_read_from_regular_files_alone(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.npy")
    with pytest.raises(ValueError, match=r"^not a regular file"):
        inputs_from_file(tmp_path / "pipe.npy")
    with pytest.raises(ValueError, match=r"^No such file or directory$"):
        inputs_from_file(tmp_path / "nosuch.npy")


def test_saved_edits_are_bounded_in_both_directions(recipe: Recipe, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "MAX_SAVED_BYTES", 20_000)
    made = history.History(recipe)

    def edit(number: int, length: int) -> None:
        step = msgspec.structs.replace(recipe.steps[0], options=(("ir", str(number) * length),))
        made.edit(msgspec.structs.replace(recipe, steps=(step,)), f"edit {number}")

    for number in range(1, 9):
        edit(number, 3000)
    for _ in range(4):
        made.undo()
    kept = made.history_to_save()
    assert len(msgspec.msgpack.encode(kept)) <= 20_000
    assert kept.past[-1].title == "edit 3"
    assert kept.future[-1].title == "edit 5"
    edit(9, 30_000)
    kept = made.history_to_save()
    assert (kept.past, kept.now.title, kept.future) == ([], "edit 9", [])
