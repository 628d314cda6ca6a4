"""The heartbeat reports an engine that does not answer, but not one that answers or a suspended workbench."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from buddy.app.session import monitors
from buddy.app.session.engine_options import RemoteHost
from buddy.app.session.monitors import Heartbeat
from buddy.app.session.session import Session
from buddy.app.session.state import State
from buddy.app.workspace.workspace import Workspace
from buddy.compiler.protocol import WorkerState
from tests.support.engine_processes import children, command, lives

Open = Callable[..., Any]


class Engine:
    """A client of an engine, which answers pings if `answers` is true."""

    def __init__(self, answers: bool, greeted: bool = True) -> None:
        self.last_data_time, self.handshake_done, self.pings = time.monotonic(), greeted, 0
        self._answers = answers

    def ping(self) -> None:
        self.pings += 1
        if self._answers:
            asyncio.get_running_loop().call_later(0.01, self._hear)

    def _hear(self) -> None:
        self.last_data_time = time.monotonic()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in (
        ("PING_SECONDS", 0.3),
        ("SILENCE_SECONDS", 1.0),
        ("CHECK_SECONDS", 0.1),
        ("START_SILENCE_SECONDS", 2.0),
    ):
        monkeypatch.setattr(monitors, name, seconds)


async def _listened(engine: Engine, until: Callable[[list[int]], bool]) -> list[int]:
    """The reported values, until they meet a condition."""
    told: list[int] = []
    beat = Heartbeat(told.append)
    beat.start(engine)
    while not until(told):
        await asyncio.sleep(0.05)
    beat.stop()
    return told


async def test_an_engine_that_answers_every_ping_is_never_reported() -> None:
    engine = Engine(answers=True)
    assert await _listened(engine, lambda _told: engine.pings >= 3) == []


@pytest.mark.parametrize("greeted", [True, False])
async def test_a_silent_engine_is_reported_until_it_answers(greeted: bool) -> None:
    engine = Engine(answers=False, greeted=greeted)
    told = await _listened(engine, lambda told: bool(told))
    assert told[0] >= 1
    assert engine.pings == greeted, "it is asked once, and not before it has greeted"
    engine.last_data_time = time.monotonic()
    told = await _listened(engine, lambda told: engine.pings > greeted or not greeted)
    assert told == []


async def test_the_suspension_of_this_process_does_not_count() -> None:
    engine = Engine(answers=True)
    told: list[int] = []
    beat = Heartbeat(told.append)
    beat.start(engine)
    await asyncio.sleep(0.2)
    time.sleep(2.5)  # the workbench is stopped, or an editor has the terminal
    before = engine.pings
    while engine.pings == before:
        await asyncio.sleep(0.05)
    assert told == []
    beat.stop()


@pytest.mark.slow
async def test_a_stopped_engine_is_reported_and_can_be_restarted(workbench: Open) -> None:
    async with workbench("arith_add.py") as bench:
        app, pid = bench.app, bench.app.state.welcome.pid
        os.kill(pid, signal.SIGSTOP)
        await bench.until(lambda: app.state.silent_seconds, "that nothing is heard")
        await bench.until(lambda: bench.shows("engine not responding"), "the header")
        await bench.until(lambda: bench.shows("the engine has not answered for"), "the message")
        await bench.press("R")
        await bench.until(lambda: app.state.welcome.pid != pid, "another engine")
        await bench.settled()
        await bench.until(lambda: app.state.silent_seconds == 0, "that the other one is heard")
        await bench.sees("func.func @forward")


@pytest.mark.slow
async def test_a_stopped_worker_is_named_and_cancelling_replaces_it(workbench: Open) -> None:
    async with workbench("arith_add.py") as bench:
        app = bench.app
        host = _child(app.state.welcome.pid, "buddy.compiler.engine.host")
        os.kill(host, signal.SIGSTOP)
        await bench.until(lambda: bench.shows("host suspended"), "the header")
        await bench.press("r")
        await bench.until(lambda: app.state.busy, "the run")
        await bench.until(lambda: bench.shows("the host process is suspended by a signal"), "the message")
        await bench.press("ctrl+c")
        await bench.until(lambda: not app.state.busy, "the end of the run")
        await bench.press("r")
        await bench.until(lambda: app.state.report is not None, "a run in another host")
        assert app.state.report.ok


async def test_remote_engines_are_monitored_by_their_transport(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A login may take longer than a local start, and an abandoned remote engine would keep running."""
    monkeypatch.setattr(monitors, "START_SILENCE_SECONDS", 0.2)
    place = RemoteHost("far", ssh=("sh", "-c", "exec sleep 600"))
    session = Session(Workspace("a.py", (), tmp_path), lambda topics: None, place)
    living = asyncio.ensure_future(session.keep_running())
    await asyncio.sleep(1.5)
    assert (session.state.engine, session.state.silent_seconds) == ("starting", 0)
    living.cancel()
    await asyncio.wait([living])


def test_a_stopped_runner_exits_with_its_host() -> None:
    state = State()
    for worker, standing in (("host", "busy"), ("runner", "stopped"), ("host", "dead"), ("host", "starting")):
        state.apply(WorkerState(worker, standing))
    assert set(state.workers) == {"host"}


@pytest.mark.slow
async def test_the_exit_of_an_idle_worker_is_logged(workbench: Open) -> None:
    async with workbench("arith_add.py", size=(160, 40)) as bench:
        await bench.until(lambda: bench.app.state.passes and bench.app.state.ops, "all that was asked at the start")
        os.kill(_child(bench.app.state.welcome.pid, "buddy.compiler.engine.compiler"), signal.SIGABRT)
        await bench.until(lambda: bench.app.state.log, "the news")
        bench.app.screen_commands.open_log()
        await bench.sees("the compiler worker exited: SIGABRT")
        await bench.press("enter")
        await bench.sees("another worker is starting")


@pytest.mark.slow
async def test_requests_of_the_previous_engine_are_dropped(workbench: Open) -> None:
    """A run whose request number the new engine did not use stayed active forever."""
    async with workbench("arith_add.py") as bench:
        app, pid = bench.app, bench.app.state.welcome.pid
        app.state.apply(WorkerState("runner", "stopped"))
        app.state.record_start("run", 1000, app.workspace.recipe)
        await bench.until(lambda: app.state.workers, "the workers")
        os.kill(pid, signal.SIGSTOP)  # it takes its time to end
        # At once: it is killed after a while, and the other one may be there before keys have come to where they go.
        for action in ("rerun", "rerun", "run", "cancel"):
            await app.action_act(action)
        app.session.run()
        app.session.cancel()
        assert app.state.engine == "starting"
        await bench.until(lambda: app.state.welcome.pid != pid, "another engine")
        assert not lives(pid), "there were two engines"
        await bench.settled()
        assert "runner" not in app.state.workers
        await bench.until(lambda: not bench.shows("stopped"), "the header without the runner")


def _child(engine: int, module: str) -> int:
    return next(pid for pid in children(engine) if f" {module} " in command(pid))
