"""How much memory the processes of an engine may take, and whom the kernel ends first when there is none left.

A broken pass makes IR of gigabytes, a broken kernel asks for more. A process at its cap fails to allocate: an error, or
a named crash where it can be replaced. Without a cap the machine stalls until the kernel ends one of its choice.
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
# Of the machine's memory, where nobody says: the workbench, the terminal and the system need the rest.
_SHARE = 0.9
# The least cap that torch and MLIR start under, in bytes; less is taken for a slip of the user's.
LEAST = 1 << 30
_GROUPS, _OWN_GROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
# Of -1000 to 1000 (proc(5)): an engine goes before the workbench, and its workers, which can be replaced, before it.
ENGINE_FIRST, WORKER_FIRST = 300, 600

log = logging.getLogger("buddy.engine")


def take_limits() -> None:
    """Cap the memory of this process and of all that it starts, by `BUDDY_MEMORY` (GiB, 0 for none) or the machine's.

    Private writable memory counts, as `RLIMIT_DATA` does, not files that are mapped to be read, nor reservations.
    """
    go_first(ENGINE_FIRST)
    cap = memory_cap(os.environ.get(ENVIRONMENT, ""), machine_memory())
    if cap:
        # A lower limit, such as a batch system's, stays.
        there = resource.getrlimit(resource.RLIMIT_DATA)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_DATA, (min([cap, *(one for one in there if one >= 0)]), there[1]))


def go_first(score: int) -> None:
    """Have the kernel end this process before those with a lower score when memory runs out, where it can (Linux).

    A higher score, such as a container's, stays.
    """
    own = Path("/proc/self/oom_score_adj")
    with contextlib.suppress(OSError, ValueError):
        if int(own.read_text()) < score:
            own.write_text(str(score))


def memory_cap(said: str, machine: int) -> int:
    """The cap in bytes for what the user said in GiB ("" for nothing) on a machine of so many bytes; 0 for none."""
    if said:
        try:
            given = float(said)
        except ValueError:
            given = math.nan
        if given == 0:
            return 0
        if math.isfinite(given) and given * 2**30 >= LEAST:
            return int(given * 2**30)
        log.error("%s=%s is not used: it is GiB, at least %g, or 0 for no cap", ENVIRONMENT, said, LEAST / 2**30)
    return int(machine * _SHARE) if machine * _SHARE >= LEAST else 0


def machine_memory() -> int:
    """Bytes of memory that this machine has, or that a container or a batch system leaves of it; 0 where unknown."""
    try:
        found = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (OSError, ValueError):
        return 0
    return max(min([found, *group_limits(_OWN_GROUPS, _GROUPS)]), 0)


def group_limits(own: Path, mounted: Path) -> Iterator[int]:
    """The limits in bytes of the control groups that `own` lists, and of those around them (cgroups(7), v1 and v2).

    A container sees its own group as the outermost one, whatever the path of it outside.
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
