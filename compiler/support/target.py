"""The target of code generation: the properties of a machine that kernels depend on, and its cycle counter."""

from __future__ import annotations

import ctypes
import os
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

# Bytes of a cache line and of the widest vector; buffers are aligned to it.
CACHE_LINE = 64
# The smallest associativity of first-level and second-level caches.
CACHE_WAYS = 8
# Cycles until the result of an addition or a fused multiply-add is ready, if one vector instruction starts per cycle.
FMA_LATENCY = 4
# Vectors per cycle from the second-level cache while other loads are in flight.
L2_VECTORS_PER_CYCLE = 0.3
# Half the peak of one core with two 512-bit fused multiply-adds per cycle.
FLOP_PER_NANOSECOND = 64
# Between the bandwidth of one core from memory and that from its second-level cache.
BYTES_PER_NANOSECOND = 16
# Loops that take at least so many nanoseconds run on several threads: a fork and join of two threads takes 3 to 5 us.
MIN_PARALLEL_NANOSECONDS = 20_000


@dataclass(frozen=True)
class Target:
    """Vector width in bytes, number of vector registers, cache sizes in bytes, and whether it converts to bfloat16."""

    name: str
    vector_bytes: int
    vector_registers: int
    l1: int = 32 << 10
    l2: int = 1 << 20
    rounds_to_bfloat16: bool = False

    def lanes(self, element_bytes: int) -> int:
        """Returns the number of elements in a vector."""
        return max(1, self.vector_bytes // element_bytes)


def from_features(features: set[str], machine: str, l1: int = 32 << 10, l2: int = 1 << 20) -> Target:
    """Returns the target for CPU flags as in Linux, a `platform.machine()`, and data cache sizes in bytes."""
    rounds = bool(features & {"avx512_bf16", "avx512bf16", "bf16"})
    if {"avx512f", "avx512vl", "avx512dq", "avx512bw"} <= features:
        return Target("avx512", 64, 32, l1, l2, rounds)
    if {"avx2", "fma"} <= features:
        return Target("avx2", 32, 16, l1, l2, rounds)
    if machine in ("aarch64", "arm64"):
        return Target("neon", 16, 32, l1, l2, rounds)
    return Target("generic", 16, 16, l1, l2, rounds)


@lru_cache(maxsize=1)
def host() -> Target:
    """Returns the target of this machine; features that cannot be detected count as absent."""
    return from_features(_cpu_flags(), platform.machine(), _cache(1, 32 << 10), _cache(2, 1 << 20))


@lru_cache(maxsize=1)
def host_features() -> str:
    """Returns all features of this CPU as one string: code compiled for it runs only where the string is equal."""
    return " ".join([platform.machine(), *sorted(_cpu_flags())])


def _cpu_flags() -> set[str]:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return _flags_from_llvm()
    for line in text.splitlines():
        if line.startswith(("flags", "Features")):
            return set(line.split(":", 1)[1].split())
    return set()


def _flags_from_llvm() -> set[str]:
    from llvmlite import binding

    return {name for name, present in binding.get_host_cpu_features().items() if present}


def _cache(level: int, default: int) -> int:
    for folder in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*"):
        try:
            kind, found = (folder / "type").read_text().strip(), int((folder / "level").read_text())
            if found == level and kind != "Instruction":
                return int((folder / "size").read_text().strip().rstrip("K")) << 10
        except (OSError, ValueError):
            continue
    return default


def cores() -> int:
    """Returns the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# On x86 the counter may stop, or change its rate with the core's clock, unless the processor has these flags (Intel's
# Software Developer's Manual, volume 3, "Invariant TSC"; AMD's manual has the same term).
_INVARIANT_TSC = {"constant_tsc", "nonstop_tsc"}
_X86 = ("x86_64", "AMD64")
_ARM = ("aarch64", "arm64")


@dataclass(frozen=True)
class CycleCounter:
    """A cycle counter; `name` is for users.

    LLVM's `intrinsics` are called in order, and the last one returns the count; if there are no intrinsics, the
    instructions in `assembly` read it. Both wait until earlier instructions have completed. `constant_rate` means that
    the rate does not depend on the clock of the core.
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


def counter_of(machine: str, flags: set[str]) -> CycleCounter | None:
    """Returns the counter of a machine, given its `platform.machine()` and its CPU flags as in Linux, or `None`."""
    if machine in _X86:
        return CycleCounter("TSC", ("llvm.x86.sse2.lfence", "llvm.readcyclecounter"), "", flags >= _INVARIANT_TSC)
    if machine in _ARM:
        # `llvm.readcyclecounter` reads PMCCNTR_EL0, which Linux hides from user code; CNTVCT_EL0 is readable.
        return CycleCounter("cntvct_el0", (), "isb\\0Amrs $0, cntvct_el0", True)
    return None


def counter() -> CycleCounter | None:
    """Returns the counter of this machine, or `None`."""
    return counter_of(platform.machine(), set(host_features().split()))


def reader(found: CycleCounter) -> Callable[[], int]:
    """Returns a function that reads the counter `found`, in ticks."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    llvm.initialize_native_asmparser()
    builder = llvm.JITLibraryBuilder().add_ir(found.ir).add_current_process().export_symbol("buddy_ticks")
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
        """Returns the mean rate since this object was created; waits until that is a millisecond ago."""
        while (passed := time.perf_counter() - self._clock) < 1e-3:
            pass
        return (self._read() - self._ticks) / passed
