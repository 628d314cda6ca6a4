"""What timings need of the machine: its cycle counters, and its load, because other processes disturb timings.

Imports neither torch nor MLIR.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from buddy.compiler.protocol.run_report import MachineLoad
from buddy.compiler.support.target import cores, host_features

# ---- cycle counters --------------------------------------------------------------------------------------------------


# On x86, the counter may stop, or change its rate with the core's clock, unless the processor has these flags (Intel's
# Software Developer's Manual, volume 3, "Invariant TSC"; AMD's manual has the same term).
_INVARIANT_TSC = {"constant_tsc", "nonstop_tsc"}
_X86 = ("x86_64", "AMD64")
_ARM = ("aarch64", "arm64")


@dataclass(frozen=True)
class CycleCounter:
    """A kind of cycle counter; `name` is its name in messages.

    The counter is read by calling LLVM's `intrinsics` in order, of which the last one returns the count; without
    intrinsics, by the instructions in `assembly`. Both ways wait until earlier instructions have completed.
    `constant_rate` means that the rate does not depend on the clock of the core.
    """

    name: str
    intrinsics: tuple[str, ...]
    assembly: str
    constant_rate: bool

    @property
    def ir(self) -> str:
        """Returns LLVM IR that reads the counter: `i64 @buddy_ticks()`."""
        if not self.intrinsics:
            body = f'  %t = call i64 asm sideeffect "{self.assembly}", "=r,~{{memory}}"()\n'
            return f"define i64 @buddy_ticks() {{\n{body}  ret i64 %t\n}}\n"
        *before, last = self.intrinsics
        declared = "".join(f"declare void @{name}()\n" for name in before) + f"declare i64 @{last}()\n"
        calls = "".join(f"  call void @{name}()\n" for name in before) + f"  %t = call i64 @{last}()\n"
        return f"{declared}define i64 @buddy_ticks() {{\n{calls}  ret i64 %t\n}}\n"


def cycle_counter_of(machine: str, flags: set[str]) -> CycleCounter | None:
    """Returns the counter of a machine, given its `platform.machine()` and its CPU flags as in Linux, or `None`."""
    if machine in _X86:
        return CycleCounter("TSC", ("llvm.x86.sse2.lfence", "llvm.readcyclecounter"), "", flags >= _INVARIANT_TSC)
    if machine in _ARM:
        # `llvm.readcyclecounter` reads PMCCNTR_EL0, which Linux hides from user code; CNTVCT_EL0 is readable.
        return CycleCounter("cntvct_el0", (), "isb\\0Amrs $0, cntvct_el0", True)
    return None


def cycle_counter() -> CycleCounter | None:
    """Returns the counter of this machine, `None` if it has no known one."""
    return cycle_counter_of(platform.machine(), set(host_features().split()))


def make_counter_reader(counter: CycleCounter) -> Callable[[], int]:
    """Returns a function that reads `counter`, in ticks."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    llvm.initialize_native_asmparser()
    builder = llvm.JITLibraryBuilder().add_ir(counter.ir).add_current_process().export_symbol("buddy_ticks")
    library = builder.link(llvm.create_lljit_compiler(), f"buddy_counter_{time.monotonic_ns()}")
    read = ctypes.CFUNCTYPE(ctypes.c_int64)(library["buddy_ticks"])

    def ticks() -> int:
        return int(read())

    ticks.library = library  # type: ignore[attr-defined]  # the code lives as long as the function does
    return ticks


class TickRate:
    """Measures a counter's ticks per second against the system's clock."""

    def __init__(self, read: Callable[[], int]) -> None:
        self._read = read
        self._ticks, self._clock = read(), time.perf_counter()

    def per_second(self) -> float:
        """Returns the mean rate since this object was created, at least a millisecond ago: waits if necessary."""
        while (seconds := time.perf_counter() - self._clock) < 1e-3:
            pass
        return (self._read() - self._ticks) / seconds


# ---- the load of the machine -----------------------------------------------------------------------------------------


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
        """Returns, in seconds, the wall time, the busy time of all cores (`None` if unknown), and this process's time.

        The last is the CPU time, with that of children that have been waited for.
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

    Both are sums over `schedstat` of each thread (scheduler/sched-stats.rst in the Linux documentation).
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
