"""Limits the memory of an engine's processes, and sets which of them the kernel kills first when memory runs out.

A faulty pass may create gigabytes of IR, a faulty kernel may request more. A process at its limit fails to allocate: an
error, or a reported crash if it can be replaced. Without a limit the machine stalls until the kernel kills a process.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import resource
from collections.abc import Iterator
from pathlib import Path

ENVIRONMENT = "BUDDY_MEMORY"
# The default fraction of the machine's memory: the workbench, the terminal and the system need the rest.
_SHARE = 0.9
# The lowest limit with which torch and MLIR start, in bytes; a lower one is considered a mistake.
LEAST = 1 << 30
_GROUPS, _OWN_GROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
# From -1000 to 1000 (proc(5)): an engine is killed before the workbench, and its workers before the engine.
ENGINE_FIRST, WORKER_FIRST = 300, 600

log = logging.getLogger("buddy.engine")


def take_limits() -> None:
    """Limits the memory of this process and of its children, by `BUDDY_MEMORY` (GiB, 0 for none) or the machine's.

    `RLIMIT_DATA` counts private writable memory, not files that are mapped for reading, nor reservations.
    """
    prefer_as_oom_victim(ENGINE_FIRST)
    cap = memory_cap(os.environ.get(ENVIRONMENT, ""), machine_memory())
    if cap:
        # Keeps a lower limit, such as a batch system's.
        there = resource.getrlimit(resource.RLIMIT_DATA)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_DATA, (min([cap, *(one for one in there if one >= 0)]), there[1]))


def prefer_as_oom_victim(score: int) -> None:
    """Makes the kernel kill this process before those with a lower score when memory runs out (Linux only).

    Keeps a higher score, such as a container's.
    """
    own = Path("/proc/self/oom_score_adj")
    with contextlib.suppress(OSError, ValueError):
        if int(own.read_text()) < score:
            own.write_text(str(score))


def memory_cap(said: str, machine: int) -> int:
    """Returns the limit in bytes for the user's value in GiB ("" for none) and the machine's memory; 0 for none."""
    if said:
        try:
            given = float(said)
        except ValueError:
            given = math.nan
        if given == 0:
            return 0
        if math.isfinite(given) and given * 2**30 >= LEAST:
            return int(given * 2**30)
        log.error("%s=%s is ignored: give GiB, at least %g, or 0 for no limit", ENVIRONMENT, said, LEAST / 2**30)
    return int(machine * _SHARE) if machine * _SHARE >= LEAST else 0


def machine_memory() -> int:
    """Returns the bytes of memory of this machine, container or batch job; 0 if unknown."""
    try:
        found = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (OSError, ValueError):
        return 0
    return max(min([found, *group_limits(_OWN_GROUPS, _GROUPS)]), 0)


def group_limits(own: Path, mounted: Path) -> Iterator[int]:
    """Yields the limits in bytes of the control groups that `own` lists, and of their parents (cgroups(7), v1 and v2).

    A container sees its own group as the outermost one, whatever its path outside.
    """
    lines: list[str] = []
    with contextlib.suppress(OSError):
        lines = own.read_text().splitlines()
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers not in ("", "memory"):
            continue
        folder, name = mounted / controllers, "memory.limit_in_bytes" if controllers else "memory.max"
        group = folder / path.lstrip("/")
        for place in (group, *group.parents):
            with contextlib.suppress(OSError, ValueError):
                yield int((place / name).read_text())
            if place == folder:
                break
