"""Measures the load of the machine during timings, which shows how far other processes disturb them.

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

_PROC_STAT, _CPUINFO, _CPU_DIR = Path("/proc/stat"), Path("/proc/cpuinfo"), Path("/sys/devices/system/cpu")
_TASK_DIR = Path("/proc/self/task")
# The columns of `/proc/stat` (proc_stat(5)) in which a core is busy here or with another virtual machine (steal): all
# but idle and iowait. Those of guests are left out, because the user columns contain them.
_BUSY_COLUMNS = (0, 1, 2, 5, 6, 7)
# The minimum interval for a measurement of other processes. The kernel rounds the times of each core to a hundredth of
# a second: over this interval, the error of a few cores stays below a tenth of a core.
_MIN_SECONDS = 0.5


class LoadMeter:
    """Measures the load from its creation on.

    The load of other processes is only measured if the timed work runs in this one (`in_this_process`).
    """

    def __init__(self, in_this_process: bool = True) -> None:
        self._in_this_process = in_this_process
        self._start_cpu_times, self._start_scheduler_times = self._read_cpu_times(), _scheduler_times()

    def load(self) -> MachineLoad:
        """Returns the load since the creation of this object, with the current load average and clock rate."""
        load_average = os.getloadavg()[0] if hasattr(os, "getloadavg") else -1.0
        return MachineLoad(
            round(load_average, 2),
            round(self._busy_cores_of_others(), 2),
            cores(),
            round(_megahertz()),
            round(self._waiting_fraction(), 3),
        )

    def _busy_cores_of_others(self) -> float:
        """Returns the mean number of cores that other processes have used since the start; -1 if it is unknown."""
        (wall, busy, own), (start_wall, start_busy, start_own) = self._read_cpu_times(), self._start_cpu_times
        seconds = wall - start_wall
        if not self._in_this_process or busy is None or start_busy is None or seconds < _MIN_SECONDS:
            return -1.0
        busy_by_others = (busy - start_busy) - (own - start_own)
        return min(max(0.0, busy_by_others / seconds), float(os.cpu_count() or 1))

    def _waiting_fraction(self) -> float:
        """Returns the fraction (0..1) of the runnable time of this process's threads in which they waited for a core.

        Returns -1 if it is unknown. The kernel counts nanoseconds, so the interval may be short.
        """
        (ran, waited), (start_ran, start_waited) = _scheduler_times(), self._start_scheduler_times
        runnable = ran - start_ran + waited - start_waited
        if runnable <= 0 or not start_ran:
            return -1.0
        # A thread that has ended since the start counts only in the start times, so the ratio may leave 0..1.
        return min(max(0.0, (waited - start_waited) / runnable), 1.0)

    def _read_cpu_times(self) -> tuple[float, float | None, float]:
        """Returns, in seconds, the wall time, the busy time of all cores, and the CPU time of this process.

        The last one includes that of children that have been waited for.
        """
        times = os.times()
        own_seconds = times.user + times.system + times.children_user + times.children_system
        return time.monotonic(), _busy_seconds(), own_seconds


def _busy_seconds() -> float | None:
    """Returns the seconds that all cores have been busy since boot; `None` if the system does not report them."""
    try:
        first_line = _PROC_STAT.read_text().partition("\n")[0]  # the sum over all cores: "cpu", then the columns
        times = [int(column) for column in first_line.split()[1:]]
        return sum(times[column] for column in _BUSY_COLUMNS) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return None


def _scheduler_times() -> tuple[int, int]:
    """Returns the nanoseconds that the threads of this process have run, and have waited for a core; 0 if unknown.

    They are the first two numbers of `schedstat` (scheduler/sched-stats.rst in the Linux documentation).
    """
    ran = waited = 0
    for path in _TASK_DIR.glob("*/schedstat"):
        with contextlib.suppress(OSError, ValueError):
            thread_ran, thread_waited, _ = map(int, path.read_text().split())
            ran, waited = ran + thread_ran, waited + thread_waited
    return ran, waited


def main_thread_wait_seconds(pid: int) -> float:
    """Returns the seconds that the first thread of a process has waited for a core; 0 if unknown."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


def _megahertz() -> float:
    """Returns the mean clock rate of the cores; 0 if unknown."""
    frequencies = []
    for path in _CPU_DIR.glob("cpu[0-9]*/cpufreq/scaling_cur_freq"):
        with contextlib.suppress(OSError, ValueError):
            frequencies.append(int(path.read_text()) / 1e3)
    if not frequencies:
        with contextlib.suppress(OSError):
            frequencies = [
                float(text) for text in re.findall(r"^cpu MHz\s*:\s*([\d.]+)", _CPUINFO.read_text(), re.MULTILINE)
            ]
    return sum(frequencies) / len(frequencies) if frequencies else 0.0
