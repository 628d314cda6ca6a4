"""A full disk while something is saved, an engine killed while it works: nothing of the user's is lost."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow
resource = pytest.importorskip("resource")
Open = Callable[..., Any]


@contextlib.contextmanager
def full_disk() -> Iterator[None]:
    """No file of this process can grow; its children, which are there already, are left alone."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


async def test_on_a_full_disk_what_was_saved_stays_and_what_is_edited_too(workbench: Open, tmp_path: Path) -> None:
    saved = tmp_path / "saved.toml"
    async with workbench("arith_add.py") as bench:
        app = bench.app
        app.editing.write_file(str(saved), "as it was")
        before = app.workspace.recipe
        with full_disk():
            app.editing.write_file(str(tmp_path / "new.toml"), "new")
            assert "could not be written" in app._message
            app.editing._write(str(saved), saved, "another")
            assert "could not be written" in app._message
            await bench.press("space")
            assert "the recipe could not be kept" in app._message
            assert app.workspace.recipe != before, "the edit is made all the same"
            app.sessions.write_reproducer(str(tmp_path / "folder"))
            await bench.until(lambda: "folder could not be written" in app._message, "what is wrong")
            await bench.settled()
        assert saved.read_text() == "as it was"
        assert not (tmp_path / "new.toml").exists()
        assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
        edited = app.workspace.recipe
        await bench.press("u")
        assert app.workspace.recipe == before
        await bench.press("ctrl+r")
        assert (app.workspace.recipe, app.workspace.problem) == (edited, "")
        await bench.settled()


async def test_an_engine_that_is_killed_while_it_opens_or_runs_comes_back(workbench: Open) -> None:
    async with workbench("arith_add.py", wait=False) as bench:
        app = bench.app
        for moment in ("open", "run"):
            await bench.until(lambda wanted=moment: wanted in app.state.jobs.values(), f"a job to {moment}")
            pid, recipe = app.state.welcome.pid, app.workspace.recipe
            os.kill(pid, signal.SIGKILL)
            await bench.until(lambda one=pid: app.state.welcome.pid != one, "another engine")
            await bench.settled()
            assert moment == "open" or app.workspace.recipe == recipe
            assert bench.shows("func.func @forward")
            await bench.press("r")
        await bench.until(lambda: app.state.report is not None, "the run")
