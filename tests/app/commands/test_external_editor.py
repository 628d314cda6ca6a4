"""The user's external editor: processes that write, fail, rename the file or are interrupted."""

from __future__ import annotations

import signal
import sys
import tempfile
from pathlib import Path

import pytest

from buddy.app.commands.recipe_edits import EditorError, NoEditorError, edit_in_external_editor, split_editor_command
from buddy.app.session.stages import StageRow
from buddy.app.workbench.app import Workbench
from buddy.app.workspace.settings import Settings
from buddy.compiler.protocol import Stage
from buddy.compiler.protocol.recipe import Recipe


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of temporary files."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def script(body: str) -> list[str]:
    """An editor that does `body` with the file `path`."""
    imports = "import os, signal, sys, time; from pathlib import Path; path = Path(sys.argv[1])"
    return [sys.executable, "-c", f"{imports}\n{body}"]


def test_the_saved_text_is_used_and_the_folder_deleted(folder: Path) -> None:
    assert (
        edit_in_external_editor(script("path.write_text(path.read_text() + path.name)"), "03-cse.mlir", "a\n")
        == "a\n03-cse.mlir"
    )
    assert not list(folder.iterdir())


@pytest.mark.parametrize(
    ("body", "said", "kept"),
    [
        ("sys.exit(3)", "exited with status 3", 0),
        ("path.write_text('mine'); sys.exit(1)", "the text is not used; its output is in", 1),
        ("path.write_text('mine'); os.kill(os.getpid(), signal.SIGKILL)", "its output is in", 1),
        ("path.unlink()", "left no readable text: No such file", 0),
        ("path.rename(path.with_name('other'))", "its output is in", 1),
        ("path.unlink(); path.parent.rmdir()", "left no readable text", 0),
        ("path.unlink(); path.mkdir()", "left no readable text", 1),
    ],
)
def test_a_rejected_text_is_reported_and_kept(folder: Path, body: str, said: str, kept: int) -> None:
    with pytest.raises(EditorError, match=said) as error:
        edit_in_external_editor(script(body), "x.mlir", "text")
    assert not isinstance(error.value, NoEditorError)
    assert len(list(folder.iterdir())) == kept
    assert not kept or Path(str(error.value).rpartition(" in ")[2]).exists()


def test_a_missing_editor_is_reported(folder: Path) -> None:
    with pytest.raises(NoEditorError, match="does not start"):
        edit_in_external_editor(["/no/such/editor"], "x.mlir", "text")
    with pytest.raises(NoEditorError, match="No closing quotation"):
        split_editor_command("emacs -nw '")
    assert split_editor_command("code --wait") == ["code", "--wait"]
    assert not list(folder.iterdir())


def test_an_interrupt_reaches_only_the_editor() -> None:
    before = signal.getsignal(signal.SIGINT)
    body = (
        "own = signal.getsignal(signal.SIGINT) is signal.default_int_handler\n"
        "os.kill(os.getppid(), signal.SIGINT); time.sleep(0.2); path.write_text(f'handled {own}')"
    )
    assert edit_in_external_editor(script(body), "x.mlir", "text") == "handled True", (
        "a child that inherits SIG_IGN has no handler"
    )
    assert signal.getsignal(signal.SIGINT) is before


def test_an_edit_of_a_changed_recipe_is_saved_to_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    app = Workbench("x.py", store=tmp_path / "state", settings=Settings())
    monkeypatch.setattr(app.context.status, "say", said.append)
    app.workspace.load(Recipe())
    row = StageRow(Stage(0, "cse", "top", "text", 1), ("cse", 0))
    for recipe in (Recipe(threads=2), app.workspace.recipe):
        app.text_edit_commands._apply_ir(recipe, row, "before", "after")
        path = Path(said.pop().rpartition(" to ")[2])
        assert path.read_text() == "after"
        path.unlink()
