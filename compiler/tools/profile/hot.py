"""Finds the hot instructions of compiled code by sampling threads with `perf_event_open` of Linux.

The kernel records the address of the next instruction of each thread at even intervals of its run time. This needs no
external tool, and no privilege if `kernel.perf_event_paranoid` is 2 or less.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import platform
import struct
import sys
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from buddy.compiler.protocol.profile import HotSpot, Sampling
from buddy.compiler.runtime.openmp import library_at

# The system call number of perf_event_open(2), by machine.
_SYSCALLS = {"x86_64": 298, "aarch64": 241}
_SETTINGS = Path("/proc/sys/kernel")
# The first version of `perf_event_attr`: a software event, the CPU time of the thread, sampled by frequency; only the
# address is recorded.
_SOFTWARE, _TASK_CLOCK, _SAMPLE_IP = 1, 1, 1
_DISABLED, _EXCLUDE_KERNEL, _EXCLUDE_HYPERVISOR, _BY_FREQUENCY = 1 << 0, 1 << 5, 1 << 6, 1 << 10
_ATTRIBUTES = struct.Struct("=IIQQQQQIIQ")
_CLOSE_ON_EXEC = 8
_ENABLE, _DISABLE = 0x2400, 0x2401
# The ring buffer: a page with the positions of the kernel and of this reader, then a power of two of pages.
_HEAD, _TAIL = 1024, 1032
_PAGES = 64
_RECORD = struct.Struct("=IHH")
_SAMPLE, _LOST = 9, 2
_WORD = struct.Struct("=Q")
HERTZ = 4000


class SamplingError(Exception):
    """Sampling is not possible on this machine; the text is the reason, and what to do."""


class Sampler:
    """Counts the addresses of this process's current threads while `running`.

    `addresses` are those in user space, `lost` the samples that did not fit into the buffer. Raises `SamplingError`.
    """

    def __init__(self) -> None:
        self.addresses: Counter[int] = Counter()
        self.lost = 0
        self.hertz = min(HERTZ, _number("perf_event_max_sample_rate", HERTZ))
        self._rings: list[tuple[int, mmap.mmap]] = []
        number = _syscall()
        try:
            for thread in os.listdir("/proc/self/task"):
                self._open(number, int(thread))
        except BaseException:
            self.close()
            raise

    @contextmanager
    def running(self) -> Iterator[None]:
        """Samples the code inside the context; the samples are counted at the end."""
        self._control(_ENABLE)
        try:
            yield
        finally:
            self._control(_DISABLE)
            for _, ring in self._rings:
                self._drain(ring)

    def close(self) -> None:
        for fd, ring in self._rings:
            ring.close()
            os.close(fd)
        self._rings.clear()

    def _open(self, number: int, thread: int) -> None:
        fd = _event(number, thread, self.hertz)
        try:
            ring = mmap.mmap(fd, (1 + _PAGES) * mmap.PAGESIZE)
        except OSError as error:
            os.close(fd)
            raise SamplingError(f"no memory for samples ({error.strerror}): see kernel.perf_event_mlock_kb") from error
        self._rings.append((fd, ring))

    def _control(self, what: int) -> None:
        for fd, _ in self._rings:
            fcntl.ioctl(fd, what, 0)

    def _drain(self, ring: mmap.mmap) -> None:
        """Counts the new records of the kernel, and releases their space."""
        (head,), (tail,) = _WORD.unpack_from(ring, _HEAD), _WORD.unpack_from(ring, _TAIL)
        data, size = memoryview(ring)[mmap.PAGESIZE :], _PAGES * mmap.PAGESIZE
        first, last = tail % size, head % size
        try:
            wrapped = head != tail and last <= first
            written = bytes(data[first:]) + bytes(data[:last]) if wrapped else bytes(data[first:last])
        finally:
            data.release()
        self._count(written)
        _WORD.pack_into(ring, _TAIL, head)

    def _count(self, written: bytes) -> None:
        place = 0
        while place + _RECORD.size <= len(written):
            kind, _, size = _RECORD.unpack_from(written, place)
            if kind == _SAMPLE:
                self.addresses[_WORD.unpack_from(written, place + _RECORD.size)[0]] += 1
            elif kind == _LOST:
                self.lost += _WORD.unpack_from(written, place + _RECORD.size + _WORD.size)[0]
            if not size:
                break
            place += size


def _syscall() -> int:
    """The number of perf_event_open(2) for this machine. Raises `SamplingError`."""
    number = _SYSCALLS.get(platform.machine()) if sys.platform == "linux" else None
    if number is None:
        raise SamplingError("instructions can only be sampled on Linux, on x86-64 and AArch64")
    return number


def _event(number: int, thread: int, hertz: int) -> int:
    """A file descriptor that samples a thread. Raises `SamplingError`."""
    flags = _DISABLED | _EXCLUDE_KERNEL | _EXCLUDE_HYPERVISOR | _BY_FREQUENCY
    size = _ATTRIBUTES.size
    attributes = _ATTRIBUTES.pack(_SOFTWARE, size, _TASK_CLOCK, hertz, _SAMPLE_IP, 0, flags, 0, 0, 0)
    libc = ctypes.CDLL(None, use_errno=True)
    fd = libc.syscall(number, ctypes.c_char_p(attributes), thread, -1, -1, _CLOSE_ON_EXEC)
    if fd < 0:
        why = os.strerror(ctypes.get_errno())
        paranoid = _number("perf_event_paranoid", -1)
        advice = f"; kernel.perf_event_paranoid is {paranoid}, sampling needs 2 or less" if paranoid > 2 else ""
        raise SamplingError(f"this system does not let a process sample itself ({why}{advice})")
    return int(fd)


def _number(setting: str, default: int) -> int:
    try:
        return int((_SETTINGS / setting).read_text())
    except (OSError, ValueError):
        return default


# Minimum sampling time in seconds, and the maximum number of runs for it.
_SECONDS = 1.0
_MOST_RUNS = 10_000
# Maximum number of reported instructions, those with most samples.
_SPOTS = 200


class CodeRange(NamedTuple):
    """The location of a function in memory."""

    name: str
    address: int
    size: int


def sample_instructions(call: Callable[[], Any], code: Sequence[CodeRange], runs: int) -> Sampling:
    """Samples `call` for at least `runs` runs, by instruction of `code`.

    The result contains the reason if sampling is not possible.
    """
    try:
        sampler = Sampler()
    except SamplingError as error:
        return Sampling(problem=str(error))
    try:
        with sampler.running():
            _repeat(call, runs)
    finally:
        sampler.close()
    return _summarize(sampler, code)


def _repeat(call: Callable[[], Any], runs: int) -> None:
    end, done = time.monotonic() + _SECONDS, 0
    while done < runs or (time.monotonic() < end and done < _MOST_RUNS):
        call()
        done += 1


def _summarize(sampler: Sampler, code: Sequence[CodeRange]) -> Sampling:
    ordered = sorted(code, key=lambda function: function.address)
    starts = [function.address for function in ordered]
    inside: Counter[tuple[str, int]] = Counter()
    elsewhere: Counter[str] = Counter()
    for address, count in sampler.addresses.items():
        place = bisect_right(starts, address) - 1
        function = ordered[place] if place >= 0 else None
        if function is not None and address < function.address + function.size:
            inside[function.name, address - function.address] += count
        else:
            elsewhere[library_at(address)] += count
    spots = tuple(HotSpot(name, offset, count) for (name, offset), count in inside.most_common(_SPOTS))
    total = sampler.addresses.total()
    return Sampling(total, inside.total(), sampler.hertz, spots, tuple(elsewhere.most_common()), lost=sampler.lost)
