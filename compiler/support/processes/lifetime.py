"""Makes processes end with their parents, limits their memory, and describes how they ended.

A faulty pass may create gigabytes of IR, and a faulty kernel may request even more memory. A process at its limit
cannot allocate memory, which raises an error, or crashes a worker, which is replaced. Without a limit the machine
stalls until the kernel kills a process.
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
import weakref
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

ENVIRONMENT_VARIABLE = "BUDDY_MEMORY"
# The default limit as a fraction of the machine's memory: the workbench, the terminal and the system need the rest.
_DEFAULT_SHARE = 0.9
# The lowest limit with which torch and MLIR start, in bytes. A lower limit that the user sets is ignored.
MIN_LIMIT_BYTES = 1 << 30
_CGROUP_MOUNT, _OWN_CGROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
# Scores from -1000 to 1000 (proc(5)): if memory runs out, the kernel kills the process with the highest one. So workers
# are killed before the engine, and the engine before the workbench.
ENGINE_OOM_SCORE, WORKER_OOM_SCORE = 300, 600

log = logging.getLogger("buddy.engine")


# ---- limits of memory ------------------------------------------------------------------------------------------------


def limit_memory() -> None:
    """Limits the memory of this process and its children to `BUDDY_MEMORY` in GiB, or to a share of the machine's.

    If `BUDDY_MEMORY` is 0, sets no limit. `RLIMIT_DATA` counts private writable memory, not files that are mapped for
    reading, nor reservations.
    """
    raise_oom_score(ENGINE_OOM_SCORE)
    limit = memory_limit(os.environ.get(ENVIRONMENT_VARIABLE, ""), machine_memory())
    if limit:
        soft_limit, hard_limit = resource.getrlimit(resource.RLIMIT_DATA)
        # Keeps a lower limit, such as a batch system's. `RLIM_INFINITY` is -1.
        lower_limits = [other for other in (soft_limit, hard_limit) if 0 <= other < limit]
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_DATA, (min(lower_limits, default=limit), hard_limit))


def raise_oom_score(score: int) -> None:
    """Makes the kernel kill this process before those with a lower score if memory runs out (Linux only).

    Keeps a higher score, such as a container's.
    """
    score_file = Path("/proc/self/oom_score_adj")
    with contextlib.suppress(OSError, ValueError):
        if int(score_file.read_text()) < score:
            score_file.write_text(str(score))


def memory_limit(setting: str, machine_bytes: int) -> int:
    """Returns the memory limit in bytes, 0 for none.

    `setting` is the user's limit in GiB, or ""; without a valid one, the limit is a share of `machine_bytes`.
    """
    if setting:
        try:
            gibibytes = float(setting)
        except ValueError:
            gibibytes = math.nan
        if gibibytes == 0:
            return 0
        if math.isfinite(gibibytes) and gibibytes * 2**30 >= MIN_LIMIT_BYTES:
            return int(gibibytes * 2**30)
        minimum = MIN_LIMIT_BYTES / 2**30
        log.error(
            "%s=%s is ignored: set it in GiB, at least %g, or 0 for no limit", ENVIRONMENT_VARIABLE, setting, minimum
        )
    share = machine_bytes * _DEFAULT_SHARE
    return int(share) if share >= MIN_LIMIT_BYTES else 0


def machine_memory() -> int:
    """Returns the bytes of memory of this machine, or the limit of its container or batch job; 0 if unknown."""
    try:
        physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (OSError, ValueError):
        return 0
    return max(min([physical, *group_limits(_OWN_CGROUPS, _CGROUP_MOUNT)]), 0)


def group_limits(own_groups: Path, mount: Path) -> Iterator[int]:
    """Yields the memory limits in bytes of this process's control groups and of their parents.

    The file `own_groups` lists the groups (cgroups(7), versions 1 and 2); their files are below `mount`. In a
    container, the container's group is at `mount` itself, whatever path the file lists.
    """
    lines: list[str] = []
    with contextlib.suppress(OSError):
        lines = own_groups.read_text().splitlines()
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers not in ("", "memory"):
            continue
        root, name = mount / controllers, "memory.limit_in_bytes" if controllers else "memory.max"
        group = root / path.lstrip("/")
        for folder in (group, *group.parents):
            with contextlib.suppress(OSError, ValueError):
                yield int((folder / name).read_text())
            if folder == root:
                break


# ---- processes that end with another one -----------------------------------------------------------------------------

# From <linux/prctl.h>: sets the signal that a process gets when its parent ends.
_PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int) -> None:
    """Makes the kernel kill this process when its parent, the process `parent`, ends (Linux only)."""
    if sys.platform != "linux":
        return
    _prctl()(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent ended before the call
        os._exit(1)


@cache
def _prctl() -> Any:
    return ctypes.CDLL(None, use_errno=True).prctl if sys.platform == "linux" else None


def die_with_socket(fd: int, group: bool = False) -> None:
    """Makes the kernel kill this process, or its group, when the other end of `fd` is closed (Linux only).

    This works for a stopped process too, and whichever process has forked it. `fd` is a socket, or the reading end of a
    pipe, over which no data is sent; `fd` stays open. Children inherit `fd`, but the kernel kills only those in the
    group.
    """
    _kill_at_end_of(fd, -os.getpgrp() if group else os.getpid())
    poll = select.poll()
    poll.register(fd, 0)
    if poll.poll(0):  # the other end was closed before the call
        os._exit(1)


def _kill_at_end_of(fd: int, owner: int) -> None:
    """Makes the kernel kill `owner`, a process or the negative of a group, when the other end of `fd` is closed.

    The kernel sends the signal `F_SETSIG` to the owner whenever `fd` becomes readable or is closed (fcntl(2)).
    `owner` must have the file description of `fd` open; another process may close `fd`.
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            fcntl.fcntl(fd, fcntl.F_SETOWN, owner)
            fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGKILL)
            fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_ASYNC)


