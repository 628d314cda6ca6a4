"""Other programs in the same workbench: the dialog, recent programs, and changes of the files of the open one."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from textual.widgets import Input

from buddy.app.screens.modal import ConfirmScreen
from buddy.app.screens.programs import ProgramScreen
from buddy.app.workspace.sources import (
    MAX_RECENT_PROGRAMS,
    Program,
    RecentPrograms,
    parse_typed_program,
    path_completions,
)

SAMPLES = Path(__file__).resolve().parent.parent.parent.parent / "samples"
Open = Callable[..., Any]


# ---- without an engine -------------------------------------------------------------------------------------------


def test_a_typed_program_is_a_path_and_arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a model.py").touch()
    assert parse_typed_program("'a model.py' --batch 4") == Program("a model.py", ("--batch", "4"))
    assert parse_typed_program("'a model.py:net'").source == "a model.py:net"
    assert parse_typed_program("/on/another/host.py", is_local=False).source == "/on/another/host.py"
    monkeypatch.setenv("HOME", str(tmp_path))
    assert parse_typed_program("~/'a model.py'").source == str(tmp_path / "a model.py")


@pytest.mark.parametrize(
    ("typed", "reason"),
    [
        ("", "give the path"),
        ("nope.py", "there is no file nope.py in "),
        ("nope", "there is no file nope in "),
        ("modle.py", r"there is no file modle.py in .*: did you mean model.py\?"),
        ("folder", "folder is a folder"),
        ("dangling.py", "a link to a file that does not exist"),
        ("'unclosed", "No closing quotation"),
        ("a\0b.py", "null character"),
    ],
)
def test_a_path_that_cannot_be_opened_is_refused(
    typed: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "model.py").touch()
    (tmp_path / "dangling.py").symlink_to(tmp_path / "gone.py")
    with pytest.raises(ValueError, match=reason):
        parse_typed_program(typed)


def test_paths_are_completed_folders_first_and_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("model.py", "my model.py", ".hidden.py"):
        (tmp_path / name).touch()
    (tmp_path / "more").mkdir()
    assert path_completions("m") == ["more/", "model.py", "'my model.py'"]
    assert path_completions("'my m") == ["'my model.py'"]
    assert path_completions(".h") == [".hidden.py"]
    assert path_completions("nowhere/x") == []
    assert all(parse_typed_program(path) for path in path_completions("") if not path.endswith("/"))


def test_recent_programs_are_saved_the_latest_first_without_repeats(tmp_path: Path) -> None:
    recent = RecentPrograms(tmp_path)
    assert recent.read() == []
    for number in range(MAX_RECENT_PROGRAMS + 3):
        recent.add(f"m.{number}:net", ("--x",), now=number)
    recent.add("m.20:net", ("--x",), now=99)
    recent.add("m.20:net", (), now=100)
    programs = RecentPrograms(tmp_path).read()
    assert len(programs) == MAX_RECENT_PROGRAMS
    assert [program.source for program in programs[:3]] == ["m.20:net", "m.20:net", f"m.{MAX_RECENT_PROGRAMS + 2}:net"]
    assert programs[0].arguments == ()


def test_a_recent_program_with_a_colon_in_its_path_is_saved_with_its_absolute_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a:b").mkdir()
    (tmp_path / "a:b" / "m.py").touch()
    monkeypatch.chdir(tmp_path)
    recent = RecentPrograms(tmp_path)
    recent.add("a:b/m.py:net", ())
    assert [program.source for program in recent.read()] == [f"{tmp_path}/a:b/m.py:net"]
    (tmp_path / "recent.json").write_text("{")
    assert recent.read() == [], "a damaged file holds no programs"


# ---- on the engine -----------------------------------------------------------------------------------------------


async def _type_path(bench: Any, text: str) -> Any:
    screen = await bench.opened(ProgramScreen)
    screen.query_one(Input).value = text
    await bench.pilot.pause(0.1)
    return screen


@pytest.mark.slow
async def test_another_program_is_opened_and_the_first_one_again(workbench: Open, tmp_path: Path) -> None:
    async with workbench("arith_add.py", size=(120, 40)) as bench:
        app, first = bench.app, bench.app.session
        app.graph.toggle_eager()
        await bench.settled()
        edited = app.workspace.recipe
        assert edited != app.workspace.preset
        await bench.press("ctrl+o")
        screen = await _type_path(bench, str(tmp_path / "nope.py"))
        await bench.press("enter")
        await bench.sees("there is no file")
        assert app.screen is screen, "a bad path is refused in the dialog"
        # A part of the path: tab completes it.
        await _type_path(bench, str(SAMPLES / "ml"))
        await bench.press("tab")
        assert screen.query_one(Input).value == str(SAMPLES / "mlp.py")
        await bench.press("enter")
        await bench.until(lambda: app.session is not first and app.workspace.is_loaded, "the other program")
        await bench.settled()
        assert app.title == f"buddy-tui {SAMPLES / 'mlp.py'}"
        assert app.state.info.name == "MLP"
        assert bench.shows("gelu")
        assert app.workspace.recipe == app.workspace.preset
        assert first._client is None or first._closing
        assert app.focused is app.graph
        # The first entry is the program before this one.
        await bench.press("ctrl+o")
        await bench.opened(ProgramScreen)
        await bench.sees("arith_add.py")
        await bench.press("enter")
        await bench.until(lambda: app.workspace.source.endswith("arith_add.py"), "the first program")
        await bench.settled()
        assert app.workspace.recipe == edited, "its edits are restored"
        await bench.press("u")
        await bench.settled()
        assert app.workspace.recipe == app.workspace.preset, "and can be undone"


@pytest.mark.slow
async def test_running_jobs_are_cancelled_only_after_a_question(workbench: Open) -> None:
    async with workbench("arith_add.py", size=(120, 40)) as bench:
        app, first = bench.app, bench.app.session
        with app.context.jobs.busy():
            for answer in ("n", "y"):
                await bench.press("ctrl+o")
                await _type_path(bench, str(SAMPLES / "mlp.py"))
                await bench.press("enter")
                await bench.opened(ConfirmScreen)
                assert bench.shows("What is running will be cancelled")
                await bench.press(answer)
                await bench.pilot.pause(0.1)
                assert (app.session is first) == (answer == "n")
        await bench.settled()
        assert app.state.info.name == "MLP"


@pytest.mark.slow
async def test_a_changed_script_offers_to_run_again(workbench: Open, tmp_path: Path) -> None:
    script = Path(shutil.copy(SAMPLES / "arith_add.py", tmp_path / "changing.py"))
    async with workbench(script, size=(120, 40)) as bench:
        app = bench.app
        await app.program_commands.check_files()
        assert app.state.changed_files == ()
        script.write_text(script.read_text() + "\n# changed\n")
        await bench.sees("changing.py changed on disk  press R to run the script again")
        await bench.press("R")
        # The next engine may be ready before the screen is looked at.
        await bench.until(lambda: app.state.engine != "ready" or not app.state.changed_files, "the next engine")
        await bench.settled()
        assert app.state.changed_files == ()
        assert not bench.shows("changed on disk")
        # A script that fails is checked too.
        app.context.status.clear()
        script.write_text("import nothing_of_this_name\n")
        await bench.sees("changing.py changed on disk")
        await bench.press("R")
        await bench.until(lambda: "open" in app.state.problems, "the failure")
        app.context.status.clear()
        shutil.copy(SAMPLES / "arith_add.py", script)
        await bench.sees("changing.py changed on disk")
