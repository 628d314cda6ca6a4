"""`buddy-tui fuzz`: random programs, compiled, run and compared with eager; what fails is made smaller."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from buddy.app.cli import FAILURE, USAGE, VERBS, arguments
from buddy.app.cli.console import Console
from buddy.app.cli.files import writing
from buddy.app.cli.recipes import UsageError
from buddy.compiler.protocol import Diagnostic
from buddy.compiler.support import json_lines
from buddy.compiler.tools.coverage.plan import PlanError, parse_shard
from buddy.compiler.tools.fuzz import session
from buddy.compiler.tools.fuzz.plan import BATCH, FAULTS, Batch, Plan, merged, read, total

EPILOG = f"""
Programs are drawn {BATCH} at a time, each batch from a seed of its own, so that a campaign can be repeated, shared out
and interrupted: with -o, batches are appended to FILE, one JSON object a line, and those that are there already, of the
same options, are not tried again. Each program runs in a process that may die. Results may be off by what other
roundings make of them in eager. For each way in which programs of a batch fail, the smallest is written to a script
that the workbench opens. Needs `pip install 'buddy-tui[fuzz]'`.
"""


def parser() -> arguments.Parser:
    found = arguments.Parser("fuzz", VERBS["fuzz"], EPILOG)
    number = arguments.positive_number
    found.add_argument(
        "--count", type=number, default=500, metavar="N", help=f"try N programs, in batches of {BATCH} (500)"
    )
    found.add_argument("--seed", type=int, default=0, metavar="S", help="the first batch's seed (0)")
    found.add_argument("--shard", default="1/1", metavar="I/N", help="only part I of N parts of the batches")
    found.add_argument(
        "--statements", type=number, default=10, metavar="N", help="statements of a program at most (10)"
    )
    text = "give up on a program that says nothing for S seconds (60)"
    found.add_argument("--timeout", type=arguments.positive_seconds, default=60.0, metavar="S", help=text)
    found.add_argument("--preset", default="default", help="compile with this preset ('default')")
    found.add_argument("--flavour", choices=("linalg", "tosa"), default="linalg", help="which dialect is tried first")
    found.add_argument("--threads", type=number, default=1, metavar="N", help="threads of compiled code (1)")
    found.add_argument("--dynamic", action="store_true", help="compile for any sizes, where that is possible")
    text = "compare the gradients of inputs and weights as well"
    found.add_argument("--gradients", action="store_true", help=text)
    text = "a Python file to run first, which may define lowerings and passes; may be given more than once"
    found.add_argument("--extension", action="append", default=[], metavar="FILE", help=text)
    found.add_argument("-o", "--output", type=Path, metavar="FILE", help="append batches to FILE, and go on from it")
    text = "with -o: try the batches in which programs failed again"
    found.add_argument("--again", action="store_true", help=text)
    found.add_argument("--drawn", action="store_true", help="also tell of what the programs were made")
    text = "where programs that fail are written ('fuzz-found')"
    found.add_argument("--found", type=Path, default=Path("fuzz-found"), metavar="DIR", help=text)
    arguments.add_output_options(found)
    return found


def main(words: Sequence[str]) -> int:
    options = parser().parse_args(list(words))
    console = Console(options.plain, stdout_is_data=options.json)
    try:
        plan = _plan(options)
        batches = _known(options, plan)
        tried = _tried(options, plan, batches, console)
    except PlanError as error:
        console.error(Diagnostic(str(error), todo="see buddy-tui fuzz --help"))
        return USAGE
    except UsageError as error:
        console.error(Diagnostic(str(error)))
        return USAGE
    except session.CampaignError as error:
        todo = "pip install 'buddy-tui[fuzz]'" if session.MISSING in str(error) else ""
        console.error(Diagnostic(f"the campaign's process ended: {error}", todo=todo))
        return FAILURE
    console.done()
    return _told(tried, options, console)


def _plan(options: argparse.Namespace) -> Plan:
    chosen = {"preset": options.preset, "flavour": options.flavour, "threads": options.threads}
    extensions = tuple(str(Path(path).resolve()) for path in options.extension)
    for path in extensions:
        if not Path(path).is_file():
            raise PlanError(f"there is no file {path}")
    shard = parse_shard(options.shard)
    return Plan(
        options.count,
        options.seed,
        shard,
        options.statements,
        options.timeout,
        chosen,
        extensions,
        options.dynamic,
        options.gradients,
    )


def _known(options: argparse.Namespace, plan: Plan) -> dict[int, Batch]:
    """What a campaign before has left in its file."""
    path = options.output
    try:
        found = read(path, plan) if path is not None else {}
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from error
    return {seed: batch for seed, batch in found.items() if not (options.again and batch.faults)}


def _tried(options: argparse.Namespace, plan: Plan, batches: dict[int, Batch], console: Console) -> list[Batch]:
    wanted = plan.seeds()
    for batch in session.run(plan, batches):
        batches[batch.seed] = batch
        if options.output:
            with writing(options.output):
                json_lines.append(options.output, batch)
        _keep(options.found, batch, console)
        done = sum(seed in batches for seed in wanted)
        console.progress(f"batch {done} of {len(wanted)}: {_words(total(batches.values()))}")
    return [batches[seed] for seed in wanted if seed in batches]


def _keep(folder: Path, batch: Batch, console: Console) -> None:
    for number, fault in enumerate(batch.faults):
        path = folder / f"{fault.outcome}_{batch.seed}{f'_{number + 1}' * bool(number)}.py"
        with writing(path):
            folder.mkdir(parents=True, exist_ok=True)
            path.write_text(fault.script)
        console.error(Diagnostic(f"{fault.outcome}: {fault.why}", f"{path}"))
    for statement in batch.deadly:
        console.error(
            Diagnostic(f"eager itself died of {statement}", f"the batch of seed {batch.seed}, tried without it")
        )


def _told(batches: Sequence[Batch], options: argparse.Namespace, console: Console) -> int:
    outcomes, drawn = total(batches), merged(batch.drawn for batch in batches)
    faults = sum(outcomes[name] for name in FAULTS)
    if options.json:
        found = [
            {"seed": batch.seed, "fault": fault.outcome, "why": fault.why, "script": fault.script}
            for batch in batches
            for fault in batch.faults
        ]
        told = {"programs": sum(outcomes.values()), "outcomes": dict(outcomes), "found": found, "drawn": drawn}
        print(json.dumps(told, indent=2))
        return FAILURE if faults else 0
    console.printed(f"{sum(outcomes.values())} programs: {_words(outcomes)}\n", "stdout")
    for table, counts in drawn.items() if options.drawn else ():
        console.printed(f"{table}: {_words(counts)}\n", "stdout")
    return FAILURE if faults else 0


def _words(outcomes: dict[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(outcomes.items(), key=lambda pair: -pair[1]))
