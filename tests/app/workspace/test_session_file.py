"""The session is saved in the background as it changes, and survives a killed workbench."""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from buddy.app.commands import run, sessions
from buddy.app.workbench.app import Workbench
from buddy.app.workspace import session_file
from buddy.app.workspace.session_file import (
    Bookmark,
    Bookmarks,
    RunRecord,
    SavedCursor,
    SavedSession,
    SessionFile,
    make_record,
    read_session,
)
from buddy.app.workspace.settings import Settings
from buddy.compiler.protocol.recipe import Recipe
from buddy.compiler.protocol.run_report import InputChoice, OutputReport, RunReport, SideReport, Timing

# Far more than anything takes: a loaded machine may be ten times as slow.
PATIENCE = 240.0
TIMING = Timing(1.0, 1.0, 1.0, 1)


def runs(*times: float) -> tuple[RunRecord, ...]:
    return tuple(RunRecord(at, Recipe(), RunReport(0, (), TIMING, TIMING, 0, 0, 0.0)) for at in times)


def marks(*lines: int) -> list[Any]:
    return Bookmarks(Bookmark(0, ("cse", 0), line, "x") for line in lines).to_data()


def of_file(path: Path) -> tuple[SavedSession, SessionFile]:
    file = SessionFile(path)
    return file.read()[0], file


def opened(folder: Path) -> Workbench:
    return Workbench(str(folder / "none.py"), store=folder / "kept", settings=Settings())


