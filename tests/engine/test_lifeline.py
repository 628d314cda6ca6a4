"""Processes that do not get as far as their first line: they end with their engine, or when they are given up."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import msgspec
import pytest

from buddy.app.session.client import EngineClient
from buddy.compiler.engine import worker
from buddy.compiler.engine.worker import EngineWorker, WorkerListener
from buddy.compiler.protocol import Bisect, Criterion, Open, Tune, Variation
from buddy.compiler.protocol.recipe import PassStep, PluginFile, Recipe
from buddy.compiler.protocol.worker_messages import CompilerMessage
from tests.support.engine_bench import Bench
from tests.support.engine_processes import forked_from_host, gone, lives

linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process that is stopped with another")
STARTS_ONE = """
import os, signal, subprocess, sys
from buddy.compiler.support.processes import lifetime
session = bool(int(sys.argv[1]))
child, pipe = lifetime.start_with_pipe(
    ["sh", "-c", "kill -STOP $$"], stdout=subprocess.DEVNULL, start_new_session=session
)
os.waitpid(child.pid, os.WUNTRACED)
print(child.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
# A thread that is gone has started them; they are asked for something after that.
COMPILES_FROM_A_THREAD = """
import os, signal, sys, threading, time
from buddy.compiler.codegen.objects import workers
workers.cores = lambda: 3
thread = threading.Thread(target=workers.start_workers)
thread.start()
thread.join()
while os.path.exists(f"/proc/self/task/{thread.native_id}"):
    time.sleep(0.01)
found = workers.running_workers()
forked = os.fork()
if not forked:
    signal.pause()
    os._exit(0)
for worker in found:
    os.kill(worker.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, worker.pid, os.WSTOPPED | os.WNOWAIT)
print(forked, *(worker.pid for worker in found if worker.alive), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
PROGRAM = """
import torch

model, example_inputs = lambda a, b: a @ b - a, (torch.ones(96, 96), torch.ones(96, 96))
"""
# A pass of a process that searches: it says which one, and never ends.
HOLDS = """
import os
import time
from dataclasses import dataclass
from pathlib import Path

from buddy.compiler.passes.base import MlirPass, register


@register
@dataclass(frozen=True)
class Holds(MlirPass):
    name = "holds"
    summary = "says that it has begun, and never ends"

    def run(self, root, context):
        said = Path(__file__).with_suffix(f".{os.getpid()}")
        said.touch()
        time.sleep(3600)
"""


def bisection(request: int, recipe: Recipe) -> Bisect:
    return Bisect(request, recipe, Criterion(step_seconds=3600.0, seconds=3600.0))


def tuning(request: int, recipe: Recipe) -> Tune:
    vary = (Variation("contractions-to-kernels.rows", (2, 4)),)
    return Tune(request, recipe, variations=vary, seconds=3600.0, recipe_seconds=3600.0, jobs=2)


async def opened(bench: Bench, folder: Path) -> Recipe:
    """A recipe with the pass that never ends, of a program that has been opened."""
    program, plugin = folder / "program.py", folder / "holds.py"
    program.write_text(PROGRAM)
    plugin.write_text(HOLDS)
    request = bench.client.new_request_id()
    captured = await bench.ask(Open(request, str(program), plugins=(PluginFile(str(plugin)),)))
    recipe = await bench.recipe(program)
    return msgspec.structs.replace(recipe, plugins=captured.plugins, steps=(*recipe.steps, PassStep("holds")))


@contextlib.contextmanager
def killed_at_the_end(pids: Iterable[int]) -> Iterator[None]:
    """Whatever comes of the test, none of them is left."""
    try:
        yield
    finally:
        for pid in filter(lives, pids):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@linux
@pytest.mark.parametrize("session", ["0", "1"])
async def test_a_child_that_was_stopped_at_once_ends_with_its_parent(session: str) -> None:
    said = subprocess.run([sys.executable, "-c", STARTS_ONE, session], capture_output=True, text=True)
    child = int(said.stdout)
    assert await gone(child), lives(child)


@linux
async def test_stopped_processes_that_make_objects_end_with_the_process_whose_thread_started_them() -> None:
    """A fork of that process, which lives on, does not keep them."""
    with subprocess.Popen([sys.executable, "-c", COMPILES_FROM_A_THREAD], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        fork, *making = map(int, process.stdout.readline().split())
    with killed_at_the_end((fork, *making)):
        assert len(making) == 2, "they outlived the thread"
        assert await gone(*making)
        assert lives(fork)


@linux
@pytest.mark.slow
@pytest.mark.parametrize("search", [bisection, tuning])
async def test_stopped_processes_that_search_end_with_an_engine_that_is_killed(
    tmp_path: Path, search: Callable[[int, Recipe], Bisect | Tune]
) -> None:
    """Those that search, and what these have forked for a recipe."""
    client = EngineClient()
    engine = (await client.start()).pid
    bench = Bench(client)
    recipe = await opened(bench, tmp_path)
    client.send(search(client.new_request_id(), recipe))
    while not (trying := {int(path.suffix[1:]) for path in tmp_path.glob("holds.[0-9]*")}):
        await asyncio.sleep(0.05)
    searching = forked_from_host(engine)
    assert trying < set(searching)
    with killed_at_the_end(searching):
        for pid in searching:
            os.kill(pid, signal.SIGSTOP)
        os.kill(engine, signal.SIGKILL)
        assert await gone(engine, *searching)
    await client.close()


async def test_a_worker_that_does_not_come_up_is_replaced_when_it_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "says_nothing.py").write_text("import time\ntime.sleep(600)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    listener = WorkerListener(lambda state: None, lambda *printed: None, lambda: False)
    silent = EngineWorker("silent", "says_nothing:serve", CompilerMessage, listener)
    silent.start()
    monkeypatch.setattr(worker, "START_SECONDS", 600.0)
    silent.replace_if_unstarted()
    await asyncio.sleep(0.5)
    assert silent.generation == 1, "it has not had its time"
    monkeypatch.setattr(worker, "START_SECONDS", 0.0)
    silent.replace_if_unstarted()
    while silent.generation == 1:
        await asyncio.sleep(0.05)
    await silent.close()
