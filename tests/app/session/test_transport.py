"""The workbench with a remote engine over a slow connection: traffic, latency, and lost connections."""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from buddy.app.session.engine_options import NO_LOG, RemoteHost
from buddy.app.session.line_cache import PAGE_LINES
from buddy.app.session.session import Session
from buddy.app.session.transport import EngineError, ResumingTransport
from buddy.app.workspace.workspace import Workspace
from buddy.compiler.protocol import ListPresets
from buddy.compiler.support.timing import main_thread_wait_seconds
from tests.support.engine_processes import gone, lives, stopped

ROOT = Path(__file__).resolve().parents[3]
# Each way, so an answer takes twice as long.
DELAY = 0.2
# In current round trips of the connection: two sequential requests would take two.
FIRST_PAGE = 1.75


@pytest.fixture
def far() -> Iterator[Path]:
    # Not `tmp_path`: the path of a socket has 107 bytes at most.
    with tempfile.TemporaryDirectory(prefix="far") as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", folder)
        program = Path(folder) / "buddy-tui"
        program.write_text(f'#!/bin/sh\nexec {sys.executable} -m buddy.app.cli "$@"\n')
        program.chmod(0o700)
        yield Path(folder)


def remote(far: Path) -> RemoteHost:
    ssh = (sys.executable, str(ROOT / "benchmarks" / "support" / "far.py"), str(far), str(DELAY))
    return RemoteHost("far", ssh, program=str(far / "buddy-tui"), folder=str(ROOT), reconnect_seconds=120.0)


async def compiled(bench: Any) -> None:
    """A remote engine on a busy machine may take longer to start than the usual time limit of tests."""
    end = time.monotonic() + 400
    while bench.app.state.compiled_recipe is None and time.monotonic() < end:
        await bench.pilot.pause(0.05)
    await bench.settled()
    # What is asked for at the start comes beside all else, and is longer than the pages that are counted here.
    await bench.until(lambda: bench.app.state.passes and bench.app.state.ops, "the catalogues")


async def test_only_shown_lines_are_transferred_in_one_round_trip(workbench: Callable[..., Any], far: Path) -> None:
    place = remote(far)
    async with workbench(Path("samples/mlp.py"), wait=False, engine=place, directory=place.folder) as bench:
        await compiled(bench)
        app, ir, client = bench.app, bench.app.ir, bench.app.session._client
        await bench.press("j", "j", "j", "tab", "tab")
        long = [row for row in ir.rows if row.stage.lines > 3 * PAGE_LINES and row.stage.changed][:6]
        assert long, "the sample has no stage of several pages"
        seconds, trips = [], []
        for row in long:
            await asyncio.sleep(0.5)
            started = time.monotonic()
            await client.request(ListPresets(0))
            trips.append(time.monotonic() - started)
            # What others take of the cores is the machine's, as in the keyboard's test.
            before, started, late = client.received_bytes, time.monotonic(), main_thread_wait_seconds(os.getpid())
            ir.choose(row)
            await bench.until(lambda row=row: ir.document.text == row.stage.text, "the first page")
            seconds.append(time.monotonic() - started - (main_thread_wait_seconds(os.getpid()) - late))
            await asyncio.sleep(0.5)
            whole = len(await app.session.fetch_text(row.stage.text)) if row is long[-1] else 0
            moved = client.received_bytes - before
        assert statistics.median(seconds) < FIRST_PAGE * statistics.median(trips), (seconds, trips)
        assert moved - whole < whole * 0.9, "a stage was sent whole"
        moves = client.received_bytes
        for _ in range(20):
            await bench.press("down")
        assert client.received_bytes - moves < 20 * 1000, "scrolling inside what is at hand asks for nothing but pages"


