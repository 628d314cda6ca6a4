"""Workers that are killed, crash or stop: what was asked fails with a message, and everything goes on."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import msgspec
import pytest

from buddy.app.session.client import EngineClient, EngineError
from buddy.app.session.engine_options import LogOptions
from buddy.compiler.engine.worker import EngineWorker, WorkerListener
from buddy.compiler.protocol import (
    Cancel,
    Captured,
    Compile,
    Compiled,
    Failed,
    ListPresets,
    Open,
    Progress,
    Ran,
    Run,
    StageDone,
    WatchFiles,
    WorkerState,
)
from buddy.compiler.protocol.recipe import PassStep, PluginFile
from buddy.compiler.protocol.worker_messages import CompilerMessage
from tests.support.engine_bench import Bench
from tests.support.engine_processes import everything_below, gone, lives

STAND_STILL = """\
import time
from dataclasses import dataclass

from buddy.compiler.passes.base import MlirPass, register


@register
@dataclass(frozen=True)
class StandStill(MlirPass):
    name = "stand-still"
    summary = "comes to no end"

    def run(self, root, context):
        while True:
            time.sleep(1)
"""
pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc"),
]


@pytest.mark.parametrize("how", [signal.SIGSEGV, signal.SIGKILL, signal.SIGABRT])
async def test_a_compiler_that_dies_fails_its_request_and_keeps_its_stages(
    bench: Bench, add: Path, how: signal.Signals
) -> None:
    plugin = add.with_name("stand_still.py")
    plugin.write_text(STAND_STILL)
    opened = await bench.ask(Open(bench.client.new_request_id(), str(add), plugins=(PluginFile(str(plugin)),)))
    recipe = msgspec.structs.replace(await bench.recipe(add), plugins=opened.plugins)
    first = next(number for number, step in enumerate(recipe.steps) if step.level == "mlir")
    steps = (*recipe.steps[:first], PassStep("stand-still"), *recipe.steps[first:])
    request = bench.client.new_request_id()
    bench.client.send(Compile(request, msgspec.structs.replace(recipe, steps=steps)))
    done = await bench.until(lambda frame: isinstance(frame, StageDone) and frame.stage.name == "lower")
    await bench.until(lambda frame: isinstance(frame, Progress) and frame.activity.endswith("stand-still"))
    os.kill(bench.worker_pid("compiler"), how)
    dead = await bench.state("compiler", "dead")
    assert (dead.end, dead.again) == ("request", True)
    failed = await bench.end_of(request)
    assert isinstance(failed, Failed)
    assert not failed.cancelled
    assert how.name in failed.diagnostic.what
    assert "pass stand-still" in failed.diagnostic.where
    assert (await bench.client.fetch_text(done.stage.text)).strip()
    await bench.state("compiler", "ready")
    assert isinstance(await bench.ask(Compile(bench.client.new_request_id(), recipe)), Compiled)


async def test_a_stopped_compiler_is_said_and_cancel_brings_a_new_one(bench: Bench, add: Path) -> None:
    await bench.open(add)
    recipe = await bench.recipe(add)
    old = bench.worker_pid("compiler")
    os.kill(old, signal.SIGSTOP)
    stopped = await bench.state("compiler", "stopped")
    assert "suspended by a signal" in stopped.reason
    request = bench.client.new_request_id()
    bench.client.send(Compile(request, recipe))
    await bench.presets()  # what is answered after it was begun after it
    bench.client.send(Cancel(request))
    failed = await bench.end_of(request)
    assert failed.cancelled
    assert await gone(old)
    assert isinstance(await bench.ask(Compile(bench.client.new_request_id(), recipe)), Compiled)


@pytest.mark.parametrize("worker", ["compiler", "host"])
async def test_the_end_of_an_idle_worker_is_told_as_such(bench: Bench, add: Path, worker: str) -> None:
    await bench.open(add)
    assert isinstance(await bench.ask(Compile(bench.client.new_request_id(), await bench.recipe(add))), Compiled)
    os.kill(bench.worker_pid(worker), signal.SIGSEGV)
    dead = await bench.state(worker, "dead")
    assert (dead.end, dead.again) == ("idle", True)
    assert dead.reason.startswith("SIGSEGV, ")
    await bench.state(worker, "ready")


async def test_a_worker_that_does_not_start_is_told_each_time_until_it_is_given_up() -> None:
    told: list[WorkerState] = []
    listener = WorkerListener(told.append, lambda *printed: None, lambda: False)
    worker = EngineWorker("compiler", "buddy.compiler.engine.nowhere:serve", CompilerMessage, listener)
    worker.start()
    while len(told) < 6:
        await asyncio.sleep(0.01)
    assert {state.state for state in told[::2]} == {"starting"}
    dead = told[1::2]
    assert [(state.end, state.again) for state in dead] == [("start", True), ("start", True), ("start", False)]
    assert {state.reason for state in dead} == {"exit code 1"}
    await worker.close()


async def test_an_end_that_was_asked_for_is_no_news(bench: Bench, add: Path) -> None:
    """The next program has a fresh host."""
    await bench.open(add)
    bench.client.send(Open(bench.client.new_request_id(), str(add), ("again",)))
    assert (await bench.state("host", "dead")).end == "asked"


async def test_a_host_killed_after_capture_is_loaded_again_for_the_next_run(bench: Bench, add: Path) -> None:
    await bench.open(add)
    os.kill(bench.worker_pid("host"), signal.SIGKILL)
    dead = await bench.state("host", "dead")
    assert "SIGKILL" in dead.reason
    ran = await bench.ask(Run(bench.client.new_request_id(), await bench.recipe(add), repeats=2))
    assert isinstance(ran, Ran)
    assert ran.report.ok


async def test_a_host_killed_during_a_run_fails_that_run_alone(bench: Bench, add: Path) -> None:
    await bench.open(add)
    recipe = await bench.recipe(add)
    request = bench.client.new_request_id()
    bench.client.send(Run(request, recipe, repeats=1_000_000_000))
    runner = await bench.runner_pid()
    os.kill(bench.worker_pid("host"), signal.SIGKILL)
    failed = await bench.end_of(request, run=True)
    assert "SIGKILL" in failed.diagnostic.what
    assert await gone(runner)
    ran = await bench.ask(Run(bench.client.new_request_id(), recipe, repeats=2))
    assert ran.report.ok


async def test_a_source_that_has_changed_since_is_not_run_against_the_old_graph(bench: Bench, add: Path) -> None:
    await bench.open(add)
    recipe = await bench.recipe(add)
    add.write_text(add.read_text().replace("x + y", "x * y"))
    os.kill(bench.worker_pid("host"), signal.SIGKILL)
    await bench.state("host", "dead")
    failed = await bench.ask(Run(bench.client.new_request_id(), recipe, repeats=2))
    assert isinstance(failed, Failed)
    assert "open it again" in failed.diagnostic.todo


@pytest.mark.parametrize("how", [signal.SIGSEGV, signal.SIGFPE])
async def test_a_crash_of_compiled_code_costs_the_run_alone(bench: Bench, add: Path, how: signal.Signals) -> None:
    await bench.open(add)
    recipe, host = await bench.recipe(add), bench.worker_pid("host")
    request = bench.client.new_request_id()
    bench.client.send(Run(request, recipe, repeats=1_000_000_000))
    os.kill(await bench.runner_pid(), how)
    failed = await bench.end_of(request, run=True)
    assert failed.diagnostic.what.startswith(f"the compiled kernel crashed ({how.name}")
    ran = await bench.ask(Run(bench.client.new_request_id(), recipe, repeats=2))
    assert ran.report.ok
    assert bench.worker_pid("host") == host


async def test_a_run_that_takes_too_long_is_stopped(bench: Bench, add: Path) -> None:
    await bench.open(add)
    frame = Run(bench.client.new_request_id(), await bench.recipe(add), repeats=1_000_000_000, timeout=1.0)
    failed = await bench.ask(frame)
    assert "longer than 1 s" in failed.diagnostic.what
    assert not everything_below(bench.worker_pid("host"))


async def test_cancelling_a_run_leaves_the_host_and_its_program(bench: Bench, add: Path) -> None:
    await bench.open(add)
    recipe, host = await bench.recipe(add), bench.worker_pid("host")
    request = bench.client.new_request_id()
    bench.client.send(Run(request, recipe, repeats=1_000_000_000))
    runner = await bench.runner_pid()
    bench.client.send(Cancel(request))
    assert (await bench.end_of(request, run=True)).cancelled
    assert await gone(runner)
    assert bench.worker_pid("host") == host


async def test_newer_edits_replace_those_not_begun(bench: Bench, add: Path) -> None:
    await bench.open(add)
    recipe = await bench.recipe(add)
    os.kill(bench.worker_pid("compiler"), signal.SIGSTOP)
    first, second, third = (bench.client.new_request_id() for _ in range(3))
    bench.client.send(Compile(first, recipe))
    await bench.presets()  # the first is begun by then; a stopped compiler may never be told to be busy
    bench.client.send(Compile(second, recipe.toggled(0)))
    bench.client.send(Compile(third, recipe.toggled(1)))
    replaced = await bench.end_of(second)
    assert isinstance(replaced, Failed)
    assert replaced.cancelled
    assert "newer" in replaced.diagnostic.what
    os.kill(bench.worker_pid("compiler"), signal.SIGCONT)
    assert isinstance(await bench.end_of(first), Compiled)
    assert isinstance(await bench.end_of(third), Compiled)


async def test_the_same_recipe_again_costs_nothing(bench: Bench, add: Path) -> None:
    await bench.open(add)
    recipe = await bench.recipe(add)
    fresh = await bench.ask(Compile(bench.client.new_request_id(), recipe))
    again = await bench.ask(Compile(bench.client.new_request_id(), recipe))
    assert again.stages == fresh.stages
    assert again.reused == len(fresh.stages)
    os.kill(bench.worker_pid("compiler"), signal.SIGKILL)
    ran = await bench.ask(Run(bench.client.new_request_id(), recipe, repeats=2))
    assert ran.report.ok


async def test_no_process_outlives_a_killed_engine(add: Path) -> None:
    client = EngineClient()
    welcome = await client.start()
    bench = Bench(client)
    await bench.open(add)
    request = client.new_request_id()
    client.send(Run(request, await bench.recipe(add), repeats=1_000_000_000))
    await bench.runner_pid()
    pids = everything_below(welcome.pid)
    assert len(pids) >= 3
    os.kill(welcome.pid, signal.SIGKILL)
    assert await gone(*pids)
    with pytest.raises(EngineError, match="SIGKILL"):
        await bench.until(lambda frame: False)
    await client.restart()
    assert isinstance(await Bench(client).open(add), Captured)
    await client.close()


CLIENT = """
import asyncio
from buddy.app.session.client import EngineClient

