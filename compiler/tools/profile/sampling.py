"""Finds the hot instructions of compiled code by sampling threads with `perf_event_open` of Linux.

The kernel records the address of the next instruction of each thread at even intervals of its run time. This needs no
external tool, and no privilege if `kernel.perf_event_paranoid` is 2 or less.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import platform
import struct
import sys
import threading
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from buddy.compiler.protocol.errors import BuddyError
from buddy.compiler.protocol.profile import HotSpot, Sampling
from buddy.compiler.runtime.linker import library_containing

# The system call number of perf_event_open(2), by machine.
_SYSCALLS = {"x86_64": 298, "aarch64": 241}
_KERNEL_SETTINGS = Path("/proc/sys/kernel")
# `_ATTRIBUTES` is `perf_event_attr` in its first size (PERF_ATTR_SIZE_VER0, 64 bytes). The event is the software event
# task-clock, by frequency; only the instruction pointer is recorded. A read of the event also returns the number of
# lost samples (PERF_FORMAT_LOST, since Linux 6.0).
_SOFTWARE, _TASK_CLOCK, _SAMPLE_IP, _READ_LOST = 1, 1, 1, 1 << 4
_DISABLED, _EXCLUDE_KERNEL, _EXCLUDE_HYPERVISOR, _BY_FREQUENCY = 1 << 0, 1 << 5, 1 << 6, 1 << 10
_ATTRIBUTES = struct.Struct("=IIQQQQQIIQ")
_CLOSE_ON_EXEC = 8  # PERF_FLAG_FD_CLOEXEC
_ENABLE, _DISABLE = 0x2400, 0x2401  # the requests PERF_EVENT_IOC_ENABLE and PERF_EVENT_IOC_DISABLE of ioctl(2)
# The ring buffer: a page with the positions of the kernel and of this reader, then pages of records, a power of two.
_HEAD_OFFSET, _TAIL_OFFSET = 1024, 1032
_BUFFER_PAGES = 64
_RECORD_HEADER = struct.Struct("=IHH")
_SAMPLE_RECORD, _LOST_RECORD = 9, 2
_WORD = struct.Struct("=Q")
# The samples per second of a thread.
_HERTZ = 4000
# At `_HERTZ`, pages of 4 KiB and 16 bytes for each sample, the buffer of a thread is full after 4 seconds.
_DRAIN_SECONDS = 1.0


class SamplingError(BuddyError):
    """Sampling is not possible on this machine; the text is the reason, and what to do."""


class Sampler:
    """Samples the threads that exist when the sampler is created, inside the context `running`.

    `addresses` counts the samples by instruction address in user space; `lost` is the number of samples that did not
    fit into the buffer. Before Linux 6.0, it does not include those at the end of a run. Raises `SamplingError`.
    """

    def __init__(self) -> None:
        self.addresses: Counter[int] = Counter()
        self.lost = 0
        self.hertz = min(_HERTZ, _kernel_setting("perf_event_max_sample_rate", _HERTZ))
        self._rings: list[tuple[int, mmap.mmap]] = []
        syscall_number = _syscall_number()
        try:
            for thread in os.listdir("/proc/self/task"):
                with contextlib.suppress(ProcessLookupError):  # the thread has ended
                    self._open(syscall_number, int(thread))
        except BaseException:
            self.close()
            raise

    @contextmanager
    def running(self) -> Iterator[None]:
        """Samples the code inside the context. `addresses` and `lost` are complete at the end."""
        has_ended = threading.Event()
        drainer = threading.Thread(target=self._drain_until, args=(has_ended,), name="drain samples", daemon=True)
        drainer.start()
        self._control(_ENABLE)
        try:
            yield
        finally:
            self._control(_DISABLE)
            has_ended.set()
            drainer.join()
            self._drain()
            self._read_lost()

    def close(self) -> None:
        for fd, ring in self._rings:
            ring.close()
            os.close(fd)
        self._rings.clear()

    def _open(self, syscall_number: int, thread: int) -> None:
        """Opens the event of a thread, given by its number in Linux, with its ring buffer."""
        fd = _open_event(syscall_number, thread, self.hertz)
        try:
            ring = mmap.mmap(fd, (1 + _BUFFER_PAGES) * mmap.PAGESIZE)
        except OSError as error:
            os.close(fd)
            raise SamplingError(f"no memory for samples ({error.strerror}): see kernel.perf_event_mlock_kb") from error
        self._rings.append((fd, ring))

    def _control(self, request: int) -> None:
        """Starts or stops all events, by the ioctl `_ENABLE` or `_DISABLE`."""
        for fd, _ in self._rings:
            fcntl.ioctl(fd, request, 0)

    def _drain_until(self, has_ended: threading.Event) -> None:
        """Drains the buffers repeatedly, since one call may fill them."""
        while not has_ended.wait(_DRAIN_SECONDS):
            self._drain()

    def _drain(self) -> None:
        for _, ring in self._rings:
            self._drain_ring(ring)

    def _read_lost(self) -> None:
        """Sets `lost` to the kernel's numbers, if the kernel has them.

        The kernel writes a record of lost samples only once there is space again, so those at the end have no record.
        """
        states = [os.read(fd, 2 * _WORD.size) for fd, _ in self._rings]
        if all(len(state) == 2 * _WORD.size for state in states):
            self.lost = sum(_WORD.unpack_from(state, _WORD.size)[0] for state in states)

    def _drain_ring(self, ring: mmap.mmap) -> None:
        """Counts the new records of the kernel, and releases their space."""
        (head,), (tail,) = _WORD.unpack_from(ring, _HEAD_OFFSET), _WORD.unpack_from(ring, _TAIL_OFFSET)
        data, size = memoryview(ring)[mmap.PAGESIZE :], _BUFFER_PAGES * mmap.PAGESIZE
        start, end = tail % size, head % size
        try:
            wrapped = head != tail and end <= start
            records = bytes(data[start:]) + bytes(data[:end]) if wrapped else bytes(data[start:end])
        finally:
            data.release()
        self._count(records)
        _WORD.pack_into(ring, _TAIL_OFFSET, head)

    def _count(self, records: bytes) -> None:
        """Counts samples and losses in records: a header with type and size, and an address or a number."""
        offset = 0
        while offset + _RECORD_HEADER.size <= len(records):
            kind, _, size = _RECORD_HEADER.unpack_from(records, offset)
            if kind == _SAMPLE_RECORD:
                self.addresses[_WORD.unpack_from(records, offset + _RECORD_HEADER.size)[0]] += 1
            elif kind == _LOST_RECORD:
                self.lost += _WORD.unpack_from(records, offset + _RECORD_HEADER.size + _WORD.size)[0]
            if not size:
                break
            offset += size


def _syscall_number() -> int:
    """Returns the system call number of perf_event_open(2) for this machine. Raises `SamplingError`."""
    number = _SYSCALLS.get(platform.machine()) if sys.platform == "linux" else None
    if number is None:
        raise SamplingError("instructions can only be sampled on Linux, on x86-64 and AArch64")
    return number


def _open_event(syscall_number: int, thread: int, hertz: int) -> int:
    """Returns a file descriptor that samples a thread.

    Raises `ProcessLookupError` if the thread has ended, else `SamplingError`.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    for read_format in (_READ_LOST, 0):
        attributes = _attributes(hertz, read_format)
        fd = libc.syscall(syscall_number, ctypes.c_char_p(attributes), thread, -1, -1, _CLOSE_ON_EXEC)
        if fd >= 0:
            return int(fd)
        if ctypes.get_errno() != errno.EINVAL:
            break
    why = os.strerror(ctypes.get_errno())
    if ctypes.get_errno() == errno.ESRCH:
        raise ProcessLookupError(errno.ESRCH, why)
    paranoid = _kernel_setting("perf_event_paranoid", -1)
    advice = f"; kernel.perf_event_paranoid is {paranoid}, sampling needs 2 or less" if paranoid > 2 else ""
    raise SamplingError(f"this system does not let a process sample itself ({why}{advice})")


