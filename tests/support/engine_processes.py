"""Finds the processes of an engine in Linux's process table."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path


def children(pid: int) -> list[int]:
    return [child for child in map(int, filter(str.isdigit, os.listdir("/proc"))) if _parent(child) == pid]


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[1])
    except OSError:
        return 0


def command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def forked_from_host(engine: int) -> list[int]:
    """Returns the processes that search or try recipes for an engine, and their children.

    They have the command line of its host, and another parent than the engine.
    """
    found = []
    for pid in sorted(map(int, filter(str.isdigit, os.listdir("/proc")))):
        words = command(pid).split()
        if "buddy.compiler.engine.host" in words and str(engine) in words and _parent(pid) not in (0, engine):
            found.append(pid)
    return found


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


async def gone(*pids: int, within: float = 240.0) -> bool:
    """Returns whether all of `pids` have exited in time."""
    deadline = time.monotonic() + within
    while any(map(lives, pids)):
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(0.02)
    return True


@contextlib.contextmanager
def stopped(pid: int) -> Iterator[list[int]]:
    """Stops a process and all below it by a signal. None of them is left after the test."""
    pids = [pid, *everything_below(pid)]
    os.kill(pid, signal.SIGSTOP)
    try:
        yield pids
    finally:
        for each in filter(lives, pids):
            with contextlib.suppress(ProcessLookupError):
                os.kill(each, signal.SIGKILL)


def everything_below(pid: int) -> list[int]:
    found = children(pid)
    return found + [grandchild for child in found for grandchild in everything_below(child)]
