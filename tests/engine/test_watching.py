"""Waiting for files to change, however an editor writes them."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from buddy.compiler.engine import file_watching
from buddy.compiler.engine.file_watching import WatchHandler
from buddy.compiler.protocol import FilesChanged, WatchFiles
from buddy.compiler.support.processes.jobs import Job


class Waiting:
    """A `WatchFiles` on the files of a folder that is under way."""

    def __init__(self, folder: Path, *names: str) -> None:
        self.sent: list[Any] = []
        self._names, self._watching = names, WatchHandler(self.sent.append)
        self._watch = self._watching.watch(WatchFiles(1, names, str(folder)), Job(1))

    async def __aenter__(self) -> Waiting:
        self.task = asyncio.ensure_future(self._watch)
        # What the files hold is known from the first look on. A file system's clock may stand for some milliseconds.
        while len(self._watching._content_hashes) < len(self._names):
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.task.cancel()

    async def answer(self) -> FilesChanged:
        await asyncio.wait_for(self.task, 120)
        (found,) = self.sent
        return found


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(file_watching, "_POLL_SECONDS", 0.05)
    monkeypatch.setattr(file_watching, "_DELETED_SECONDS", 0.5)
    (tmp_path / "a.py").write_text("a = 1\n")
    (tmp_path / "b.py").write_text("b = 1\n")
    return tmp_path


async def test_a_file_that_is_written_or_replaced_is_told(folder: Path) -> None:
    async with Waiting(folder, "a.py", "b.py") as waiting:
        (folder / "a.py").write_text("a = 2\n")
        assert await waiting.answer() == FilesChanged(1, ("a.py",))
    async with Waiting(folder, "a.py", "b.py") as waiting:
        (folder / "new").write_text("b = 2\n")
        os.replace(folder / "new", folder / "b.py")
        assert await waiting.answer() == FilesChanged(1, ("b.py",))


async def test_a_file_that_is_touched_or_away_for_a_moment_has_not_changed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_watching, "_DELETED_SECONDS", 60.0)
    async with Waiting(folder, "a.py") as waiting:
        os.utime(folder / "a.py", (1, 1))
        await asyncio.sleep(0.3)
        text = (folder / "a.py").read_text()
        (folder / "a.py").unlink()
        await asyncio.sleep(0.2)
        (folder / "a.py").write_text(text)
        await asyncio.sleep(0.4)
        assert waiting.sent == []
        (folder / "a.py").unlink()
        await asyncio.sleep(0.1)
        (folder / "a.py").write_text("a = 3\n")
        assert await waiting.answer() == FilesChanged(1, ("a.py",))


async def test_a_file_that_stays_away_is_gone_and_one_that_comes_has_changed(folder: Path) -> None:
    async with Waiting(folder, "a.py") as waiting:
        (folder / "a.py").unlink()
        assert await waiting.answer() == FilesChanged(1, (), ("a.py",))
    async with Waiting(folder, "a.py") as waiting:
        (folder / "a.py").write_text("a = 4\n")
        assert await waiting.answer() == FilesChanged(1, ("a.py",))


async def test_a_file_that_is_taken_away_just_as_it_is_read_is_not_gone(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    look, saved = file_watching._read_states, folder / "a.py"

    def while_it_is_away(files: Sequence[Path]) -> Any:
        monkeypatch.setattr(file_watching, "_read_states", look)
        saved.rename(folder / "away")
        found = look(files)
        (folder / "away").rename(saved)
        return found

    async with Waiting(folder, "a.py") as waiting:
        monkeypatch.setattr(file_watching, "_read_states", while_it_is_away)
        saved.write_text("a = 5\n")
        assert await waiting.answer() == FilesChanged(1, ("a.py",))


async def test_what_is_written_bit_by_bit_is_told_once_it_is_whole(folder: Path) -> None:
    async with Waiting(folder, "a.py") as waiting:
        for number in range(12):
            with (folder / "a.py").open("a") as file:
                file.write(f"x{number} = 1\n")
            await asyncio.sleep(0.03)
            if waiting.sent:
                break
        await waiting.answer()
        assert len((folder / "a.py").read_text().splitlines()) == 13


async def test_what_is_written_after_the_program_was_opened_and_before_it_is_watched_has_changed(folder: Path) -> None:
    watching = WatchHandler((sent := []).append)

    async def answer() -> FilesChanged:
        await asyncio.wait_for(watching.watch(WatchFiles(1, ("a.py", "b.py"), str(folder)), Job(1)), 120)
        return sent.pop()

    async def nothing_more() -> None:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(watching.watch(WatchFiles(2, ("a.py", "b.py"), str(folder)), Job(2)), 0.5)
        assert sent == []

    await asyncio.sleep(0.05)
    watching.record_opening()
    await asyncio.sleep(0.05)
    (folder / "a.py").write_text("a = 5\n")
    assert await answer() == FilesChanged(1, ("a.py",))
    await nothing_more()

    # A request that is given up loses nothing.
    (folder / "b.py").write_text("b = 5\n")
    assert await answer() == FilesChanged(1, ("b.py",))
    (folder / "a.py").unlink()
    assert await answer() == FilesChanged(1, (), ("a.py",))
    await nothing_more()
    os.replace(folder / "b.py", folder / "a.py")
    (folder / "b.py").write_text("b = 5\n")
    assert await answer() == FilesChanged(1, ("a.py",))


async def test_what_the_program_writes_each_time_it_is_opened_is_no_change_but_for_the_first(folder: Path) -> None:
    watching = WatchHandler((sent := []).append)
    for expected, patience in (([FilesChanged(1, ("a.py",))], 120.0), ([], 1.0), ([], 1.0)):
        await asyncio.sleep(0.05)
        watching.record_opening()
        await asyncio.sleep(0.05)
        (folder / "a.py").write_text("a = 6\n")
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(watching.watch(WatchFiles(1, ("a.py",), str(folder)), Job(1)), patience)
        assert sent == expected
        sent.clear()
