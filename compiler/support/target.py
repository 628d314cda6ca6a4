"""The machine that kernels are generated for: a `Target`, and constants that are assumed for every machine."""

from __future__ import annotations

import os
import platform
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
