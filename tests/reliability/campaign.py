"""What all campaigns share: batches by seed, shards, a file that outlives interruptions, counts, an exit status.

The module of a campaign has one value `CAMPAIGN`; `python -m tests.reliability NAME` runs it. A batch is so many cases
that are drawn from one seed: it is what is repeated to look at a fault, and what an interruption can lose.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from buddy.compiler import json_lines

Say = Callable[[str], None]


class Fault(msgspec.Struct, frozen=True):
    """What went wrong, and what shows it again: a script, a recipe, the steps of a session."""

    outcome: str
    why: str
    what: str = ""


class Note(msgspec.Struct, frozen=True):
    """A case that ended as it may, for those who look at it later: its number in the batch, and what it was made of.

    `what` shows it again, where it is worth that.
    """

    number: int
    outcome: str
    why: str = ""
    marks: tuple[str, ...] = ()
    what: str = ""


class Tried(msgspec.Struct, frozen=True):
    """What came of the cases of one batch: how many ended how, and those that are faults.

    `facts` are what was measured besides, such as seconds, under the name of what they are of.
    """

    outcomes: dict[str, int]
    faults: tuple[Fault, ...] = ()
    facts: dict[str, list[float]] = {}
    notes: tuple[Note, ...] = ()


class Batch(msgspec.Struct, frozen=True):
    """One line of a campaign's file. `conditions` are what, beside the seed, decided what the batch holds."""

    campaign: str
    seed: int
    conditions: str
    tried: Tried
    seconds: float


Attempt = Callable[[int, int], Tried]


@dataclass(frozen=True)
class Campaign:
    """A campaign of `count` cases in batches of `batch`.

    `trial` is entered once, for what is dear to start, and gives what tries a batch: `attempt(seed, cases)`. What is
    tried may change with `conditions`; batches of others are not counted.
    """

    name: str
    summary: str
    count: int
    batch: int
    trial: Callable[[], AbstractContextManager[Attempt]]
    conditions: str = ""


@dataclass(frozen=True)
class Plan:
    """`count` cases from the batch of `seed` on, of which this is part `shard` (from 1, of so many)."""

    count: int
    seed: int = 0
    shard: tuple[int, int] = (1, 1)

    def seeds(self, batch: int) -> list[int]:
        """Those of this shard's batches of so many cases."""
        part, parts = self.shard
        numbers = range(self.seed, self.seed + math.ceil(self.count / batch))
        return [number for number in numbers if (number - self.seed) % parts == part - 1]


def run(campaign: Campaign, plan: Plan, known: Collection[int] = ()) -> Iterator[Batch]:
    """Try the batches of `plan`, but for those whose seeds are `known`, and yield each when it is done."""
    wanted = [seed for seed in plan.seeds(campaign.batch) if seed not in known]
    if not wanted:
        return
    cases = min(campaign.batch, plan.count)
    with campaign.trial() as attempt:
        for seed in wanted:
            start = time.perf_counter()
            tried = attempt(seed, cases)
            seconds = round(time.perf_counter() - start, 2)
            yield Batch(campaign.name, seed, campaign.conditions, tried, seconds)


def known(campaign: Campaign, output: Path | None) -> dict[int, Batch]:
    """The batches of a campaign that a file holds already, by seed. Raises `OSError`."""
    found = json_lines.read(output, Batch) if output is not None else []
    return {b.seed: b for b in found if (b.campaign, b.conditions) == (campaign.name, campaign.conditions)}


def carried_out(campaign: Campaign, plan: Plan, output: Path | None, say: Say) -> list[Batch]:
    """All batches of `plan`, those of `output` among them; new ones are added to it. Raises `OSError`."""
    batches, seeds = known(campaign, output), plan.seeds(campaign.batch)
    for batch in run(campaign, plan, batches):
        batches[batch.seed] = batch
        if output is not None:
            json_lines.append(output, batch)
        for fault in batch.tried.faults:
            say(f"{campaign.name}, seed {batch.seed}: {fault.outcome}: {fault.why}\n{fault.what}".rstrip())
        done = [batches[seed] for seed in seeds if seed in batches]
        say(f"batch {len(done)} of {len(seeds)} (seed {batch.seed}, {batch.seconds:.1f} s): {words(done)}")
    return [batches[seed] for seed in seeds if seed in batches]


def totals(batches: Collection[Batch]) -> Counter[str]:
    """How many cases of all batches ended how."""
    found: Counter[str] = Counter()
    for batch in batches:
        found.update(batch.tried.outcomes)
    return found


def faults(batches: Collection[Batch]) -> int:
    return sum(len(batch.tried.faults) for batch in batches)


def words(batches: Collection[Batch]) -> str:
    """A line for all batches: cases by outcome, the faults, and the distribution of what was measured."""
    found = totals(batches)
    counts = ", ".join(f"{count} {name}" for name, count in found.most_common())
    return " · ".join([f"{sum(found.values())} cases: {counts}", f"{faults(batches)} faults", *_measured(batches)])


def _measured(batches: Collection[Batch]) -> Iterator[str]:
    """The median, the 99th percentile and the largest of each thing that was measured."""
    found: dict[str, list[float]] = {}
    for batch in batches:
        for name, values in batch.tried.facts.items():
            found.setdefault(name, []).extend(values)
    for name, values in sorted(found.items()):
        values.sort()
        middle, late = values[len(values) // 2], values[min(len(values) - 1, len(values) * 99 // 100)]
        yield f"{name} {middle:.3g} / {late:.3g} / {values[-1]:.3g}"
