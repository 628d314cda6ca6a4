"""The cycle counters of processors: the code that reads them, and their rates."""

from __future__ import annotations

import ctypes
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass

from buddy.compiler.support.target import host_features

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
        """Returns the mean rate since this object was created; waits until a millisecond has passed since then."""
        while (seconds := time.perf_counter() - self._clock) < 1e-3:
            pass
        return (self._read() - self._ticks) / seconds
