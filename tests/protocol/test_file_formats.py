"""Files of older versions are read; files of a later format are refused, kept, and named with both versions."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from buddy.app.reports.reproducer import DESCRIPTION_FILE, read_description
from buddy.app.workspace.recipe_files import RecipeFile
from buddy.app.workspace.session_file import SavedSession, SessionFile, read_session, write_session
from buddy.app.workspace.settings import read_settings
from buddy.compiler.driver import cache_archive
from buddy.compiler.protocol import compatibility
from buddy.compiler.protocol.compatibility import FileFormat, LaterFormatError
from buddy.compiler.protocol.recipe import Recipe, RecipeError, from_toml, to_toml

OLD = Path(__file__).resolve().parent.parent / "data" / "version_0.1"
CURRENT = OLD.with_name("version_0.2")  # by tests/protocol/corpus.py


@pytest.mark.filterwarnings("ignore:.*flavour:FutureWarning")
def test_a_recipe_of_version_0_1_is_read_with_its_edits(tmp_path: Path) -> None:
    for name in ("mlp.toml", "mlp.edits"):
        shutil.copy(OLD / name, tmp_path)
    recipe, edits, problem = RecipeFile(tmp_path / "mlp.toml", lambda recipe: recipe).read()
    assert problem == ""
    assert recipe is not None
    assert edits is not None
    assert (recipe.source, recipe.dialect, recipe.threads) == ("samples/mlp.py", "linalg", 1)
    (edit,) = edits.past
    changed = [new for old, new in zip(edit.recipe.steps, recipe.steps, strict=True) if old != new]
    assert [(step.name, step.enabled) for step in changed] == [("tosa-to-linalg-named", False)]


def test_a_session_of_version_0_1_is_read() -> None:
    saved, problem = read_session(OLD / "mlp.session")
    assert problem == ""
    assert saved.pane == "ir"
    (run,) = saved.runs
    assert run.recipe.source == "samples/mlp.py"
    assert run.report.outputs[0].shape == (128, 256)


@pytest.mark.filterwarnings("ignore:settings:FutureWarning")
def test_settings_of_version_0_1_are_read() -> None:
    settings, problem = read_settings(OLD / "config.toml")
    assert (settings.theme, problem) == ("buddy-dark", "")
    assert settings.keys == {"search": "ctrl+f"}


@pytest.mark.filterwarnings("ignore:.*flavour:FutureWarning")
def test_a_reproducer_of_version_0_1_is_read() -> None:
    description = read_description(OLD / "reproducer")
    assert (description.source, description.script) == ("samples/mlp.py", "script/mlp.py")
    assert len(description.stages) > 50
    recipe = from_toml((OLD / "reproducer/recipe.toml").read_text("utf-8"))
    assert recipe.dialect == "linalg"


def test_every_file_of_version_0_2_is_read(tmp_path: Path) -> None:
    for name in ("mlp.toml", "mlp.edits"):
        shutil.copy(CURRENT / name, tmp_path)
    recipe, edits, problem = RecipeFile(tmp_path / "mlp.toml", lambda recipe: recipe).read()
    assert (problem, recipe is not None, edits is not None) == ("", True, True)
    assert recipe is not None
    assert edits is not None
    (edit,) = edits.past
    changed = [new for old, new in zip(edit.recipe.steps, recipe.steps, strict=True) if old != new]
    assert [(step.name, step.enabled) for step in changed] == [("tosa-to-linalg-named", False)]

    saved, problem = read_session(CURRENT / "mlp.session")
    assert (problem, saved.pane, len(saved.bookmarks)) == ("", "ir", 1)
    (run,) = saved.runs
    assert (run.recipe.steps, run.report.outputs[0].shape) == (recipe.steps, (128, 256))

    settings, problem = read_settings(CURRENT / "config.toml")
    assert (settings.theme, settings.keys, problem) == ("buddy-dark", {"search": "ctrl+f"}, "")

    description = read_description(CURRENT / "reproducer")
    assert (description.script, len(description.stages) > 50) == ("script/mlp.py", True)
    assert from_toml((CURRENT / "reproducer/recipe.toml").read_text("utf-8")).source == "samples/mlp.py"


def test_an_archive_of_the_cache_of_version_0_2_is_read(tmp_path: Path) -> None:
    key = tmp_path / "key"  # a checkout may give the file any mode
    key.write_bytes((CURRENT / "cache.key").read_bytes())
    key.chmod(0o600)
    trust = cache_archive.Trust(cache_archive.read_key(key))
    contents = cache_archive.read(CURRENT / "cache.archive", trust)
    assert {entry.cache for entry in contents.entries} == {"objects", "compilations"}
    later = tmp_path / "later.archive"
    archive = (CURRENT / "cache.archive").read_bytes()
    later.write_bytes(archive.replace(b"buddy-tui-cache 1 ", b"buddy-tui-cache 2 ", 1))
    with pytest.raises(cache_archive.ArchiveError, match="format 2, and this version of buddy-tui reads format 1"):
        cache_archive.read(later, trust)


def test_what_was_written_by_this_version_says_so() -> None:
    """A corpus of the program's own format: run `python -m tests.protocol.corpus` after a format has changed."""
    for kind, name in ((compatibility.RECIPE, "mlp.toml"), (compatibility.SETTINGS, "config.toml")):
        assert f"format = {kind.latest}\n" in (CURRENT / name).read_text("utf-8")
    session = msgspec.msgpack.decode((CURRENT / "mlp.session").read_bytes())
    assert session["format"] == compatibility.SESSION.latest
    reproducer = json.loads((CURRENT / "reproducer" / DESCRIPTION_FILE).read_text("utf-8"))
    assert reproducer["format"] == compatibility.REPRODUCER.latest


