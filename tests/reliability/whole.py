"""Runs all campaigns one after the other, each in a separate process, so that they share no memory.

When this process ends, so does the running campaign: it is ended by a signal if this one is, and killed by the kernel
if this one is killed.
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
from buddy.compiler.support.processes.lifetime import describe_exit, start_with_pipe
from buddy.compiler.tools.fuzz import session as fuzzing
from tests.reliability import campaign as campaigns
from tests.reliability.campaign import Campaign, Plan

# Random programs are a command of the product.
PROGRAMS, PROGRAMS_COUNT = "programs", 10_000
# Seconds for a campaign to end when requested, on a loaded machine.
GRACE = 180.0


@dataclass(frozen=True)
class Run:
    """One campaign: the Python arguments that run it, and the summary of its file."""

    name: str
    command: tuple[str, ...]
    plan: Plan
    path: Path
    campaign: Campaign | None = None

    def told(self) -> str:
        """The number of finished and of all batches, and the outcomes of their cases."""
        if self.campaign is not None:
            return campaigns.told(self.campaign, self.plan, campaigns.known(self.campaign, self.plan, self.path))
        plan = fuzz._make_plan(fuzz.make_parser().parse_args(self.command[3:]))
        batches = fuzzing.read_batches(self.path, plan)
        found = fuzzing.total(batches.values())
        counts = ", ".join(f"{count} {name}" for name, count in found.most_common())
        faults = sum(len(batch.faults) for batch in batches.values())
        return f"{len(batches)} of {len(plan.seeds())} batches, {found.total()} cases: {counts} · {faults} faults"


def everything(chosen: list[Campaign], options: argparse.Namespace, shard: tuple[int, int]) -> int:
    """Runs the campaigns `chosen`, and random programs, with files in the folder `options.output`."""
    with _folder(options.output) as folder:
        runs = [*(_run(each, options, shard, folder) for each in chosen), programs(options, shard, folder)]
        return carried_out(runs, folder)


def carried_out(runs: list[Run], folder: Path) -> int:
    """Runs one after the other, then prints a line for each. Returns 0 if all finished without faults, else 1."""
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
    """The requested number of cases, of a campaign with so many by default."""
    return options.count or max(1, round(meant * options.part))


@contextmanager
def _folder(output: Path | None) -> Iterator[Path]:
    """The folder of the files: `output`, or a temporary one."""
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
    """Runs one campaign; returns the exit status of its process."""
    print(f"\n{run.name}: python {' '.join(run.command)}", flush=True)
    process, lifetime = start_with_pipe(
        [sys.executable, *run.command],
        stdin=subprocess.DEVNULL,
        env={"BUDDY_SOAK_SAMPLES": str(folder / "soak.samples"), **os.environ},
        # A separate process group: keys at the terminal only reach this process, which forwards the signal once.
        process_group=0,
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
        lifetime.close()
        process.wait()


def _ending(status: int | None) -> str:
    if status is None:
        return "not done"
    return {0: "no faults", 1: "faults, or it could not be done"}.get(status, f"ended with {describe_exit(status)}")
