"""All campaigns one after the other, each in a process of its own: what one leaves in memory is no other's.

However this process ends, the campaign that is under way ends with it: it is told to, in order, by a signal that ends
this one, and killed by the kernel where this one is killed.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from buddy.app.cli import fuzz
from buddy.compiler.support.processes.parent_death import describe_exit, from_its_first_moment
from buddy.compiler.tools.fuzz import plan as fuzzing
from tests.reliability import campaign as campaigns
from tests.reliability.campaign import Campaign, Plan

# Random programs are the product's own command.
PROGRAMS, PROGRAMS_COUNT = "programs", 10_000
# Seconds in which a campaign that is told to end gives back what it has, on a machine with much else to do.
GRACE = 180.0


@dataclass(frozen=True)
class Run:
    """One campaign: the words for Python that carry it out, and what its file says of it."""

    name: str
    command: tuple[str, ...]
    plan: Plan
    path: Path
    campaign: Campaign | None = None

    def told(self) -> str:
        """The batches that there are, of how many, and what came of their cases."""
        if self.campaign is not None:
            return campaigns.told(self.campaign, self.plan, campaigns.known(self.campaign, self.plan, self.path))
        plan = fuzz._plan(fuzz.parser().parse_args(self.command[3:]))
        batches = fuzzing.read(self.path, plan)
        found = fuzzing.total(batches.values())
        counts = ", ".join(f"{count} {name}" for name, count in found.most_common())
        faults = sum(len(batch.faults) for batch in batches.values())
        return f"{len(batches)} of {len(plan.seeds())} batches, {found.total()} cases: {counts} · {faults} faults"


def everything(chosen: list[Campaign], options: argparse.Namespace, shard: tuple[int, int]) -> int:
    """Carry out the campaigns `chosen`, and random programs, with files in the folder `options.output`."""
    with _folder(options.output) as folder:
        runs = [*(_run(each, options, shard, folder) for each in chosen), programs(options, shard, folder)]
        return carried_out(runs, folder)


def carried_out(runs: list[Run], folder: Path) -> int:
    """One run after the other, then a line for each. 0 where all were done and had no faults, else 1."""
    ended: dict[str, int] = {}
    try:
        for run in runs:
            ended[run.name] = _status(run, folder)
    finally:
        print("\nall campaigns", flush=True)
        for run in runs:
            print(f"{run.name}: {_ending(ended.get(run.name))}; {run.told()}", flush=True)
    return 1 if any(ended.values()) else 0


def cases(options: argparse.Namespace, meant: int) -> int:
    """How many cases are asked for, of a campaign that is meant for so many."""
    return options.count or max(1, round(meant * options.part))


@contextmanager
def _folder(output: Path | None) -> Iterator[Path]:
    """Where the files go: `output`, or a folder that is there as long as the campaigns are."""
    if output is not None:
        output.mkdir(parents=True, exist_ok=True)
        yield output
        return
    with tempfile.TemporaryDirectory(prefix="buddy-campaigns-") as folder:
        yield Path(folder)


def _run(chosen: Campaign, options: argparse.Namespace, shard: tuple[int, int], folder: Path) -> Run:
    plan = Plan(cases(options, chosen.count), options.seed, shard)
    path = folder / f"{chosen.name}.jsonl"
    words = ("-m", "tests.reliability", chosen.name, *_words(options, plan), "--output", str(path))
    return Run(chosen.name, words, plan, path, chosen)


def programs(options: argparse.Namespace, shard: tuple[int, int], folder: Path) -> Run:
    plan = Plan(cases(options, PROGRAMS_COUNT), options.seed, shard)
    path = folder / f"{PROGRAMS}.jsonl"
    found = Path(options.output or ".") / "fuzz-found"
    words = ("-m", "buddy_tui", "fuzz", *_words(options, plan), "-o", str(path), "--found", str(found))
    return Run(PROGRAMS, words, plan, path)


def _words(options: argparse.Namespace, plan: Plan) -> tuple[str, ...]:
    found = ("--count", str(plan.count), "--seed", str(plan.seed), "--shard", options.shard)
    return (*found, "--again") if options.again else found


def _status(run: Run, folder: Path) -> int:
    """Carry one campaign out; the exit status of its process."""
    print(f"\n{run.name}: python {' '.join(run.command)}", flush=True)
    process = subprocess.Popen(
        [sys.executable, *run.command],
        stdin=subprocess.DEVNULL,
        env={"BUDDY_SOAK_SAMPLES": str(folder / "soak.samples"), **os.environ},
        # A group of its own: what is typed at the terminal comes to this process, which tells it once.
        process_group=0,
        preexec_fn=from_its_first_moment(),
    )
    try:
        return process.wait()
    except KeyboardInterrupt:
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE)
        raise
    finally:
        process.kill()
        process.wait()


def _ending(status: int | None) -> str:
    if status is None:
        return "not done"
    return {0: "no faults", 1: "faults, or it could not be done"}.get(status, f"ended with {describe_exit(status)}")