def _attributes(hertz: int, read_format: int) -> bytes:
    """Returns a `perf_event_attr` for samples at `hertz`; `read_format` says what a read of the event returns."""
    flags = _DISABLED | _EXCLUDE_KERNEL | _EXCLUDE_HYPERVISOR | _BY_FREQUENCY
    size = _ATTRIBUTES.size
    return _ATTRIBUTES.pack(_SOFTWARE, size, _TASK_CLOCK, hertz, _SAMPLE_IP, read_format, flags, 0, 0, 0)


def _kernel_setting(setting: str, default: int) -> int:
    try:
        return int((_KERNEL_SETTINGS / setting).read_text())
    except (OSError, ValueError):
        return default


# ---- sampling of a program -------------------------------------------------------------------------------------------

# The minimum sampling time in seconds, and the maximum number of runs to reach it.
_MIN_SECONDS = 1.0
_MAX_RUNS = 10_000
# The maximum number of reported instructions: those with most samples.
_MAX_SPOTS = 200


class CodeRange(NamedTuple):
    """The location of a function in memory."""

    name: str
    address: int
    size: int


def sample_instructions(call: Callable[[], object], code: Sequence[CodeRange], runs: int) -> Sampling:
    """Samples `call` for at least `runs` runs; counts the samples for each instruction of `code`.

    If sampling is not possible, the result contains the reason.
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


def _repeat(call: Callable[[], object], runs: int) -> None:
    """Calls at least `runs` times, and for `_MIN_SECONDS` unless that takes more than `_MAX_RUNS` calls."""
    deadline, run_count = time.monotonic() + _MIN_SECONDS, 0
    while run_count < runs or (time.monotonic() < deadline and run_count < _MAX_RUNS):
        call()
        run_count += 1


def _summarize(sampler: Sampler, code: Sequence[CodeRange]) -> Sampling:
    """Counts the samples by instruction of `code`, and those outside of it by library."""
    ordered = sorted(code, key=lambda function: function.address)
    starts = [function.address for function in ordered]
    inside: Counter[tuple[str, int]] = Counter()
    elsewhere: Counter[str] = Counter()
    for address, count in sampler.addresses.items():
        index = bisect_right(starts, address) - 1
        function = ordered[index] if index >= 0 else None
        if function is not None and address < function.address + function.size:
            inside[function.name, address - function.address] += count
        else:
            elsewhere[library_containing(address)] += count
    spots = tuple(HotSpot(name, offset, count) for (name, offset), count in inside.most_common(_MAX_SPOTS))
    total = sampler.addresses.total()
    return Sampling(total, inside.total(), sampler.hertz, spots, tuple(elsewhere.most_common()), lost=sampler.lost)
