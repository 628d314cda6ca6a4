"""The faults: signals, exhausted memory and disks, torn streams, passes and kernels that never end.

Faults are injected from outside, through the kernel; the product has no hooks for them.
"""

from __future__ import annotations

import contextlib
import os
import random
import resource
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from buddy.compiler.protocol.recipe import PassStep
from tests.reliability.processes import Process, below

PLUGIN = Path(__file__).with_name("broken_passes.py")
# Bytes that a process at its memory limit may still allocate.
_LITTLE = 1 << 20
# A frame length larger than the data that follows; and bytes that are not a frame. There are as many of these as such a
# frame has: if half of one is in the stream from an earlier fault, fewer bytes would be taken for its rest, without any
# effect. This many complete it, and the remainder is not a frame.
_LENGTH = 5000
LONG_FRAME = _LENGTH.to_bytes(4, "little") + b"\x83\xa4type\xa9StageDone"
NO_FRAME = b"\xff" * _LENGTH

SIGNALS = {"kill": signal.SIGKILL, "segv": signal.SIGSEGV, "abort": signal.SIGABRT, "stop": signal.SIGSTOP}
STREAMS = ("half a frame", "garbage", "half a frame, then kill")
PASSES = ("broken-never-ends", "broken-devours", "broken-aborts", "broken-endless-kernel", "broken-wild-kernel")
KINDS = (*SIGNALS, "memory", "disk", "disk of the workbench", "closed pipe", *STREAMS, *PASSES)


@dataclass
class Struck:
    """An active fault: its kind, its place, the user's step, and how a user would end it."""

    kind: str
    role: str
    step: str
    lift: Callable[[], None] = lambda: None

    def __str__(self) -> str:
        return f"{self.kind} of the {self.role} while {self.step}"


def strike(kind: str, bench: Any, processes: Sequence[Process], chance: random.Random, step: str) -> Struck | None:
    """Injects a fault into a session; `None` if there is no target."""
    if kind in PASSES:
        return _edit(kind, bench, step)
    if kind == "disk of the workbench":
        return Struck(kind, "workbench", step, _limited(os.getpid(), resource.RLIMIT_FSIZE, 0))
    if kind == "closed pipe":
        return _close(bench, chance, step)
    if not processes:
        return None
    process = chance.choice(processes)
    try:
        if kind in SIGNALS:
            os.kill(process.pid, SIGNALS[kind])
            return Struck(kind, process.role, step)
        if kind in STREAMS:
            return _tear(kind, bench, process, chance, step)
        full_disk = kind == "disk"
        what = resource.RLIMIT_FSIZE if full_disk else resource.RLIMIT_DATA
        lift = _limited(process.pid, what, 0 if full_disk else _data(process.pid) + _LITTLE)
        return Struck(kind, process.role, step, lift)
    except (OSError, ValueError, IndexError):
        return None  # it has exited in the meantime


def _edit(kind: str, bench: Any, step: str) -> Struck | None:
    """Adds a broken pass at the end of the pipeline, like an edit by the user."""
    from msgspec.structs import replace

    recipe = bench.workspace.recipe
    if not bench.workspace.is_loaded or not recipe.steps:
        return None
    added = PassStep(kind, phase=recipe.steps[-1].phase)
    bench.context.edits.edit(replace(recipe, steps=(*recipe.steps, added)), f"with {kind}")
    return Struck(kind, "compiler" if "kernel" not in kind else "runner", step)


def _limited(pid: int, what: int, soft: int) -> Callable[[], None]:
    """Sets a resource limit of a process; the returned function removes it, also from its new children."""
    before = resource.prlimit(pid, what)
    resource.prlimit(pid, what, (soft, before[1]))

    def lift() -> None:
        for each in (pid, *below(pid)):
            with contextlib.suppress(OSError):
                resource.prlimit(each, what, before)

    return lift


def _data(pid: int) -> int:
    """Bytes of private writable memory of a process. Raises `IndexError` for one that has exited."""
    lines = [each for each in Path(f"/proc/{pid}/status").read_text().splitlines() if each.startswith("VmData")]
    return int(lines[0].split()[1]) << 10


def _close(bench: Any, chance: random.Random, step: str) -> Struck | None:
    """Closes the workbench's end of one of the two pipes to its engine."""
    number = chance.choice((0, 1))
    if (pipe := _pipe(bench, number)) is None:
        return None
    pipe.close()
    return Struck("closed pipe", "engine", f"{step} ({('stdin', 'stdout')[number]})")


def _tear(kind: str, bench: Any, process: Process, chance: random.Random, step: str) -> Struck | None:
    """Writes bytes that are not a frame, or half of one, into a stream, between those of its owner."""
    data = NO_FRAME if kind == "garbage" else LONG_FRAME
    inward = chance.random() < 0.5 and kind != "half a frame, then kill"
    if process.role == "engine":
        way = _to_engine(bench, data) if inward else _from_engine(bench, data)
    elif process.role in ("host", "compiler"):
        # `pipes READ WRITE`: the file descriptors of its ends.
        end = process.words[process.words.index("pipes") + (1 if inward else 2)]
        way = _write(f"/proc/{process.pid}/fd/{end}", data)
    else:
        return None
    if kind == "half a frame, then kill":
        os.kill(process.pid, signal.SIGKILL)
    return Struck(f"{kind} {'to' if inward else 'from'}", process.role, step) if way else None


def _to_engine(bench: Any, data: bytes) -> bool:
    if (pipe := _pipe(bench, 0)) is not None:
        pipe.write(data)
    return pipe is not None


def _from_engine(bench: Any, data: bytes) -> bool:
    pipe = _pipe(bench, 1)
    return pipe is not None and _write(f"/proc/{os.getpid()}/fd/{pipe.get_extra_info('pipe').fileno()}", data)


def _pipe(bench: Any, number: int) -> Any:
    """The workbench's end of the engine's stdin (0) or stdout (1), `None` if there is no engine, or it is exiting."""
    transport = getattr(bench.session._client, "_transport", None)
    process = getattr(getattr(transport, "_connection", transport), "_process", None)
    return process._transport.get_pipe_transport(number) if process is not None else None


def _write(path: str, data: bytes) -> bool:
    """Writes into a pipe of another process; returns whether there was room."""
    try:
        fd = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        return os.write(fd, data) == len(data)
    except OSError:
        return False
    finally:
        os.close(fd)