class LifetimePipe:
    """A pipe without data: the kernel kills a child when this process ends or calls `close` (Linux only).

    The child only inherits `child_end`, so it also ends if it is stopped from the start. This process calls `own` once
    the child exists. No Python code runs between fork and exec, because such code is not safe in a process with
    threads. A fork of this process closes its copy of the other end, which would keep the child alive.
    """

    def __init__(self) -> None:
        self.child_end, end = os.pipe()
        self._end = os.fdopen(end, "wb", buffering=0)
        _pipes.add(self)

    def own(self, pid: int, group: bool = False) -> None:
        """Ties the life of child `pid`, or of the process group that it leads, to this pipe."""
        _kill_at_end_of(self.child_end, -pid if group else pid)
        self.close_child_end()

    def close_child_end(self) -> None:
        """Closes the end that the child has inherited, in this process only."""
        end, self.child_end = self.child_end, -1
        if end >= 0:
            os.close(end)

    def close(self) -> None:
        """Kills the child if it runs."""
        self.close_child_end()
        self.close_end()

    def close_end(self) -> None:
        """Closes this process's end only, in a fork."""
        self._end.close()


_pipes: weakref.WeakSet[LifetimePipe] = weakref.WeakSet()


def _close_in_fork() -> None:
    for pipe in list(_pipes):
        pipe.close_end()
    _pipes.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_in_fork)


# ---- starting and killing --------------------------------------------------------------------------------------------


def start_with_pipe(
    command: Sequence[str], keep: Sequence[int] = (), **options: Any
) -> tuple[subprocess.Popen[Any], LifetimePipe]:
    """Starts a process that the kernel kills when this process ends, whichever thread started it.

    Returns the process, and a pipe: closing the pipe also kills the process. If `options`, those of `Popen`, start a
    session, the whole process group is killed. The process inherits the file descriptors `keep`. Raises `OSError`.
    """
    pipe = LifetimePipe()
    try:
        process: subprocess.Popen[Any] = subprocess.Popen(command, pass_fds=(pipe.child_end, *keep), **options)
    except BaseException:
        pipe.close()
        raise
    pipe.own(process.pid, group=options.get("start_new_session", False))
    return process, pipe


def run_owned(
    command: Sequence[str], timeout: float, text: bytes | str = "", **options: Any
) -> subprocess.CompletedProcess[Any]:
    """Runs `command` with `text` as input and waits for its end; the kernel kills it if this process is killed.

    The output is of the type of `text`. Raises the exceptions of `subprocess.run`.
    """
    pipe = subprocess.PIPE
    if isinstance(text, str):
        options = {"encoding": "utf-8", "errors": "replace", **options}
    process, lifetime = start_with_pipe(command, stdin=pipe, stdout=pipe, stderr=pipe, **options)
    try:
        output, errors = process.communicate(text, timeout)
    except BaseException:
        lifetime.close()
        process.kill()
        process.communicate()
        raise
    finally:
        lifetime.close()
    return subprocess.CompletedProcess(command, process.returncode, output, errors)


@contextlib.contextmanager
def start_owned(command: Sequence[str], output: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Runs `command` with its output in a file, and kills its process at the end of the `with` block.

    The kernel kills the process if this process ends.
    """
    with output.open("wb") as stream:
        process, lifetime = start_with_pipe(command, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream)
    try:
        yield process
    finally:
        lifetime.close()
        if process.poll() is None:
            process.kill()
            process.wait()


def kill_group_of(pid: int) -> None:
    """Kills the process group that `pid` belongs to, unless this process belongs to it."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if (group := os.getpgid(pid)) != os.getpgrp():
            os.killpg(group, signal.SIGKILL)


def kill_group(pid: int) -> None:
    """Kills the process group that `pid` leads, including the processes that a script has started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def peer_pid(connection: socket.socket) -> int:
    """Returns the id of the process at the other end of a Unix socket; 0 if it is unknown or another user's."""
    if sys.platform != "linux":
        return 0
    credentials_format = "3i"  # the ids of process, user and group
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize(credentials_format))
    pid, user, _ = struct.unpack(credentials_format, data)
    return int(pid) if user == os.getuid() else 0


def describe_exit(status: int) -> str:
    """Returns how a process ended, in words; `status` is its exit code, or the negative number of a signal."""
    if status >= 0:
        return f"exit code {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    return name + _SIGNAL_MEANINGS.get(name, "")


_SIGNAL_MEANINGS = {
    "SIGSEGV": ", an access to invalid memory",
    "SIGABRT": ", a failed assertion or a fatal error of a library",
    "SIGILL": ", an instruction that this CPU does not support",
    "SIGFPE": ", an arithmetic error such as an integer division by zero",
    "SIGBUS": ", an access to misaligned or missing memory",
    "SIGKILL": ", killed from outside, perhaps because memory ran out",
}
