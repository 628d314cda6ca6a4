"""A full disk during a save, and an engine killed during work: no user data is lost."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.engine_processes import children, command

pytestmark = pytest.mark.slow
resource = pytest.importorskip("resource")
Open = Callable[..., Any]

# Says that it runs, and goes on when it is let.
GATED = """\
import time
from pathlib import Path

import torch

Path({here!r}).touch()
while not Path({gate!r}).exists():
    time.sleep(0.02)


def model(x):
    return x + 1


example_inputs = (torch.ones(4),)
"""


@contextlib.contextmanager
def full_disk() -> Iterator[None]:
    """Prevent writes to files by this process. Existing child processes are not affected."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


async def test_a_full_disk_loses_neither_saved_nor_edited_data(
    workbench: Open, tmp_path: Path, messages: Callable[..., list[str]]
) -> None:
    saved = tmp_path / "saved.toml"
    async with workbench("arith_add.py") as bench:
        app = bench.app
        app.context.files.write(str(saved), "as it was")
        before = app.workspace.recipe
        with full_disk():
            app.context.files.write(str(tmp_path / "new.toml"), "new")
            assert "could not be written" in app.context.status.message
            app.context.files._write(str(saved), saved, "another")
            assert "could not be written" in app.context.status.message
            said = messages(app)
            await bench.press("space", "+")
            assert app.workspace.recipe != before, "the edit is made all the same"
            await bench.until(lambda: any("layout could not be saved" in each for each in said), "the layout's turn")
            recipe = next(at for at, each in enumerate(said) if "the recipe could not be saved" in each)
            layout = next(at for at, each in enumerate(said) if "layout could not be saved" in each)
            assert layout < recipe or "the recipe could not be saved" in said[layout], "neither hides the other"
            app.session_commands.write_reproducer(str(tmp_path / "folder"))
            await bench.until(lambda: any("folder could not be written" in each for each in said), "what is wrong")
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


async def test_an_engine_killed_while_it_opens_or_runs_is_restarted(workbench: Open, tmp_path: Path) -> None:
    script, here, gate = (tmp_path / name for name in ("script.py", "here", "gate"))
    script.write_text(GATED.format(here=str(here), gate=str(gate)))
    async with workbench(script, wait=False) as bench:
        await bench.until(here.exists, "the script to run")
        assert "open" in bench.app.state.jobs.values()
        gate.touch()
        await comes_back(bench)
        recipe = bench.app.workspace.recipe
        # The host is stopped, so the run stays active until the screen shows it.
        (host,) = (pid for pid in children(bench.app.state.welcome.pid) if "engine.host" in command(pid))
        os.kill(host, signal.SIGSTOP)
        await bench.press("r")
        await bench.until(lambda: "run" in bench.app.state.jobs.values(), "a job to run")
        await comes_back(bench)
        assert bench.app.workspace.recipe == recipe
        await bench.press("r")
        await bench.until(lambda: bench.app.state.report is not None, "the run")


async def comes_back(bench: Any) -> None:
    """Kill the engine, and wait until the next one has finished the interrupted work."""
    pid = bench.app.state.welcome.pid
    os.kill(pid, signal.SIGKILL)
    await bench.until(lambda: bench.app.state.welcome.pid != pid, "another engine")
    await bench.settled()
    await bench.sees("func.func @forward")