async def main():
    client = EngineClient()
    print((await client.start()).pid, flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


async def test_no_process_outlives_a_killed_client() -> None:
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", CLIENT, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    engine = int(await process.stdout.readline())
    pids = [engine, *everything_below(engine)]
    assert len(pids) == 2, "the engine and the host; the compiler starts with the first program"
    process.kill()
    await process.wait()
    assert await gone(*pids)


async def test_an_engine_that_does_not_start_says_why(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="nowhere"):
        await EngineClient([str(tmp_path / "nowhere")]).start()
    with pytest.raises(EngineError, match=r"exit code 3.*no such host"):
        await EngineClient(
            [sys.executable, "-c", "import sys; print('no such host', file=sys.stderr); sys.exit(3)"]
        ).start()
    with pytest.raises(EngineError, match="Welcome to Ubuntu"):
        await EngineClient(["sh", "-c", "echo Welcome to Ubuntu; cat"]).start()


async def test_what_nobody_waits_for_any_more_is_stopped(tmp_path: Path) -> None:
    client, file = EngineClient(log=LogOptions(tmp_path / "log", "debug")), tmp_path / "watched"
    file.touch()
    await client.start()
    try:
        number = client.new_request_id()
        waiting = asyncio.create_task(client.request(WatchFiles(number, (str(file),))))
        await client.request(ListPresets(0))
        waiting.cancel()
        frames = client.frames()
        failed = await anext(frame async for frame in frames if isinstance(frame, Failed))
        assert (failed.request, failed.cancelled) == (number, True)
    finally:
        await client.close()
    assert f"DEBUG request {number}: WatchFiles" in (tmp_path / "log").read_text()


async def test_recipes_of_programs_that_are_not_open_are_refused(bench: Bench, add: Path) -> None:
    recipe = await bench.recipe(add)
    failed = await bench.ask(Compile(bench.client.new_request_id(), recipe))
    assert "has not been opened" in failed.diagnostic.what
    await bench.open(add)
    failed = await bench.ask(Compile(bench.client.new_request_id(), msgspec.structs.replace(recipe, graph=5)))
    assert "no graph number 5" in failed.diagnostic.what
    assert lives(bench.pid)
