"""Tying the life of a process to its parent's, and how processes end, in words."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from functools import partial

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent `parent` ends, where the kernel can (Linux)."""
    if sys.platform != "linux":
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def run_below(command: Sequence[str], timeout: float, text: str = "") -> subprocess.CompletedProcess[str]:
    """Run `command` with `text` to read, and wait for its end; the kernel ends it when this process is killed.

    Raises what `subprocess.run` does.
    """
    return subprocess.run(
        command, input=text, capture_output=True, timeout=timeout, encoding="utf-8", errors="replace", check=False,
        preexec_fn=partial(die_with_parent, os.getpid()),
    )  # fmt: skip


def kill_group(pid: int) -> None:
    """Kill the process group that `pid` leads, with whatever a script has started in it."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def describe_exit(status: int) -> str:
    """How a process ended, from `os.waitstatus_to_exitcode`: negative for a signal."""
    if status >= 0:
        return f"exit code {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    return name + _MEANING.get(name, "")


_MEANING = {
    "SIGSEGV": ", an access to memory that is not there",
    "SIGABRT": ", a failed assertion or a fatal error of a library",
    "SIGILL": ", an instruction that this CPU does not have",
    "SIGFPE": ", an arithmetic fault such as an integer division by zero",
    "SIGBUS": ", a misaligned or missing piece of memory",
    "SIGKILL": ", killed from outside, perhaps because memory ran out",
}
