"""Common parts of the campaigns: batches by seed, shards, a resumable file of results, counts, an exit status.

The module of a campaign has one value `CAMPAIGN`; `python -m tests.reliability NAME` runs it. A batch is a number of
cases drawn from one seed: it is the unit that is repeated to reproduce a fault, and that an interruption can lose.
"""

from __future__ import annotations

import asyncio
import math
import time
import traceback
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from buddy.compiler.support import files

Say = Callable[[str], None]


class Fault(msgspec.Struct, frozen=True):
    """A fault and its reproducer: a script, a recipe, or the steps of a session."""

    outcome: str
    why: str
    what: str = ""


class Note(msgspec.Struct, frozen=True):
    """A case with an accepted outcome that is kept for inspection: its number in the batch, and its features.

    `what` is a reproducer, if one is worth keeping.
    """

    number: int
    outcome: str
    why: str = ""
    marks: tuple[str, ...] = ()
    what: str = ""


class Tried(msgspec.Struct, frozen=True):
    """The results of one batch: the number of cases per outcome, and the faults.

    `facts` are additional measurements, such as seconds, by name.
    """

    outcomes: dict[str, int]
    faults: tuple[Fault, ...] = ()
    facts: dict[str, list[float]] = {}
    notes: tuple[Note, ...] = ()


class Batch(msgspec.Struct, frozen=True):
    """One line of a campaign's file.

    `conditions` are what determines the batch besides the seed and the number of `cases`. A line without a number of
    cases has the campaign's default.
    """

    campaign: str
    seed: int
    conditions: str
    tried: Tried
    seconds: float
    cases: int = 0


Attempt = Callable[[int, int], Tried]


@dataclass(frozen=True)
class Campaign:
    """A campaign of `count` cases in batches of `batch`.

    `trial` is entered once, for expensive setup, and returns the function that runs a batch: `attempt(seed, cases)`.
    Cases may depend on `conditions`; batches with other conditions are not counted.
    """

    name: str
    summary: str
    count: int
    batch: int
    trial: Callable[[], AbstractContextManager[Attempt]]
    conditions: str = ""


@dataclass(frozen=True)
class Plan:
    """`count` cases starting with the batch of `seed`.

    `shard` is the part to run here (from 1, and the number of parts).
    """

    count: int
    seed: int = 0
    shard: tuple[int, int] = (1, 1)

    def seeds(self, batch: int) -> list[int]:
        """The seeds of this shard's batches."""
        part, parts = self.shard
        numbers = range(self.seed, self.seed + math.ceil(self.count / batch))
        return [number for number in numbers if (number - self.seed) % parts == part - 1]

    def size(self, seed: int, batch: int) -> int:
        """The number of cases in the batch of a seed: the last batch may have fewer than `batch`."""
        return min(batch, self.count - batch * (seed - self.seed))


def run(campaign: Campaign, plan: Plan, known: Collection[int] = ()) -> Iterator[Batch]:
    """Runs the batches of `plan`, except for those with `known` seeds, and yields each when it is done.

    A batch that breaks off counts as one fault, with its traceback; the next one starts with a new setup.
    """
    wanted = [seed for seed in plan.seeds(campaign.batch) if seed not in known]
    while wanted:
        with campaign.trial() as attempt:
            whole = True
            while wanted and whole:
                seed = wanted.pop(0)
                cases = plan.size(seed, campaign.batch)
                start = time.perf_counter()
                tried, whole = _tried(attempt, seed, cases)
                seconds = round(time.perf_counter() - start, 2)
                yield Batch(campaign.name, seed, campaign.conditions, tried, seconds, cases)


def _tried(attempt: Attempt, seed: int, cases: int) -> tuple[Tried, bool]:
    """The results of a batch, and whether it finished."""
    try:
        return attempt(seed, cases), True
    except asyncio.CancelledError:
        # An event loop that is cancelling something else raises this for ctrl+c.
        raise KeyboardInterrupt from None
    except Exception as error:
        fault = Fault("broken off", f"{type(error).__name__}: {error}"[:2000], traceback.format_exc()[-6000:])
        return Tried({}, (fault,)), False


def known(campaign: Campaign, plan: Plan, output: Path | None, again: bool = False) -> dict[int, Batch]:
    """The batches of `plan` in a file, by seed; the last one of each counts.

    With `again`, batches with faults are left out. Raises `OSError`.
    """
    found = {}
    seeds = set(plan.seeds(campaign.batch))
    for each in files.read_json_lines(output, Batch) if output is not None else ():
        own = (each.campaign, each.conditions) == (campaign.name, campaign.conditions) and each.seed in seeds
        if own and (each.cases or campaign.batch) == plan.size(each.seed, campaign.batch):
            found[each.seed] = each
    return {seed: batch for seed, batch in found.items() if not (again and batch.tried.faults)}


def carried_out(campaign: Campaign, plan: Plan, output: Path | None, say: Say, again: bool = False) -> dict[int, Batch]:
    """All batches of `plan` by seed, including those in `output`; new ones are appended to it. Raises `OSError`."""
    batches = known(campaign, plan, output, again)
    for batch in run(campaign, plan, batches):
        batches[batch.seed] = batch
        if output is not None:
            files.append_json_line(output, batch)
        for fault in batch.tried.faults:
            say(f"{campaign.name}, seed {batch.seed}: {fault.outcome}: {fault.why}\n{fault.what}".rstrip())
        say(f"seed {batch.seed}, {batch.seconds:.1f} s; {told(campaign, plan, batches)}")
    return batches


def told(campaign: Campaign, plan: Plan, batches: Mapping[int, Batch]) -> str:
    """One line: the number of finished batches, and their outcomes."""
    return f"{len(batches)} of {len(plan.seeds(campaign.batch))} batches, {words(batches.values())}"


def totals(batches: Collection[Batch]) -> Counter[str]:
    """The number of cases per outcome over all batches."""
    found: Counter[str] = Counter()
    for batch in batches:
        found.update(batch.tried.outcomes)
    return found


def faults(batches: Collection[Batch]) -> int:
    return sum(len(batch.tried.faults) for batch in batches)


def words(batches: Collection[Batch]) -> str:
    """One line for all batches: cases by outcome, the faults, and the distribution of the measurements."""
    found = totals(batches)
    counts = ", ".join(f"{count} {name}" for name, count in found.most_common())
    return " · ".join([f"{sum(found.values())} cases: {counts}", f"{faults(batches)} faults", *_measured(batches)])


def _measured(batches: Collection[Batch]) -> Iterator[str]:
    """The median, the 99th percentile and the maximum of each measurement."""
    found: dict[str, list[float]] = {}
    for batch in batches:
        for name, values in batch.tried.facts.items():
            found.setdefault(name, []).extend(values)
    for name, values in sorted(found.items()):
        if not values:
            continue
        values.sort()
        middle, late = values[len(values) // 2], values[min(len(values) - 1, len(values) * 99 // 100)]
        yield f"{name} {middle:.3g} / {late:.3g} / {values[-1]:.3g}"
