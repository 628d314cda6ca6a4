"""Ties the life of a process to its parent's, limits its memory, and describes how processes end.

A faulty pass may create gigabytes of IR, a faulty kernel may request more. A process at its limit fails to allocate: an
error, or a reported crash if it can be replaced. Without a limit the machine stalls until the kernel kills a process.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import logging
import math
import os
import resource
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from typing import IO, Any

ENVIRONMENT = "BUDDY_MEMORY"
# The default fraction of the machine's memory: the workbench, the terminal and the system need the rest.
_SHARE = 0.9
# The lowest limit with which torch and MLIR start, in bytes; a lower one is considered a mistake.
MIN_LIMIT = 1 << 30
_GROUPS, _OWN_GROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
# From -1000 to 1000 (proc(5)): an engine is killed before the workbench, and its workers before the engine.
ENGINE_FIRST, WORKER_FIRST = 300, 600

log = logging.getLogger("buddy.engine")


def take_limits() -> None:
    """Limits the memory of this process and of its children, by `BUDDY_MEMORY` (GiB, 0 for none) or the machine's.

    `RLIMIT_DATA` counts private writable memory, not files that are mapped for reading, nor reservations.
    """
    prefer_as_oom_victim(ENGINE_FIRST)
    cap = memory_cap(os.environ.get(ENVIRONMENT, ""), machine_memory())
    if cap:
        # Keeps a lower limit, such as a batch system's.
        there = resource.getrlimit(resource.RLIMIT_DATA)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_DATA, (min([cap, *(one for one in there if one >= 0)]), there[1]))


def prefer_as_oom_victim(score: int) -> None:
    """Makes the kernel kill this process before those with a lower score when memory runs out (Linux only).

    Keeps a higher score, such as a container's.
    """
    own = Path("/proc/self/oom_score_adj")
    with contextlib.suppress(OSError, ValueError):
        if int(own.read_text()) < score:
            own.write_text(str(score))


def memory_cap(said: str, machine: int) -> int:
    """Returns the limit in bytes for the user's value in GiB ("" for none) and the machine's memory; 0 for none."""
    if said:
        try:
            given = float(said)
        except ValueError:
            given = math.nan
        if given == 0:
            return 0
        if math.isfinite(given) and given * 2**30 >= MIN_LIMIT:
            return int(given * 2**30)
        log.error(
            "%s=%s is ignored: set it in GiB, at least %g, or 0 for no limit", ENVIRONMENT, said, MIN_LIMIT / 2**30
        )
    return int(machine * _SHARE) if machine * _SHARE >= MIN_LIMIT else 0


def machine_memory() -> int:
    """Returns the bytes of memory of this machine, container or batch job; 0 if unknown."""
    try:
        found = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (OSError, ValueError):
        return 0
    return max(min([found, *group_limits(_OWN_GROUPS, _GROUPS)]), 0)


def group_limits(own: Path, mounted: Path) -> Iterator[int]:
    """Yields the limits in bytes of the control groups that `own` lists, and of their parents (cgroups(7), v1 and v2).

    A container sees its own group as the outermost one, whatever its path outside.
    """
    lines: list[str] = []
    with contextlib.suppress(OSError):
        lines = own.read_text().splitlines()
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers not in ("", "memory"):
            continue
        folder, name = mounted / controllers, "memory.limit_in_bytes" if controllers else "memory.max"
        group = folder / path.lstrip("/")
        for place in (group, *group.parents):
            with contextlib.suppress(OSError, ValueError):
                yield int((place / name).read_text())
            if place == folder:
                break


_PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int) -> None:
    """Makes the kernel kill this process when its parent `parent` ends (Linux only)."""
    if sys.platform != "linux":
        return
    _prctl()(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def die_with_parent_from_start() -> Callable[[], None] | None:
    """Returns a `preexec_fn` for a child that dies with this process, effective before the child runs its own code.

    A child that a signal stops before it calls `die_with_parent` would outlive this process. The kernel considers the
    thread that starts a child its parent, so this returns `None` on any but the main thread.
    """
    if threading.current_thread() is not threading.main_thread():
        return None
    return with_this_thread()


def with_this_thread() -> Callable[[], None]:
    """Returns a `preexec_fn` for a child that dies with the thread that starts it and waits for it."""
    # The child of a process with threads must not load anything.
    _prctl()
    return partial(die_with_parent, os.getpid())


@cache
def _prctl() -> Any:
    return ctypes.CDLL(None, use_errno=True).prctl if sys.platform == "linux" else None


def die_with_socket(line: int, group: bool = False) -> None:
    """Makes the kernel kill this process, or its group, when the other end of `line` is closed (Linux only).

    This works for stopped processes too, and independently of which process forked it. `line` is the reading end of a
    pipe, or a socket, without data; it stays open. Children inherit it, but those outside of the group are not killed.
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            fcntl.fcntl(line, fcntl.F_SETOWN, -os.getpgrp() if group else os.getpid())
            fcntl.fcntl(line, fcntl.F_SETSIG, signal.SIGKILL)
            fcntl.fcntl(line, fcntl.F_SETFL, fcntl.fcntl(line, fcntl.F_GETFL) | os.O_ASYNC)
    poll = select.poll()
    poll.register(line, 0)
    if poll.poll(0):
        os._exit(1)


