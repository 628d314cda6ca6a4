"""`python -m tests.reliability NAME`: runs one campaign, or all of them one after the other with their full counts.

A campaign prints a line for each batch, every fault with a reproducer, and at the end the counts. With `--output FILE`
batches are appended to a file of JSON lines, and batches that it contains are skipped; for `all`, FILE is a folder with
a file for each campaign, and the last lines show the outcomes of each.

The exit status is 0 if everything ran without a fault, 1 otherwise, and 2 for invalid arguments. SIGINT (ctrl+c),
SIGTERM and SIGHUP end a campaign with all its processes, with status 130, 143 and 129; the same command resumes it.

    python -m tests.reliability all --output FOLDER               # hours
    python -m tests.reliability all --output FOLDER --part 0.01   # a hundredth of each, as a quick check
"""

from __future__ import annotations

import argparse
import importlib
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from buddy.compiler.tools.coverage.session import CoveragePlanError, parse_shard
from tests.reliability import whole
from tests.reliability.campaign import Campaign, Plan, carried_out, faults, told

# Each is a module of this package.
NAMES = ("drills", "far_drills", "recipes", "inputs", "verdicts", "soak")


def campaign(name: str) -> Campaign:
    """The campaign of the module `name`."""
    found: Campaign = importlib.import_module(f"tests.reliability.{name}").CAMPAIGN
    return found


def main(arguments: Sequence[str]) -> int:
    options = _parser().parse_args(list(arguments))
    try:
        shard = parse_shard(options.shard)
        if options.name == "all":
            return whole.everything([campaign(name) for name in NAMES], options, shard)
        return _one(campaign(options.name), options, shard)
    except CoveragePlanError as error:
        print(error, file=sys.stderr)
        return 2


def _one(chosen: Campaign, options: argparse.Namespace, shard: tuple[int, int]) -> int:
    plan = Plan(whole.cases(options, chosen.count), options.seed, shard)
    print(f"{chosen.name}: {chosen.summary}; {plan.count} cases, seed {plan.seed}, shard {options.shard}", flush=True)
    batches = carried_out(chosen, plan, options.output, lambda text: print(text, flush=True), options.again)
    print(f"{chosen.name}: {told(chosen, plan, batches)}", flush=True)
    return 1 if faults(batches.values()) else 0


# ---- the command line ------------------------------------------------------------------------------------------------


def _parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(
        prog="python -m tests.reliability", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    found.add_argument("name", choices=(*NAMES, "all"), help="which campaign")
    many = found.add_mutually_exclusive_group()
    many.add_argument("--count", type=_count, metavar="N", help="how many cases (as many as each is meant for)")
    many.add_argument("--part", type=_part, default=1.0, metavar="P", help="this part of the cases it is meant for (1)")
    found.add_argument("--seed", type=int, default=0, metavar="S", help="the seed of the first batch (0)")
    found.add_argument("--shard", default="1/1", metavar="I/N", help="only part I of N parts of the batches (1/1)")
    found.add_argument("--output", type=Path, metavar="FILE", help="add batches to FILE, and go on from it")
    found.add_argument("--again", action="store_true", help="with --output: try batches that had faults once more")
    return found


def _count(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"a number from 1 on, not {text!r}")
    return int(text)


def _part(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 0.0 < found <= 1.0:
        raise argparse.ArgumentTypeError(f"a number above 0, up to 1, such as 0.01, not {text!r}")
    return found


# ---- exit ------------------------------------------------------------------------------------------------------------


def _ended_in_order() -> int:
    """Returns the result of `main`; after a signal all processes are ended, and the status is that of a shell."""
    heard: list[int] = []

    def end(number: int, _frame: FrameType | None) -> None:
        heard.append(number)
        signal.raise_signal(signal.SIGINT)  # handled by the event loop while it runs

    # Also if a parent that started it in the background has SIGINT ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, end)
    try:
        return main(sys.argv[1:])
    except KeyboardInterrupt:
        by = heard[0] if heard else signal.SIGINT
        print(f"interrupted by {signal.Signals(by).name}", file=sys.stderr)
        return 128 + by


if __name__ == "__main__":
    sys.exit(_ended_in_order())