def test_a_later_recipe_names_both_versions() -> None:
    text = to_toml(Recipe()).replace("format = 2", "format = 9").replace("written_by = ", 'written_by = "X 0.9" # ')
    with pytest.raises(RecipeError, match=r"written by X 0.9, in format 9; this is buddy-tui .* up to 2 · update"):
        from_toml(f"{text}new_field = 1\n")


def test_a_later_session_is_refused_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "x.session"
    later = msgspec.msgpack.encode({"format": 9, "written_by": "buddy-tui 0.9", "pane": 5})
    path.write_bytes(later)
    file = SessionFile(path)
    saved, problem = file.read()
    assert saved == SavedSession()
    assert "written by buddy-tui 0.9, in format 9" in problem
    file.set_session(SavedSession("ir"))
    file.write()
    assert read_session(path) == (SavedSession("ir", bookmarks=[]), "")
    assert (tmp_path / "x.session.unread").read_bytes() == later


def test_a_session_says_what_has_written_it(tmp_path: Path) -> None:
    write_session(tmp_path / "x.session", SavedSession("ir", node="linear"))
    fields: dict[str, Any] = msgspec.msgpack.decode((tmp_path / "x.session").read_bytes())
    assert fields["format"] == compatibility.SESSION.latest
    assert fields["written_by"].startswith("buddy-tui ")
    assert read_session(tmp_path / "x.session") == (SavedSession("ir", node="linear"), "")


def test_later_settings_are_refused_with_the_line(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text('theme = "buddy-dark"\nformat = 4\nwritten_by = "buddy-tui 0.9"\ncolour_depth = 3\n')
    settings, problem = read_settings(path)
    assert settings.theme == ""
    assert problem.startswith(f"{path}, line 2: a settings file of a later version: it was written by buddy-tui 0.9")
    path.write_text('format = 1\ntheme = "buddy-dark"\n')
    assert read_settings(path)[1] == ""


def test_a_later_reproducer_is_refused_even_with_other_fields(tmp_path: Path) -> None:
    (tmp_path / DESCRIPTION_FILE).write_text(json.dumps({"format": 3, "written_by": "buddy-tui 0.9"}))
    with pytest.raises(LaterFormatError, match=r"a reproducer of a later version: it was written by buddy-tui 0\.9"):
        read_description(tmp_path)


@pytest.mark.parametrize("number", [0, -1, True, "2", 1.0, None, "x" * 100])
def test_a_format_that_is_no_number_is_refused(number: object) -> None:
    with pytest.raises(LaterFormatError, match="not a whole number") as caught:
        FileFormat("recipe", 2).check(number)
    assert len(str(caught.value)) < 160


def test_every_format_up_to_the_latest_is_accepted() -> None:
    form = replace(compatibility.RECIPE, latest=3)
    for number in (1, 2, 3):
        form.check(number, "buddy-tui 0.1")
    form.check(form.stamp()["format"])