async def test_a_lost_connection_is_reported_and_loses_no_edits(workbench: Callable[..., Any], far: Path) -> None:
    place = remote(far)
    async with workbench(Path("samples/arith_add.py"), wait=False, engine=place, directory=place.folder) as bench:
        await compiled(bench)
        app = bench.app
        pid = app.state.welcome.pid
        (far / "down").touch()
        await bench.until(lambda: bench.shows("disconnected"), "the loss")
        await bench.until(lambda: "reconnecting in" in app.state.connection_error, "the next try")
        await bench.until(lambda: bench.shows("press R to reconnect"), "what to do")
        assert app.state.engine == "ready"
        assert app.ir.document.line_count
        await bench.press("space")
        assert app.workspace.can_undo
        await bench.press("u")
        await bench.press("space")
        edited = app.workspace.recipe
        (far / "down").unlink()
        await bench.press("R")
        await bench.until(lambda: not app.state.connection_error, "the link")
        await bench.settled()
        assert app.state.compiled_recipe == edited == app.workspace.recipe
        assert app.workspace.can_undo
        assert app.state.welcome.pid == pid, "it is the same engine"


async def test_r_restarts_a_stopped_remote_engine(
    workbench: Callable[..., Any], far: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The message about the edit disappears, so that the status is visible.
    monkeypatch.setattr("buddy.app.panes.jobs.MESSAGE_SECONDS", 0.1)
    place = remote(far)
    async with workbench(Path("samples/arith_add.py"), wait=False, engine=place, directory=place.folder) as bench:
        await compiled(bench)
        app = bench.app
        await bench.press("space")
        edited, pid = app.workspace.recipe, app.state.welcome.pid
        with stopped(pid) as below:
            (far / "down").touch()
            await bench.until(lambda: app.state.connection_error, "the loss of the link")
            (far / "down").unlink()
            await bench.until(lambda: bench.shows("does not answer"), "the engine's silence")
            await bench.until(lambda: bench.shows("press R to restart"), "what to do")
            await bench.press("R")
            await bench.until(lambda: app.state.welcome.pid != pid, "another engine")
            assert await gone(*below)
        await bench.settled()
        assert app.state.compiled_recipe == edited


async def test_an_unreachable_host_is_tried_once_and_again_with_r(
    workbench: Callable[..., Any], tmp_path: Path
) -> None:
    tried = tmp_path / "tried"
    code = f"import sys; open({str(tried)!r}, 'a').write('x'); print('Host key verification failed.', file=sys.stderr)"
    place = RemoteHost("far", (sys.executable, "-c", f"{code}; sys.exit(255)"))
    async with workbench(Path("samples/arith_add.py"), wait=False, engine=place, directory="") as bench:
        await bench.until(lambda: bench.app.state.engine == "lost", "the end")
        await asyncio.sleep(1.0)
        assert tried.read_text() == "x"
        assert "connect once with `ssh far`" in str(bench.app.state.log[-1])
        await bench.press("R")
        await bench.until(lambda: tried.read_text() == "xx", "another try")


async def test_r_cancels_a_login_that_hangs(tmp_path: Path) -> None:
    """Another engine starts, and all processes of the first one have exited."""
    tried = tmp_path / "tried"
    place = RemoteHost("far", ("sh", "-c", f"echo $$ >> {tried}; exec sleep 600"))
    session = Session(Workspace("a.py", (), tmp_path), lambda topics: None, place)
    living = asyncio.ensure_future(session.keep_running())
    while not (tried.exists() and tried.read_text().endswith("\n")):
        await asyncio.sleep(0.05)
    session.start_over()
    while len(logins := tried.read_text().split()) < 2:
        await asyncio.sleep(0.05)
    assert not lives(int(logins[0]))
    assert session.state.engine == "starting"
    await session.close()
    await living
    assert not lives(int(logins[1]))


async def test_a_connection_cancelled_while_it_starts_is_closed(tmp_path: Path) -> None:
    """`R` for a silent engine works between two attempts to reconnect, and during one before its process exists."""
    started = tmp_path / "started"
    link = ResumingTransport(
        RemoteHost("far", ("sh", "-c", f"echo $$ > {started}; exec sleep 600")), NO_LOG, lambda _: None
    )
    opening = asyncio.ensure_future(link.open())
    await asyncio.sleep(0)
    link.kill()
    with pytest.raises(EngineError):
        await opening
    assert not started.exists() or not started.read_text().strip() or not lives(int(started.read_text()))
