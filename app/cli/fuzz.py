"""`buddy-tui fuzz`: compiles and runs random programs, compares them with eager, and reduces those that fail."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from buddy.app.cli import FAILURE, USAGE, VERBS, arguments
from buddy.app.cli.console import Console
from buddy.app.cli.headless import reporting_write_errors
from buddy.app.cli.recipes import UsageError
from buddy.compiler.protocol import Diagnostic
from buddy.compiler.support import files
from buddy.compiler.tools.coverage.plan import CoveragePlanError, parse_shard
from buddy.compiler.tools.fuzz import session
from buddy.compiler.tools.fuzz.session import BATCH, FAULTS, FuzzBatch, FuzzPlan, merged, read, total

EPILOG = f"""
Programs are generated in batches of {BATCH}. Each batch has its own seed, so that a campaign can be repeated, split and
interrupted: with -o, batches are appended to FILE, one JSON object per line, and batches that FILE already has with the
same options are skipped. Each program runs in a separate process, which may crash. The tolerance is the spread of eager
runs with perturbed roundings. For each kind of failure in a batch, the smallest program is written as a script that the
workbench can open. Needs `pip install 'buddy-tui[fuzz]'`.
"""


def parser() -> arguments.Parser:
    found = arguments.Parser("fuzz", VERBS["fuzz"], EPILOG)
    number = arguments.positive_number
    found.add_argument(
        "--count", type=number, default=500, metavar="N", help=f"try N programs, in batches of {BATCH} (500)"
    )
    found.add_argument("--seed", type=int, default=0, metavar="S", help="the seed of the first batch (0)")
    found.add_argument("--shard", default="1/1", metavar="I/N", help="only part I of N parts of the batches")
    found.add_argument(
        "--statements", type=number, default=10, metavar="N", help="maximum number of statements in a program (10)"
    )
    text = "stop a program that makes no progress for S seconds (60)"
    found.add_argument("--timeout", type=arguments.positive_seconds, default=60.0, metavar="S", help=text)
    found.add_argument("--preset", default="default", help="compile with this preset ('default')")
    text = "the dialect that ops are lowered to first"
    arguments.add_dialect_option(found, ("linalg", "tosa"), default="linalg", help=text)
    found.add_argument("--threads", type=number, default=1, metavar="N", help="threads of compiled code (1)")
    found.add_argument("--dynamic", action="store_true", help="compile for dynamic sizes, if possible")
    text = "also compare the gradients of inputs and weights"
    found.add_argument("--gradients", action="store_true", help=text)
    text = "run this Python file first; it may define lowerings and passes; may be repeated"
    found.add_argument("--extension", action="append", default=[], metavar="FILE", help=text)
    found.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="append batches to FILE, and skip those that it has"
    )
    text = "with -o: repeat the batches in which programs failed"
    found.add_argument("--again", action="store_true", help=text)
    found.add_argument("--drawn", action="store_true", help="also print the distribution of the generated programs")
    text = "folder for programs that fail ('fuzz-found')"
    found.add_argument("--found", type=Path, default=Path("fuzz-found"), metavar="DIR", help=text)
    arguments.add_output_options(found)
    return found


def main(words: Sequence[str]) -> int:
    options = parser().parse_args(list(words))
    console = Console(options.plain, stdout_is_data=options.json)
    try:
        plan = _plan(options)
        batches = _known(options, plan)
        tried = _run_batches(options, plan, batches, console)
    except CoveragePlanError as error:
        console.error(Diagnostic(str(error), todo="run buddy-tui fuzz --help"))
        return USAGE
    except UsageError as error:
        console.error(Diagnostic(str(error)))
        return USAGE
    except session.CampaignError as error:
        todo = "pip install 'buddy-tui[fuzz]'" if session.MISSING in str(error) else ""
        console.error(Diagnostic(f"the campaign process ended: {error}", todo=todo))
        return FAILURE
    console.done()
    return _report(tried, options, console)


def _plan(options: argparse.Namespace) -> FuzzPlan:
    chosen = {"preset": options.preset, "dialect": options.dialect, "threads": options.threads}
    extensions = tuple(str(Path(path).resolve()) for path in options.extension)
    for path in extensions:
        if not Path(path).is_file():
            raise CoveragePlanError(f"file not found: {path}")
    shard = parse_shard(options.shard)
    return FuzzPlan(
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


def _known(options: argparse.Namespace, plan: FuzzPlan) -> dict[int, FuzzBatch]:
    """The batches of an earlier campaign in its file."""
    path = options.output
    try:
        found = read(path, plan) if path is not None else {}
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from error
    return {seed: batch for seed, batch in found.items() if not (options.again and batch.faults)}


def _run_batches(
    options: argparse.Namespace, plan: FuzzPlan, batches: dict[int, FuzzBatch], console: Console
) -> list[FuzzBatch]:
    wanted = plan.seeds()
    for batch in session.run(plan, batches):
        batches[batch.seed] = batch
        if options.output:
            with reporting_write_errors(options.output):
                files.append_json_line(options.output, batch)
        _save_faults(options.found, batch, console)
        done = sum(seed in batches for seed in wanted)
        console.progress(f"batch {done} of {len(wanted)}: {_words(total(batches.values()))}")
    return [batches[seed] for seed in wanted if seed in batches]


def _save_faults(folder: Path, batch: FuzzBatch, console: Console) -> None:
    for number, fault in enumerate(batch.faults):
        path = folder / f"{fault.outcome}_{batch.seed}{f'_{number + 1}' * bool(number)}.py"
        with reporting_write_errors(path):
            folder.mkdir(parents=True, exist_ok=True)
            path.write_text(fault.script)
        console.error(Diagnostic(f"{fault.outcome}: {fault.why}", f"{path}"))
    for statement in batch.deadly:
        console.error(
            Diagnostic(
                f"eager crashed on {statement}",
                f"the batch with seed {batch.seed}; it was repeated without this statement",
            )
        )


def _report(batches: Sequence[FuzzBatch], options: argparse.Namespace, console: Console) -> int:
    outcomes, drawn = total(batches), merged(batch.drawn for batch in batches)
    faults = sum(outcomes[name] for name in FAULTS)
    if options.json:
        found = [
            {"seed": batch.seed, "fault": fault.outcome, "why": fault.why, "script": fault.script}
            for batch in batches
            for fault in batch.faults
        ]
        summary = {"programs": sum(outcomes.values()), "outcomes": dict(outcomes), "found": found, "drawn": drawn}
        print(json.dumps(summary, indent=2))
        return FAILURE if faults else 0
    console.printed(f"{sum(outcomes.values())} programs: {_words(outcomes)}\n", "stdout")
    for table, counts in drawn.items() if options.drawn else ():
        console.printed(f"{table}: {_words(counts)}\n", "stdout")
    return FAILURE if faults else 0


def _words(outcomes: dict[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(outcomes.items(), key=lambda pair: -pair[1]))
