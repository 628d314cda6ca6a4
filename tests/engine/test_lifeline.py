"""Processes that do not get as far as their first line: they end with their engine, or when they are given up."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest
from engine_processes import gone, lives

from buddy.compiler.engine import worker
from buddy.compiler.engine.messages import CompilerMessage
from buddy.compiler.engine.worker import Listener, Worker

STARTS_ONE = """
import os, signal, subprocess
from buddy.compiler.engine.lifeline import from_its_first_moment
child = subprocess.Popen(["sh", "-c", "kill -STOP $$"], stdout=subprocess.DEVNULL, preexec_fn=from_its_first_moment())
os.waitpid(child.pid, os.WUNTRACED)
print(child.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a child with its parent")
async def test_a_child_that_was_stopped_at_once_ends_with_its_parent() -> None:
    said = subprocess.run([sys.executable, "-c", STARTS_ONE], capture_output=True, text=True)
    child = int(said.stdout)
    assert await gone(child), lives(child)


async def test_a_worker_that_does_not_come_up_is_replaced_when_it_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "says_nothing.py").write_text("import time\ntime.sleep(600)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    listener = Listener(lambda state: None, lambda *printed: None, lambda: False)
    silent = Worker("silent", "says_nothing", CompilerMessage, listener)
    silent.start()
    monkeypatch.setattr(worker, "LATE_START", 600.0)
    silent.give_up_start()
    await asyncio.sleep(0.5)
    assert silent.life == 1, "it has not had its time"
    monkeypatch.setattr(worker, "LATE_START", 0.0)
    silent.give_up_start()
    while silent.life == 1:
        await asyncio.sleep(0.05)
    await silent.close()
