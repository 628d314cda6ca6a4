"""The target of code generation: the properties of a machine that kernels depend on, and those of this machine."""

from __future__ import annotations

import ctypes
import math
import os
import platform
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

# The size in bytes of a cache line and of the widest vector; buffers are aligned to it.
CACHE_LINE = 64
# The smallest associativity of first-level and second-level caches.
CACHE_WAYS = 8
# The bytes of one way of a first-level cache, which is indexed by the offset in a page.
_L1_WAY_BYTES = 4096
# Cycles until the result of an addition or a fused multiply-add is ready, if one vector instruction starts per cycle.
FMA_LATENCY = 4
# Vectors per cycle from the second-level cache while other loads are in flight.
L2_VECTORS_PER_CYCLE = 0.3
# The assumed speed of one core: half the peak with two 512-bit fused multiply-adds per cycle.
FLOP_PER_NANOSECOND = 64
# The assumed bandwidth of one core: between that of memory and that of its second-level cache.
BYTES_PER_NANOSECOND = 16
# The minimum duration of a loop that runs on several threads: a fork and join of two threads takes 3 to 5 us.
MIN_PARALLEL_NANOSECONDS = 20_000


@dataclass(frozen=True)
class Target:
    """A CPU: the size of its vectors and caches in bytes, and the number of its vector registers.

    `rounds_to_bfloat16` says whether it has an instruction that converts to bfloat16. `dot_instructions` has the names
    of its instructions for products of narrow elements that kernels use, the fastest ones first. `prefetches_streams`
    says whether instructions that prefetch make a single stream of weights faster than the processor does by itself.
    """

    name: str
    vector_bytes: int
    vector_registers: int
    l1: int = 32 << 10
    l2: int = 1 << 20
    rounds_to_bfloat16: bool = False
    dot_instructions: tuple[str, ...] = ()
    prefetches_streams: bool = True

    def lanes(self, element_bytes: int) -> int:
        """Returns the number of elements in a vector."""
        return max(1, self.vector_bytes // element_bytes)

    def lines_in_l1(self, distance: int) -> int:
        """Returns how many cache lines the L1 cache holds in three quarters of its ways; the rest is for other data.

        The lines are `distance` bytes apart. If this is a multiple of a large power of two, the lines share few sets.
        """
        sets = _L1_WAY_BYTES // max(CACHE_LINE, math.gcd(_L1_WAY_BYTES, max(1, distance)))
        return sets * max(1, self.l1 // _L1_WAY_BYTES) * 3 // 4


# The dot-product instructions that kernels use on vectors of 64 and of 32 bytes, the fastest ones first, each with the
# flags in Linux of processors that have it.
_AVX512_INSTRUCTIONS = {
    "tdpbf16ps": {"amx_tile", "amx_bf16"},
    "tdpbssd": {"amx_tile", "amx_int8"},
    "vdpbf16ps": {"avx512_bf16"},
    "vpdpbusd": {"avx512_vnni"},
    "vpmaddwd": {"avx512bw"},
}
_AVX2_INSTRUCTIONS = {"vpdpbusd": {"avx_vnni"}, "vpmaddwd": {"avx2"}}
_BFLOAT16_INSTRUCTIONS = ("tdpbf16ps", "vdpbf16ps")
# An extension that only AMD's processors have. On a Zen 4, a stream of 100 MB of weights takes 1.12 times as long if
# each cache line of it is prefetched 2 KiB ahead, and not less at any other distance or for the second-level cache.
_AMD_FLAG = "sse4a"


def _supported_instructions(features: set[str], instructions: dict[str, set[str]]) -> list[str]:
    """Returns the names in `instructions` whose flags are all in `features`."""
    return [name for name, flags in instructions.items() if flags <= features]


def missing_instructions(target: Target) -> list[str]:
    """Returns the dot-product instructions of `target` that this CPU does not have on vectors of the target's width."""
    instructions = _AVX512_INSTRUCTIONS if target.vector_bytes == CACHE_LINE else _AVX2_INSTRUCTIONS
    present = _supported_instructions(_cpu_flags(), instructions)
    return [name for name in target.dot_instructions if name not in present]


def from_features(features: set[str], machine: str, l1: int = 32 << 10, l2: int = 1 << 20) -> Target:
    """Returns the target with the CPU flags `features`, named as in Linux, and the data cache sizes `l1` and `l2`.

    `machine` is a value of `platform.machine()`.
    """
    rounds_to_bfloat16 = bool(features & {"avx512_bf16", "avx512bf16", "bf16"})
    prefetches_streams = _AMD_FLAG not in features
    if {"avx512f", "avx512vl", "avx512dq", "avx512bw"} <= features:
        dots = tuple(_supported_instructions(features, _AVX512_INSTRUCTIONS))
        return Target("avx512", 64, 32, l1, l2, rounds_to_bfloat16, dots, prefetches_streams)
    if {"avx2", "fma"} <= features:
        dots = tuple(_supported_instructions(features, _AVX2_INSTRUCTIONS))
        return Target("avx2", 32, 16, l1, l2, rounds_to_bfloat16, dots, prefetches_streams)
    if machine in ("aarch64", "arm64"):
        return Target("neon", 16, 32, l1, l2, rounds_to_bfloat16)
    return Target("generic", 16, 16, l1, l2, rounds_to_bfloat16)


@lru_cache(maxsize=1)
def host() -> Target:
    """Returns the target of this machine; features that cannot be detected count as absent."""
    target = from_features(_cpu_flags(), platform.machine(), _cache_bytes(1, 32 << 10), _cache_bytes(2, 1 << 20))
    fast_instructions = tuple(name for name in target.dot_instructions if _is_fast(name, target))
    return replace(target, dot_instructions=fast_instructions)


def _is_fast(name: str, target: Target) -> bool:
    """Returns whether a dot-product instruction is faster than plain multiply-adds; true if it was not measured."""
    rates = measured_rates(target) if name in _BFLOAT16_INSTRUCTIONS else {}
    return name not in rates or rates[name] > rates["vfmadd"]


def measured_rates(target: Target) -> dict[str, float]:
    """Returns the measured rates by which instructions of this machine are selected; empty if there is no choice.

    A rate is the number of products of bfloat16 per nanosecond and thread, by the name of the instruction; "vfmadd"
    multiplies f32.
    """
    supported = _supported_instructions(_cpu_flags(), _AVX512_INSTRUCTIONS)
    names = [name for name in supported if name in _BFLOAT16_INSTRUCTIONS]
    if target.vector_bytes != CACHE_LINE or not names:
        return {}
    from buddy.compiler.support.instruction_rates import bfloat16_rates

    return bfloat16_rates(names)


# The number of bfloat16 products that compute one f32 product in the precision `bf16x3`.
BF16X3_PRODUCTS = 3


def prefers_bf16x3(rates: Mapping[str, float]) -> bool:
    """Returns whether a machine with the `rates` multiplies f32 faster by the precision `bf16x3`."""
    fastest = max((rate for name, rate in rates.items() if name in _BFLOAT16_INSTRUCTIONS), default=0.0)
    return fastest > BF16X3_PRODUCTS * rates.get("vfmadd", 0.0)


# Linux on x86-64: the system call `arch_prctl` with ARCH_REQ_XCOMP_PERM for XFEATURE_XTILEDATA (Documentation/arch/x86/
# xstate.rst). The tile registers need 8 KiB in each signal frame, so a process has to ask for them.
_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA = 158, 0x1023, 18


@lru_cache(maxsize=1)
def request_amx_tiles() -> bool:
    """Asks Linux for the tile registers of AMX, for this process; returns whether it may use them."""
    if platform.machine() != "x86_64" or not sys.platform.startswith("linux"):
        return False
    return bool(ctypes.CDLL(None).syscall(_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA) == 0)


@lru_cache(maxsize=1)
def host_features() -> str:
    """Returns all features of this CPU as one string; code that was compiled for another string may not run here."""
    return " ".join([platform.machine(), *sorted(_cpu_flags())])


def host_has_features(*names: str) -> bool:
    """Returns whether this CPU has all features `names`, named as in Linux."""
    return set(names) <= _cpu_flags()


# Extensions that decide how fast narrow elements are, with the flags in Linux of processors that have them.
_EXTENSIONS = {
    "AVX2": ("avx2",),
    "AVX-512": ("avx512f",),
    "AVX-VNNI": ("avx_vnni",),
    "AVX-512 VNNI": ("avx512_vnni",),
    "AVX-512 BF16": ("avx512_bf16",),
    "AMX": ("amx_bf16",),
}


def cpu_name() -> str:
    """Returns the model name of this CPU, with its extensions of `_EXTENSIONS` in parentheses."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    extensions = [name for name, flags in _EXTENSIONS.items() if host_has_features(*flags)]
    name = names[0] if names else platform.processor() or platform.machine()
    return f"{name} ({', '.join(extensions) or 'none of ' + ', '.join(_EXTENSIONS)})"


# The flags that count as absent if Linux does not permit the tile registers.
_AMX = {"amx_tile", "amx_bf16", "amx_int8"}


def _cpu_flags() -> set[str]:
    """Returns the features of this CPU, named as in Linux; without `/proc/cpuinfo`, those that LLVM detects.

    Includes the features of AMX only if Linux permits the tile registers.
    """
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return _flags_from_llvm()
    for line in text.splitlines():
        if line.startswith(("flags", "Features")):
            flags = set(line.split(":", 1)[1].split())
            return flags if "amx_tile" not in flags or request_amx_tiles() else flags - _AMX
    return set()


def _flags_from_llvm() -> set[str]:
    from llvmlite import binding

    return {name for name, present in binding.get_host_cpu_features().items() if present}


def _cache_bytes(level: int, default: int) -> int:
    """Returns the size of this machine's data cache of a level in bytes, `default` if it is unknown."""
    for folder in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*"):
        try:
            kind, cache_level = (folder / "type").read_text().strip(), int((folder / "level").read_text())
            if cache_level == level and kind != "Instruction":
                return int((folder / "size").read_text().strip().rstrip("K")) << 10
        except (OSError, ValueError):
            continue
    return default


def cores() -> int:
    """Returns the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# The hint for an error about the missing C++ compiler, by which Inductor compiles its kernels.
CXX_TODO = "install a C++ compiler (Debian, Ubuntu: apt install g++), or set CXX to one"


def missing_cxx_message() -> str:
    """Returns a message if the C++ compiler of this machine, which Inductor starts, is not found, else ""."""
    name = os.environ.get("CXX") or ("clang++" if sys.platform == "darwin" else "g++")
    return "" if shutil.which(name) else f"Inductor compiles its kernels by {name}, which was not found"