def start_with_socket(
    command: Sequence[str], keep: Sequence[int] = (), **options: Any
) -> tuple[subprocess.Popen[bytes], IO[bytes]]:
    """Starts a process that the kernel ends with this one, not with the starting thread; `options` are `Popen`'s.

    If they start a session, its group ends with it. It also ends when the second result, the writing end of a pipe, is
    closed. A fork of this process has to close its copy. It inherits the file descriptors `keep`. Raises `OSError`.
    """
    theirs, ours = os.pipe()
    line = os.fdopen(ours, "wb", buffering=0)
    try:
        ends = partial(die_with_socket, theirs, group=options.get("start_new_session", False))
        return subprocess.Popen(command, pass_fds=(theirs, *keep), preexec_fn=ends, **options), line
    except BaseException:
        line.close()
        raise
    finally:
        os.close(theirs)


def run_below(command: Sequence[str], timeout: float, text: str = "") -> subprocess.CompletedProcess[str]:
    """Runs `command` with `text` as input and waits for its end; the kernel ends it if this process is killed.

    Raises what `subprocess.run` does.
    """
    return subprocess.run(
        command, input=text, capture_output=True, timeout=timeout, encoding="utf-8", errors="replace", check=False,
        preexec_fn=with_this_thread(),
    )  # fmt: skip


@contextlib.contextmanager
def start_below(command: Sequence[str], output: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Runs `command` with its output in a file; it ends with the `with` block, or with the thread that runs that."""
    null, ends = subprocess.DEVNULL, with_this_thread()
    with output.open("wb") as stream:
        process = subprocess.Popen(command, stdin=null, stdout=stream, stderr=stream, preexec_fn=ends)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def kill_group_of(pid: int) -> None:
    """Kills the process group of `pid`, unless it is that of this process."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if (group := os.getpgid(pid)) != os.getpgrp():
            os.killpg(group, signal.SIGKILL)


def kill_group(pid: int) -> None:
    """Kills the process group that `pid` leads, including the processes that a script has started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def other_end(link: socket.socket) -> int:
    """Returns the process, of this user, that has connected to a Unix socket or listens at it; 0 if unknown."""
    if sys.platform != "linux":
        return 0
    form = "3i"
    pid, user, _ = struct.unpack(form, link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize(form)))
    return int(pid) if user == os.getuid() else 0


def describe_exit(status: int) -> str:
    """Describes how a process ended, from `os.waitstatus_to_exitcode`: negative for a signal."""
    if status >= 0:
        return f"exit code {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    return name + _MEANING.get(name, "")


_MEANING = {
    "SIGSEGV": ", an access to invalid memory",
    "SIGABRT": ", a failed assertion or a fatal error of a library",
    "SIGILL": ", an instruction that this CPU does not support",
    "SIGFPE": ", an arithmetic error such as an integer division by zero",
    "SIGBUS": ", an access to misaligned or missing memory",
    "SIGKILL": ", killed from outside, perhaps because memory ran out",
}
