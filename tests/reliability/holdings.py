"""Measures the processes of a session: memory, open files, threads, children, Python objects; and their growth."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import json
import os
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec

from tests.reliability.processes import Process, engines
from tests.reliability.watched.in_use import in_use

WORKBENCH = "workbench"
ROLES = (WORKBENCH, "engine", "host", "compiler")
# The part of a session in which caches fill up, libraries are loaded, and screens are drawn first.
WARM_UP = 0.4
# The maximum growth after the warm-up relative to the mean, by a least-squares line through the samples.
MOST_GROWTH = 0.01
# Minimum number of samples after the warm-up for a line: with fewer, the current screen affects it.
FEWEST = 20
_WATCHED = Path(__file__).with_name("watched")
_PATIENCE = 120.0


class Holding(msgspec.Struct, frozen=True):
    """One process: its private KiB, its proportional share of all (PSS) in KiB, and counts.

    `in_use` is the allocated and not freed part of its KiB, 0 if unknown.
    """

    own: int
    pss: int
    files: int
    threads: int
    objects: int
    kinds: dict[str, int] = {}
    in_use: int = 0


class Sample(msgspec.Struct, frozen=True):
    """The measurements after so many actions; `processes` are by role, including `zombies`."""

    actions: int
    held: dict[str, Holding]
    processes: dict[str, int]
    zombies: int = 0


def without_kinds(sample: Sample) -> Sample:
    """The part of a sample that the measured process keeps: the kinds of objects take 22 KiB each time."""
    held = {role: msgspec.structs.replace(holding, kinds={}) for role, holding in sample.held.items()}
    return msgspec.structs.replace(sample, held=held)


class Watch:
    """Measures this process and those below it; a folder receives their answers."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def sample(self, actions: int) -> Sample:
        """Raises `TimeoutError` if a process does not answer."""
        gc.collect()
        if hasattr(libc := ctypes.CDLL(None), "malloc_trim"):
            libc.malloc_trim(0)
        found = await _at_rest()
        known = [process for process in found if process.role in ROLES and not process.zombie]
        kinds = Counter(type(thing).__qualname__ for thing in gc.get_objects())
        held = {WORKBENCH: _holding(os.getpid(), kinds, in_use())}
        for process in known:
            told = await self._told(process)
            kinds = Counter({**told["kinds"], "": told["objects"] - sum(told["kinds"].values())})
            held[process.role] = _holding(process.pid, kinds, told["in_use"])
        return Sample(
            actions, held, dict(Counter(process.role for process in found)), sum(each.zombie for each in found)
        )

    async def _told(self, process: Process) -> dict[str, Any]:
        path = self._folder / str(process.pid)
        path.unlink(missing_ok=True)
        os.kill(process.pid, signal.SIGRTMIN + 7)
        end = time.monotonic() + _PATIENCE
        while not path.exists():
            if time.monotonic() > end:
                raise TimeoutError(f"the {process.role} does not say what it holds")
            await asyncio.sleep(0.01)
        found: dict[str, Any] = json.loads(path.read_text())
        return found


@contextmanager
def watched() -> Iterator[Watch]:
    """Processes started inside can be measured."""
    path = os.pathsep.join([str(_WATCHED), *filter(None, [os.environ.get("PYTHONPATH")])])
    with (
        tempfile.TemporaryDirectory(prefix="buddy-watched-") as folder,
        patch.dict(os.environ, {"PYTHONPATH": path, "BUDDY_WATCHED": folder}),
    ):
        yield Watch(Path(folder))


async def _at_rest() -> list[Process]:
    """The current processes; one that has just exited is a zombie until its parent has reaped it."""
    end = time.monotonic() + _PATIENCE
    found = engines()
    while any(process.zombie for process in found) and time.monotonic() < end:
        await asyncio.sleep(0.05)
        found = engines()
    return found


def _holding(pid: int, kinds: Counter[str], used: int) -> Holding:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    sizes = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines)}
    status = Path(f"/proc/{pid}/status").read_text()
    threads = int(status.partition("Threads:")[2].split()[0])
    files = len(os.listdir(f"/proc/{pid}/fd"))
    return Holding(sizes["Anonymous"], sizes["Pss"], files, threads, kinds.total(), dict(kinds.most_common(60)), used)


# ---- growth ----------------------------------------------------------------------------------------------------------


def after_warm_up(samples: Sequence[Sample]) -> Sequence[Sample]:
    return samples[int(len(samples) * WARM_UP) :]


def slope(values: Sequence[float]) -> float:
    """The rise of a least-squares line through `values` per step."""
    count = len(values)
    middle, mean = (count - 1) / 2, sum(values) / count
    spread = sum((place - middle) ** 2 for place in range(count))
    return sum((place - middle) * (value - mean) for place, value in enumerate(values)) / spread if spread else 0.0


def growth(values: Sequence[float]) -> float:
    """The rise of a least-squares line through `values` from the first to the last, divided by their mean."""
    return slope(values) * (len(values) - 1) * len(values) / sum(values) if sum(values) else 0.0


def growths(samples: Sequence[Sample], of: str = "own") -> dict[str, float]:
    """The growth of memory after the warm-up, private or `in_use`: of each process, and of all together."""
    late = after_warm_up(samples)
    sizes = [{role: getattr(held, of) for role, held in sample.held.items()} for sample in late]
    found = {role: growth([size[role] for size in sizes]) for role in late[0].held}
    return found | {"all": growth([sum(size.values()) for size in sizes])}


def leaks(samples: Sequence[Sample], most: float = MOST_GROWTH) -> list[str]:
    """Describes what grows after the warm-up: memory by its line, counts by the last samples.

    Memory is not judged with fewer than `FEWEST` samples. All processes together are judged by their pages; a process
    by its memory in use, if known: Python allocates a MiB of pages at a time, more than the limit for a small process,
    and keeps it while it has a single object.
    """
    late = after_warm_up(samples)
    known = all(held.in_use for sample in late for held in sample.held.values())
    found = growths(samples, "in_use" if known else "own") | {"all": growths(samples)["all"]}
    said = [
        f"memory of {name} grew by {value:.2%}, of at most {most:.0%}"
        for name, value in found.items()
        if value > most and len(late) >= FEWEST
    ]
    for role in late[0].held:
        for count in ("files", "threads"):
            said += _rises(f"{count} of {role}", [getattr(sample.held[role], count) for sample in late])
    for role in sorted({role for sample in late for role in sample.processes}):
        said += _rises(f"processes: {role}", [sample.processes.get(role, 0) for sample in late])
    return said + [f"{sample.zombies} zombies after {sample.actions} actions" for sample in samples if sample.zombies]


def _rises(name: str, counts: Sequence[int]) -> list[str]:
    """Counts may vary; the minimum of the last quarter must not exceed the maximum of the first."""
    quarter = max(1, len(counts) // 4)
    first, last = max(counts[:quarter]), min(counts[-quarter:])
    return [f"{name} rose from {first} to {last}"] if last > first else []


def risen_kinds(samples: Sequence[Sample], role: str, most: int = 8) -> list[tuple[str, int]]:
    """The kinds of objects that grew after the warm-up, the fastest first."""
    late = after_warm_up(samples)
    before, after = late[0].held[role].kinds, late[-1].held[role].kinds
    return Counter({kind: count - before.get(kind, count) for kind, count in after.items()}).most_common(most)
