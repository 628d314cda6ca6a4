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
from pathlib import Path

ENVIRONMENT = "BUDDY_MEMORY"
# Of the machine's memory, where nobody says: the workbench, the terminal and the system need the rest.
_SHARE = 0.9
# The least cap that torch and MLIR start under, in bytes; less is taken for a slip of the user's.
LEAST = 1 << 30
_CGROUP = Path("/sys/fs/cgroup/memory.max")
# Of -1000 to 1000 (proc(5)): an engine goes before the workbench, and its workers, which can be replaced, before it.
ENGINE_FIRST, WORKER_FIRST = 300, 600

log = logging.getLogger("buddy.engine")


def take_limits() -> None:
    """Cap the memory of this process and of all that it starts, by `BUDDY_MEMORY` (GiB, 0 for none) or the machine's.

    Private writable memory counts, as `RLIMIT_DATA` does, not what is merely mapped: weights in files, reservations.
    """
    go_first(ENGINE_FIRST)
    cap = memory_cap(os.environ.get(ENVIRONMENT, ""), machine_memory())
    if cap:
        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_DATA, (cap if hard < 0 else min(cap, hard), hard))


def go_first(score: int) -> None:
    """Have the kernel end this process before those with a lower score when memory runs out, where it can (Linux)."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(str(score))


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
    """Bytes of memory that this machine, or the container this is in, has; 0 where that is not known."""
    try:
        found = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (OSError, ValueError):
        return 0
    with contextlib.suppress(OSError, ValueError):
        found = min(found, int(_CGROUP.read_text()))
    return max(found, 0)
