"""`python -m tests.reliability NAME`: one campaign, or all of them one after the other with their full counts.

A campaign prints a line for each batch, every fault with what shows it again, and at the end the counts. With
`--output FILE` batches are added to a file of JSON lines, and those that it holds already are not tried again; for
`all`, FILE is a folder with a file for each. The exit status is 0 where there were no faults, 1 where there were, 2 for
words that mean nothing.
"""

from __future__ import annotations

import argparse
import importlib
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from buddy.compiler.coverage.plan import PlanError, parse_shard
from tests.reliability.campaign import Campaign, Plan, carried_out, faults, words

# Each is a module beside this one; random programs are the product's own command.
NAMES = ("drills", "far_drills", "recipes", "inputs", "soak")
PROGRAMS = 10_000


def campaign(name: str) -> Campaign:
    """The campaign of the module `name`."""
    found: Campaign = importlib.import_module(f"tests.reliability.{name}").CAMPAIGN
    return found


def main(arguments: Sequence[str]) -> int:
    options = _parser().parse_args(list(arguments))
    try:
        shard = parse_shard(options.shard)
    except PlanError as error:
        print(error, file=sys.stderr)
        return 2
    if options.name != "all":
        return _one(campaign(options.name), options, shard, options.output)
    statuses = []
    for name in NAMES:
        output = options.output / f"{name}.jsonl" if options.output else None
        statuses.append(_one(campaign(name), options, shard, output))
    statuses.append(_programs(options))
    return max(statuses)


def _one(chosen: Campaign, options: argparse.Namespace, shard: tuple[int, int], output: Path | None) -> int:
    plan = Plan(options.count or chosen.count, options.seed, shard)
    print(f"{chosen.name}: {chosen.summary}; {plan.count} cases, seed {plan.seed}, shard {options.shard}", flush=True)
    batches = carried_out(chosen, plan, output, lambda text: print(text, flush=True))
    print(f"{chosen.name}: {words(batches)}", flush=True)
    return 1 if faults(batches) else 0


def _programs(options: argparse.Namespace) -> int:
    count = str(options.count or PROGRAMS)
    command = ["buddy_tui", "fuzz", "--count", count, "--seed", str(options.seed), "--shard", options.shard]
    if options.output:
        command += ["-o", str(options.output / "programs.jsonl"), "--found", str(options.output / "found")]
    print(f"programs: buddy-tui {' '.join(command[1:])}", flush=True)
    return subprocess.run([sys.executable, "-m", *command]).returncode


def _parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(
        prog="python -m tests.reliability", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    found.add_argument("name", choices=(*NAMES, "all"), help="which campaign")
    found.add_argument("--count", type=int, metavar="N", help="how many cases (as many as the campaign is meant for)")
    found.add_argument("--seed", type=int, default=0, metavar="S", help="the seed of the first batch (0)")
    found.add_argument("--shard", default="1/1", metavar="I/N", help="only part I of N parts of the batches (1/1)")
    found.add_argument("--output", type=Path, metavar="FILE", help="add batches to FILE, and go on from it")
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