async def until(pilot: Any, condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, f"waited for {what}"
        await pilot.pause(0.02)


# ---- the file ----------------------------------------------------------------------------------------------------


def test_concurrent_writers_merge_added_and_removed_entries(tmp_path: Path) -> None:
    path = tmp_path / "x.session"
    (_, one), (_, two) = of_file(path), of_file(path)
    for mine, kept in (
        (one, SavedSession("ir", bookmarks=marks(1), runs=runs(1.0))),
        (two, SavedSession("graph", bookmarks=marks(2), runs=runs(2.0))),
        (one, SavedSession("ir", bookmarks=marks(1, 3), runs=runs(1.0, 3.0))),
        (two, SavedSession("passes", bookmarks=[], runs=runs(2.0, 4.0))),
        (one, SavedSession("ir", zoomed=True, bookmarks=marks(3), runs=runs(1.0, 3.0))),
    ):
        mine.set_session(kept)
        mine.write()
    kept, problem = read_session(path)
    assert (kept.pane, kept.zoomed, kept.bookmarks, problem) == ("ir", True, marks(3), "")
    assert kept.runs == runs(1.0, 2.0, 3.0, 4.0)
    assert [file.name for file in tmp_path.iterdir()] == ["x.session"]


def test_an_unchanged_session_is_not_written(tmp_path: Path) -> None:
    path = tmp_path / "x.session"
    _, file = of_file(path)
    file.set_session(SavedSession("ir", runs=runs(1.0)))
    file.write()
    before = path.stat()
    file.set_session(SavedSession("ir", runs=runs(1.0)))
    assert file.is_written
    file.write()
    assert path.stat().st_mtime_ns == before.st_mtime_ns


def test_an_older_session_never_overwrites_a_newer_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The workbench exits during a slow write."""
    go_on, at_it, real = threading.Event(), threading.Event(), session_file.write_session

    def slow(path: Path, kept: SavedSession) -> None:
        at_it.set()
        assert go_on.wait(PATIENCE)
        real(path, kept)

    monkeypatch.setattr(session_file, "write_session", slow)
    _, file = of_file(tmp_path / "x.session")
    file.set_session(SavedSession("ir"))
    writers = [threading.Thread(target=file.write) for _ in range(3)]
    writers[0].start()
    assert at_it.wait(PATIENCE)
    file.set_session(SavedSession("passes"))
    for writer in writers[1:]:
        writer.start()
    assert not file.is_written
    go_on.set()
    for writer in writers:
        writer.join(PATIENCE)
    assert (read_session(tmp_path / "x.session")[0].pane, file.is_written) == ("passes", True)


def test_an_unreadable_session_is_renamed_by_the_first_write(tmp_path: Path) -> None:
    path = tmp_path / "x.session"
    path.write_bytes(b"mine")
    file = SessionFile(path)
    assert "could not be read" in file.read()[1]
    assert path.read_bytes() == b"mine"
    file.set_session(SavedSession("ir"))
    file.write()
    assert (path.with_name("x.session.unread").read_bytes(), read_session(path)[0].pane) == (b"mine", "ir")


def test_a_run_is_saved_without_images_of_its_values() -> None:
    output = OutputReport("out0", (4,), "float32", 0.1, 0.1, "mismatch", histogram=(1, 2), map=((0.1,),), mean=0.5)
    report = RunReport(0, (output,), TIMING, TIMING, 1, 0, 0.0, sides=(SideReport("iree", (output,)),))
    kept = make_record(1.0, Recipe(), report, InputChoice()).report
    for (found,) in (kept.outputs, kept.sides[0].outputs):
        assert (found.verdict, found.mean, found.histogram, found.map) == ("mismatch", 0.5, (), ())


# ---- the workbench -----------------------------------------------------------------------------------------------


async def test_changes_are_written_while_the_workbench_runs(tmp_path: Path) -> None:
    app = opened(tmp_path)
    async with app.run_test(size=(100, 24)) as pilot:
        path = app.session_commands._path
        app.state.runs = list(runs(1.0))
        app.context.bookmarks.marks = Bookmarks.from_data(marks(7)).marks
        app.update_border_lines()
        assert Bookmarks.from_data(app.context.bookmarks.to_data()).marks == app.context.bookmarks.marks
        await until(
            pilot,
            lambda: (read_session(path)[0].runs, read_session(path)[0].bookmarks) == (runs(1.0), marks(7)),
            "both",
        )
        await pilot.press("tab")
        await until(pilot, lambda: read_session(path)[0].pane == app.context.layout.pane_id != "graph", "the pane")


async def test_a_session_with_unreadable_bookmarks_is_renamed(tmp_path: Path) -> None:
    app = opened(tmp_path)
    path = app.session_commands._path
    _, file = of_file(path)
    file.set_session(SavedSession("ir", bookmarks=["of another kind"]))
    file.write()
    before = path.read_bytes()
    async with app.run_test(size=(100, 24)) as pilot:
        await pilot.press("tab")
        await until(pilot, lambda: read_session(path)[0].bookmarks == [], "a write")
    assert path.with_name(f"{path.name}.unread").read_bytes() == before


async def test_a_blocked_disk_delays_no_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go_on, real = threading.Event(), session_file.write_session
    at_it: list[threading.Thread] = []

    def stuck(path: Path, kept: SavedSession) -> None:
        at_it.append(threading.current_thread())
        assert go_on.wait(PATIENCE)
        real(path, kept)

    monkeypatch.setattr(session_file, "write_session", stuck)
    app = opened(tmp_path)
    async with app.run_test(size=(100, 24)) as pilot:
        await until(pilot, lambda: bool(at_it), "a write")
        before = app.context.layout.pane_id
        await pilot.press("tab")
        await until(pilot, lambda: app.context.layout.pane_id != before, "the next pane")
        assert at_it[0] is not threading.main_thread()
        go_on.set()
        await until(
            pilot, lambda: read_session(app.session_commands._path)[0].pane == app.context.layout.pane_id, "the pane"
        )


async def test_a_full_disk_is_reported_once_and_the_write_is_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "RETRY_SECONDS", 0.02)
    monkeypatch.setattr(sessions, "SAVE_SECONDS", 0.02)
    full, tried, real, told = True, 0, session_file.write_session, []

    def write(path: Path, kept: SavedSession) -> None:
        nonlocal tried
        tried += 1
        if full:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(path, kept)

    monkeypatch.setattr(session_file, "write_session", write)
    app = opened(tmp_path)
    monkeypatch.setattr(app.context.status, "say", told.append)
    async with app.run_test(size=(100, 24)) as pilot:
        await until(pilot, lambda: tried > 5, "a few tries")
        assert [text for text in told if "could not be saved" in text] == [
            "runs, bookmarks and layout could not be saved: No space left on device"
        ]
        full = False
        await until(pilot, app.session_commands._path.exists, "the file")
    assert sum("could not be saved" in text for text in told) == 1


async def test_saved_state_that_is_not_restored_yet_stays_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The saved stage is shown after it is compiled, and the inputs are restored after their file is read."""
    go_on = threading.Event()
    monkeypatch.setattr(run, "inputs_from_file", lambda path: go_on.wait(PATIENCE) and InputChoice("file", title="x"))
    path = opened(tmp_path).session_commands._path
    chosen = InputChoice("file", title=str(tmp_path / "x.npz"))
    _, file = of_file(path)
    place = SavedCursor("hash", 7, 3, "  %0 = linalg.matmul", "mm")
    file.set_session(SavedSession("passes", stage=("cse", 1), node="mm", inputs=chosen, cursor=place))
    file.write()
    app = opened(tmp_path)
    async with app.run_test(size=(100, 24)) as pilot:
        await pilot.press("tab")
        await until(pilot, lambda: read_session(path)[0].pane == app.context.layout.pane_id != "passes", "the pane")
        kept = read_session(path)[0]
        assert (kept.stage, kept.node, kept.inputs, kept.cursor) == (("cse", 1), "mm", chosen, place)
        app.run_commands._use_input_kind("script")
        go_on.set()
        await until(pilot, lambda: not any(each.group == "inputs" for each in app.workers), "the file")
        assert app.session.inputs == InputChoice(), "what is chosen meanwhile stays"
