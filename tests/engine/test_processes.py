"""The three ways to another process: one-shot calls, workers and forks; what they say, and how they end."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from buddy.compiler.protocol.worker_messages import Activity, FailureReply
from buddy.compiler.support.processes.channel import Channel
from buddy.compiler.support.processes.forks import ForkedWorker
from buddy.compiler.support.processes.interpreters import (
    BlockingWorker,
    CallFailed,
    TookTooLong,
    call_and_wait,
    call_in_process,
)
from tests.support.engine_processes import lives

# What the other interpreters import.
MODULE = """
import os
import subprocess
import sys

from buddy.compiler.protocol.worker_messages import Activity
from buddy.compiler.support.processes.channel import Channel, serves


def lengths(words: tuple[str, ...]) -> list[int]:
    print("printed by Python")
    os.write(1, b"printed by C\\n")
    return [len(word) for word in words]


def dies() -> None:
    os.write(2, b"LLVM ERROR: no such thing\\n")
    os.abort()


def goes_on() -> None:
    child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
    with open(os.environ["PIDS"], "w") as file:
        file.write(f"{os.getpid()} {child.pid} ")
    child.wait()


@serves(Activity)
def echo(channel: Channel) -> None:
    child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
    channel.send(Activity(f"{os.getpid()} {child.pid}"))
    while (message := channel.receive()) is not None:
        if message.activity == "die":
            os.abort()
        if message.activity != "silence":
            channel.send(message)
"""
WORDS = ("one", "three")
OWNER = """
import os, signal, threading
from buddy.compiler.protocol.worker_messages import Activity
from buddy.compiler.support.processes.interpreters import BlockingWorker

started = []
thread = threading.Thread(target=lambda: started.append(BlockingWorker("others:echo", Activity)))
thread.start()
thread.join()
print(started[0].receive().activity, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    # In the current folder, by the name of a module of Python's that they import.
    (tmp_path / "random.py").write_text("raise SystemExit('a file of the current folder was imported')")
    modules = tmp_path / "modules"
    modules.mkdir()
    (modules / "others.py").write_text(MODULE)
    monkeypatch.setenv("PYTHONPATH", str(modules))
    monkeypatch.setenv("PIDS", str(tmp_path / "pids"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 240
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def on_loop(function: str, question: object, answer: object, timeout: float) -> object:
    return asyncio.run(call_in_process(function, question, answer, timeout))  # type: ignore[arg-type]


both = pytest.mark.parametrize("call", [call_and_wait, on_loop])


@both
def test_a_call_returns_the_answer_whatever_the_function_prints(call: Callable[..., object], others: Path) -> None:
    assert call("others:lengths", WORDS, list[int], 240) == [3, 5]


@both
def test_a_crash_is_told_with_what_was_printed_before_it(call: Callable[..., object], others: Path) -> None:
    with pytest.raises(CallFailed) as raised:
        call("others:dies", None, None, 240)
    assert raised.value.how.startswith("SIGABRT")
    assert raised.value.printed == "LLVM ERROR: no such thing"


@both
def test_an_answer_of_another_type_is_a_failure(call: Callable[..., object], others: Path) -> None:
    with pytest.raises(CallFailed, match="not valid"):
        call("others:lengths", WORDS, list[str], 240)


def test_a_call_that_is_late_ends_with_all_that_it_started(others: Path) -> None:
    pids = others / "pids"

    async def late() -> None:
        asked = asyncio.ensure_future(call_in_process("others:goes_on", None, type(None), 240))
        while not (pids.exists() and pids.read_text().endswith(" ")):
            await asyncio.sleep(0.02)
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)

    asyncio.run(late())
    until(lambda: not any(lives(int(pid)) for pid in pids.read_text().split()))
    with pytest.raises(TookTooLong, match=r"no answer within 0\.1 s"):
        on_loop("others:goes_on", None, type(None), 0.1)
    with pytest.raises(TookTooLong):
        call_and_wait("others:goes_on", None, type(None), 0.1)


def test_a_worker_answers_is_late_and_crashes(others: Path) -> None:
    worker = BlockingWorker("others:echo", Activity)
    pids = list(map(int, worker.receive(240).activity.split()))
    assert pids[0] == worker.pid
    worker.send(Activity("hello"))
    assert worker.receive(240).activity == "hello"
    worker.send(Activity("silence"))
    with pytest.raises(TimeoutError, match=r"silent for 0\.1 s"):
        worker.receive(0.1)
    worker.send(Activity("die"))
    assert worker.receive(240) is None
    assert worker.wait() == -signal.SIGABRT
    os.kill(pids[1], signal.SIGKILL)
    with pytest.raises(BrokenPipeError):
        worker.send(Activity("hello"))
    assert worker.end() == -signal.SIGABRT


def test_a_worker_ends_with_its_pipes_and_is_not_a_forks(others: Path) -> None:
    worker = BlockingWorker("others:echo", Activity)
    pids = list(map(int, worker.receive(240).activity.split()))
    if not (fork := os.fork()):
        os._exit(worker.alive)
    assert os.waitpid(fork, 0)[1] == 0
    worker.send(Activity("hello"))
    assert worker.receive(240).activity == "hello"
    assert worker.end(timeout=240) == 0
    until(lambda: not lives(pids[0]))
    os.kill(pids[1], signal.SIGKILL)


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel ends processes with another one only on Linux")
def test_a_worker_and_what_it_started_end_with_the_process_not_with_the_thread(others: Path) -> None:
    owner = subprocess.Popen([sys.executable, "-P", "-c", OWNER], stdout=subprocess.PIPE, text=True)
    told, _ = owner.communicate(timeout=240)
    pids = [int(pid) for pid in told.split()]
    assert len(pids) == 2
    until(lambda: not any(map(lives, pids)))


def test_a_fork_answers_is_late_and_crashes() -> None:
    told = "from this process"

    def work(channel: Channel) -> None:
        while (message := channel.receive()) is not None:
            if message.activity == "raise":
                raise ValueError(message.activity)
            if message.activity == "die":
                os.write(2, b"Assertion `true' failed\nand more\n")
                os.abort()
            if message.activity != "silence":
                channel.send(Activity(told))

    def fork() -> ForkedWorker:
        return ForkedWorker(work, Activity | FailureReply, Activity)

    one = fork()
    one.send(Activity("hello"))
    assert one.receive(240).activity == told
    one.send(Activity("silence"))
    with pytest.raises(TimeoutError):
        one.receive(0.1)
    one.kill()
    assert not one.alive
    assert one.receive(240) is None
    assert one.wait_for_cause().startswith("SIGKILL")
    one.end()
    for word, cause in (("raise", "exit code 1: ValueError: raise"), ("die", "SIGABRT.*: Assertion `true' failed")):
        one = fork()
        one.send(Activity(word))
        assert one.receive(240) is None
        assert re.fullmatch(cause, one.wait_for_cause())
        one.end()
