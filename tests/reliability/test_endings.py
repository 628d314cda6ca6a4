"""No process is left after any of the ways in which a workbench in a real terminal ends."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.support.terminal import Terminal, environment
from tests.support.engine_processes import command, everything_below, lives

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc")
ROOT = Path(__file__).resolve().parents[2]
# Time limits for a start, and an end, on a loaded machine, in seconds.
START, END = 240.0, 60.0
WORKERS = ("buddy.compiler.engine.host", "buddy.compiler.engine.compiler")
ENGINE = "buddy.compiler.engine "


class Ending:
    """A workbench in a terminal, started with `words`; `ready` once its engine has both of its workers."""

    def __init__(self, folder: Path, *words: str) -> None:
        self._folder = folder
        state = environment("256", folder) | {"BUDDY_CACHE": str(folder / "cache"), "TMPDIR": str(folder)}
        source = str(ROOT / "samples" / "arith_add.py")
        self.terminal = Terminal([sys.executable, "-m", "buddy.app.cli", "--no-mouse", *words, source], 80, 24, state)
        self.seen: set[int] = set()

    def look(self) -> None:
        """Records the current processes by the folder in their environment: a remote engine is not a child."""
        with contextlib.suppress(OSError):
            self.terminal.read(0)
        self.seen.update(everything_below(self.terminal.process.pid))
        self.seen.update(_with(self._folder))

    def ready(self) -> None:
        self.until(lambda: all(any(word in command(pid) for pid in self.seen) for word in WORKERS), START, "an engine")

    def until(self, condition: Callable[[], Any], seconds: float, what: str) -> None:
        end = time.monotonic() + seconds
        while not condition():
            self.look()
            if time.monotonic() > end:
                raise TimeoutError(f"waited {seconds:g} s for {what}: {self.terminal.text[-500:]!r}")
            time.sleep(0.05)

    def one(self, module: str) -> int:
        """The process that runs `module`."""
        return min(pid for pid in self.seen if f" {module} " in f"{command(pid)} " and lives(pid))

    def left(self) -> list[str]:
        """The recorded processes that still exist, including zombies, after the time limit for an end."""
        end = time.monotonic() + END
        while found := [pid for pid in sorted(self.seen) if self._is_there(pid)]:
            if time.monotonic() > end:
                return [f"{pid} {command(pid) or 'a zombie'}" for pid in found]
            time.sleep(0.05)
        return []

    def _is_there(self, pid: int) -> bool:
        """A zombie counts if it is a child of a process of ours, not of init."""
        if lives(pid):
            return True
        try:
            parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            return False
        return parent in self.seen

    def close(self) -> None:
        """Ends everything, whatever the result: nothing outlives the test."""
        for pid in _with(self._folder):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self.terminal.process.wait()


def _with(folder: Path) -> set[int]:
    wanted, found = f"TMPDIR={folder}".encode(), set()
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            if wanted in Path(f"/proc/{name}/environ").read_bytes().split(b"\0"):
                found.add(int(name))
        except OSError:
            continue
    return found


# ---- the endings -----------------------------------------------------------------------------------------------------


def _leave(one: Ending) -> None:
    os.write(one.terminal.master, b"qy")  # `y` answers the question that is asked while a job runs
    one.until(lambda: one.terminal.process.poll() is not None, END, "the workbench to leave")


def _cancel_and_leave(one: Ending) -> None:
    """During a run."""
    os.write(one.terminal.master, b"r")
    one.terminal.wait(0.3)
    os.write(one.terminal.master, b"\x03")
    one.look()
    _leave(one)


def _signalled(number: int) -> Callable[[Ending], None]:
    def end(one: Ending) -> None:
        os.kill(one.terminal.process.pid, number)
        one.until(lambda: one.terminal.process.poll() is not None, END, "the workbench to end")

    return end


def _killed_one_by_one(one: Ending) -> None:
    """The workbench survives the loss of its engine, and exits normally."""
    for module in (*WORKERS, ENGINE):
        os.kill(one.one(module), signal.SIGKILL)
        one.terminal.wait(0.5)
        assert one.terminal.process.poll() is None, f"the workbench ended with {module}"
        one.look()
    _leave(one)


def _closed(one: Ending) -> None:
    """Like a closed window: the other end of the terminal is closed."""
    os.close(one.terminal.master)
    one.terminal.process.wait(END)


WAYS: dict[str, Callable[[Ending], None]] = {
    "q after ctrl+c": _cancel_and_leave,
    "SIGTERM": _signalled(signal.SIGTERM),
    "SIGHUP": _signalled(signal.SIGHUP),
    "kill -9 of the workbench": _signalled(signal.SIGKILL),
    "kill -9 of its processes, one by one": _killed_one_by_one,
    "closed terminal": _closed,
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.full("each way a soak may end, in processes")
def test_nothing_is_left_after(way: str, tmp_path: Path) -> None:
    one = Ending(tmp_path)
    try:
        one.ready()
        WAYS[way](one)
        assert one.left() == []
    finally:
        one.close()
