"""Measures the load of the machine during timings, which is needed to interpret them.

Imports neither torch nor MLIR.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from pathlib import Path

from buddy.compiler.protocol.run_report import MachineLoad
from buddy.compiler.support.target import cores

_STAT, _CPUINFO, _FREQUENCIES = Path("/proc/stat"), Path("/proc/cpuinfo"), Path("/sys/devices/system/cpu")
_THREADS = Path("/proc/self/task")
# The columns of `/proc/stat` (proc_stat(5)) that are work: not idle, nor waiting for a disk; a guest's time is in the
# user's.
_WORK = (0, 1, 2, 5, 6, 7)
# Those times are rounded to a hundredth of a second per working core: this many seconds distinguish a tenth of a core
# from none, even with two or three cores at work.
_LEAST = 0.5


class LoadMeter:
    """Measures from its creation on. With `alone`, this process does all the work that is timed."""

    def __init__(self, alone: bool = True) -> None:
        self._alone = alone
        self._began, self._turns = self._now(), _turns()

    def load(self) -> MachineLoad:
        """Returns the load of the machine until now."""
        (wall, busy, own), (then, before, mine) = self._now(), self._began
        others, seconds = -1.0, wall - then
        if self._alone and busy is not None and before is not None and seconds >= _LEAST:
            others = min(max(0.0, (busy - before - (own - mine)) / seconds), float(os.cpu_count() or 1))
        average = os.getloadavg()[0] if hasattr(os, "getloadavg") else -1.0
        return MachineLoad(round(average, 2), round(others, 2), cores(), round(_megahertz()), round(self._waiting(), 3))

    def _waiting(self) -> float:
        """Returns the fraction of its runnable time in which threads of this process waited for a core.

        The unit is nanoseconds, so the interval may be short.
        """
        (worked, waited), (before, then) = _turns(), self._turns
        wanted = worked - before + waited - then
        if wanted <= 0 or not before:
            return -1.0
        # Threads that have ended meanwhile count only in the first sum.
        return min(max(0.0, (waited - then) / wanted), 1.0)

    def _now(self) -> tuple[float, float | None, float]:
        """Returns seconds: of the clock, of work on all cores, and of this process and children it has waited for."""
        times = os.times()
        own = times.user + times.system + times.children_user + times.children_system
        return time.monotonic(), _busy(), own


def _busy() -> float | None:
    """Returns the seconds that the cores have worked since boot; `None` if the system does not report it."""
    try:
        times = [int(word) for word in _STAT.read_text().split("\n", 1)[0].split()[1:]]
        return sum(times[place] for place in _WORK) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return None


def _turns() -> tuple[int, int]:
    """Returns the nanoseconds that the threads of this process have run and waited for a core; 0 if unknown.

    They are the first two numbers of `schedstat` (sched-stats in the kernel's documentation of its scheduler).
    """
    worked = waited = 0
    for path in _THREADS.glob("*/schedstat"):
        with contextlib.suppress(OSError, ValueError):
            had, stood, _ = map(int, path.read_text().split())
            worked, waited = worked + had, waited + stood
    return worked, waited


def waited(process: int) -> float:
    """Returns the seconds that the first thread of a process has waited for a core; 0 if unknown."""
    try:
        return int(Path(f"/proc/{process}/schedstat").read_text().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


def _megahertz() -> float:
    """Returns the mean clock of the cores; 0 if unknown."""
    found = []
    for path in _FREQUENCIES.glob("cpu[0-9]*/cpufreq/scaling_cur_freq"):
        with contextlib.suppress(OSError, ValueError):
            found.append(int(path.read_text()) / 1e3)
    if not found:
        with contextlib.suppress(OSError):
            found = [float(text) for text in re.findall(r"^cpu MHz\s*:\s*([\d.]+)", _CPUINFO.read_text(), re.MULTILINE)]
    return sum(found) / len(found) if found else 0.0
