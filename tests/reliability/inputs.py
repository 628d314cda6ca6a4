"""Hostile mutations of valid frames, files and texts, for every reader of data from a user, a file or a peer.

Each reader has to answer, or report the error in the way that its callers expect, in time; lexers and differences must
not lose a character. Readers that use native code run in processes that may crash (`hostile_files.py`).

    python -m tests.reliability inputs --output inputs.jsonl      # the campaign
    python -m tests.reliability.inputs inputs.jsonl               # how many inputs each reader accepted and rejected
    python -m tests.reliability.inputs --only recipe 12345        # repeat one input
    python -m tests.reliability.inputs --profile 2000             # the cost per input of each reader
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from random import Random
from types import FrameType

from buddy.compiler.support import files
from tests.reliability.campaign import Attempt, Batch, Campaign, Fault, Tried, totals
from tests.reliability.hostile_files import HOSTILE, HostileFiles
from tests.reliability.mutations import mutated
from tests.reliability.readers import READERS, Reader

COUNT, BATCH = 1_000_000, 10_000
# Seconds after which a reader counts as one that never ends. A line of IR takes microseconds.
PATIENCE = 20.0
TAKEN, REFUSED, DIED = "taken", "refused", "ended its process"
# The total of the readers' weights; hostile files have small ones, since each costs milliseconds.
_WEIGHTS = [*(reader.weight for reader in READERS.values()), *(library.weight for library in HOSTILE.values())]
_NAMES = [*READERS, *HOSTILE]
_UP_TO = list(accumulate(_WEIGHTS))


def chosen(number: int) -> str:
    """The reader of input `number`."""
    return _readers()[Random(number).randrange(_UP_TO[-1])]


@lru_cache(maxsize=1)
def _readers() -> list[str]:
    return [name for name, weight in zip(_NAMES, _WEIGHTS, strict=True) for _ in range(weight)]


def made(reader: Reader, number: int) -> bytes:
    """Input `number` of a reader: one of its seeds after a few mutations."""
    return mutated(reader.seeds, reader.form, Random(number), reader.longest)


def outcome_of(reader: Reader, data: bytes) -> tuple[str, str]:
    """Whether a reader accepts or rejects `data`; or "fault", with the reason."""
    try:
        reader.read(data)
    except TimeoutError:
        return "fault", f"it was not done after {PATIENCE:g} s"
    except reader.refuses:
        return REFUSED, ""
    except Exception as error:
        return "fault", f"{type(error).__name__}: {error}"[:300]
    return TAKEN, ""


def attempt(seed: int, cases: int, hostile: HostileFiles | None = None, only: str = "") -> Tried:
    """Runs the inputs of a batch; with `only`, those of one reader."""
    numbers = range(seed * BATCH, seed * BATCH + cases)
    outcomes: Counter[str] = Counter()
    faults: list[Fault] = []
    slowest, later = 0.0, list[tuple[str, int]]()
    with _alarmed():
        for number in numbers:
            name = only or chosen(number)
            if name in HOSTILE:
                later.append((name, number))
                continue
            start = time.perf_counter()
            data = made(READERS[name], number)
            signal.setitimer(signal.ITIMER_REAL, PATIENCE)
            ended, why = outcome_of(READERS[name], data)
            signal.setitimer(signal.ITIMER_REAL, 0)
            slowest = max(slowest, time.perf_counter() - start)
            outcomes[f"{name}: {ended}"] += 1
            if why:
                faults.append(Fault(ended, f"{name}: {why}", f"--only {name!r} {number}"))
    for (name, number), (ended, why) in zip(later, hostile.tried(later) if hostile and later else (), strict=False):
        outcomes[f"{name}: {ended}"] += 1
        if ended == "fault":
            faults.append(Fault(ended, f"{name}: {why}", f"--only {name!r} {number}"))
    return Tried(dict(outcomes), tuple(faults), {"slowest input of a batch, ms": [round(slowest * 1000, 1)]})


@contextmanager
def _alarmed() -> Iterator[None]:
    def late(_signal: int, _frame: FrameType | None) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, late)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def _trial() -> Iterator[Attempt]:
    with HostileFiles() as hostile:
        yield lambda seed, cases: attempt(seed, cases, hostile)


CAMPAIGN = Campaign(
    "inputs", f"hostile bytes for {len(_NAMES)} readers", COUNT, BATCH, _trial, conditions=f"2, {len(_NAMES)} readers"
)


# ---- reports ---------------------------------------------------------------------------------------------------------


def table(batches: Sequence[Batch]) -> list[str]:
    """Per reader how many inputs were accepted, were rejected, and ended the process that read them."""
    found = totals(batches)
    kinds = (TAKEN, REFUSED, DIED, "fault")
    lines = ["| reader | " + " | ".join(kinds) + " |", "|---|" + "---:|" * len(kinds)]
    for name in _NAMES:
        counts = [found[f"{name}: {kind}"] for kind in kinds]
        lines.append(f"| {name} | " + " | ".join(f"{count:,}" for count in counts) + " |")
    sums = [sum(count for name, count in found.items() if name.endswith(f": {kind}")) for kind in kinds]
    return [*lines, "| **all** | " + " | ".join(f"**{total:,}**" for total in sums) + " |"]


def _profiled(count: int) -> Iterator[str]:
    """Microseconds to make and read an input: median, mean and maximum."""
    for name, reader in READERS.items():
        times, making = [], 0.0
        for number in range(count):
            start = time.perf_counter()
            data = made(reader, number)
            between = time.perf_counter()
            outcome_of(reader, data)
            times.append((time.perf_counter() - between) * 1e6)
            making += (between - start) * 1e6
        times.sort()
        average = sum(times) / count
        yield f"{name:28} {times[count // 2]:9.0f} {average:9.0f} {times[-1]:9.0f}   made in {making / count:6.0f}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", nargs="?", type=Path, help="the file of a campaign")
    parser.add_argument("--only", nargs=2, metavar=("READER", "NUMBER"), help="this input")
    parser.add_argument("--profile", type=int, metavar="COUNT", help="time so many inputs of each reader")
    options = parser.parse_args()
    if options.profile:
        print("\n".join(_profiled(options.profile)))
    elif options.only:
        name, number = options.only[0], int(options.only[1])
        if name in HOSTILE:
            with HostileFiles() as hostile:
                print(hostile.tried([(name, number)]))
        else:
            data = made(READERS[name], number)
            print(name, data)
            print(READERS[name].read(data))
    else:
        print("\n".join(table(files.read_json_lines(options.file, Batch))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
