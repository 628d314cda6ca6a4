"""`buddy-tui fuzz`: compiles and runs random programs, compares them with eager, and reduces those that fail."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from buddy.app.cli import FAILURE, USAGE_ERROR, VERBS, arguments
from buddy.app.cli.console import Console
from buddy.app.cli.headless import reporting_write_errors
from buddy.app.cli.recipes import UsageError
from buddy.compiler.protocol import Diagnostic
from buddy.compiler.support import files
from buddy.compiler.tools.coverage.session import CoveragePlanError, parse_shard
from buddy.compiler.tools.fuzz import session
from buddy.compiler.tools.fuzz.session import BATCH, FAULTS, FuzzBatch, FuzzPlan, merge_histograms, read_batches, total

EPILOG = f"""
Programs are generated in batches of {BATCH}. Each batch has its own seed, so that a campaign can be repeated, split and
interrupted: with -o, batches are appended to FILE, one JSON object per line, and batches that FILE already has with the
same options are skipped. Each program runs in a separate process, so that a crash affects only that process. The
tolerance is the spread of eager runs with perturbed rounding. For each kind of failure in a batch, the smallest program
is written as a script that the workbench can open. Needs `pip install 'buddy-tui[fuzz]'`.
"""


def make_parser() -> arguments.Parser:
    parser = arguments.Parser("fuzz", VERBS["fuzz"], EPILOG)
    number = arguments.positive_number
    parser.add_argument(
        "--count", type=number, default=500, metavar="N", help=f"try N programs, in batches of {BATCH} (default: 500)"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="the seed of the first batch (default: 0)")
    parser.add_argument("--shard", default="1/1", metavar="I/N", help="only part I of N parts of the batches")
    parser.add_argument(
        "--statements",
        type=number,
        default=10,
        metavar="N",
        help="maximum number of statements in a program (default: 10)",
    )
    text = "stop a program that makes no progress for S seconds (default: 60)"
    parser.add_argument("--timeout", type=arguments.positive_seconds, default=60.0, metavar="S", help=text)
    parser.add_argument("--preset", default="default", help="compile with this preset (default: default)")
    text = "the dialect that ops are lowered to first"
    arguments.add_dialect_option(parser, ("linalg", "tosa"), default="linalg", help=text)
    parser.add_argument("--threads", type=number, default=1, metavar="N", help="threads of compiled code (default: 1)")
    parser.add_argument("--dynamic", action="store_true", help="compile for dynamic sizes, if possible")
    text = "also compare the gradients of inputs and weights"
    parser.add_argument("--gradients", action="store_true", help=text)
    text = "run this Python file first; it may define lowerings and passes; may be repeated"
    parser.add_argument("--extension", action="append", default=[], metavar="FILE", help=text)
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="append batches to FILE, and skip those that it has"
    )
    text = "with -o: repeat the batches in which programs failed"
    parser.add_argument("--again", action="store_true", help=text)
    parser.add_argument("--drawn", action="store_true", help="also print the distribution of the generated programs")
    text = "folder for programs that fail (default: fuzz-found)"
    parser.add_argument("--found", type=Path, default=Path("fuzz-found"), metavar="DIR", help=text)
    arguments.add_output_options(parser)
    return parser


def main(words: Sequence[str]) -> int:
    options = make_parser().parse_args(list(words))
    console = Console(options.plain, stdout_is_data=options.json)
    try:
        plan = _make_plan(options)
        previous = _read_batches(options, plan)
        batches = _run_batches(options, plan, previous, console)
    except CoveragePlanError as error:
        console.error(Diagnostic(str(error), todo="run buddy-tui fuzz --help"))
        return USAGE_ERROR
    except UsageError as error:
        console.error(Diagnostic(str(error)))
        return USAGE_ERROR
    except session.CampaignError as error:
        todo = "pip install 'buddy-tui[fuzz]'" if session.HYPOTHESIS_MISSING in str(error) else ""
        console.error(Diagnostic(f"the campaign process ended: {error}", todo=todo))
        return FAILURE
    console.clear_progress()
    return _print_outcomes(batches, options, console)


def _make_plan(options: argparse.Namespace) -> FuzzPlan:
    """The plan that the options describe. Raises `CoveragePlanError` if they are invalid."""
    compile_options = {"preset": options.preset, "dialect": options.dialect, "threads": options.threads}
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
        compile_options,
        extensions,
        dynamic=options.dynamic,
        gradients=options.gradients,
    )


def _read_batches(options: argparse.Namespace, plan: FuzzPlan) -> dict[int, FuzzBatch]:
    """The batches of FILE that need not run again, by seed. Raises `UsageError`."""
    path = options.output
    try:
        batches = read_batches(path, plan) if path is not None else {}
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from error
    return {seed: batch for seed, batch in batches.items() if not (options.again and batch.faults)}


def _run_batches(
    options: argparse.Namespace, plan: FuzzPlan, previous: dict[int, FuzzBatch], console: Console
) -> list[FuzzBatch]:
    """Runs the batches of `plan` that `previous` lacks, and writes each. Returns all batches of `plan`."""
    seeds, batches = plan.seeds(), dict(previous)
    for batch in session.run(plan, previous):
        batches[batch.seed] = batch
        if options.output:
            with reporting_write_errors(options.output):
                files.append_json_line(options.output, batch)
        _save_faults(options.found, batch, console)
        n_done = sum(seed in batches for seed in seeds)
        console.progress(f"batch {n_done} of {len(seeds)}: {_counts_text(total(batches.values()))}")
    return [batches[seed] for seed in seeds if seed in batches]


def _save_faults(folder: Path, batch: FuzzBatch, console: Console) -> None:
    """Writes each failing program of a batch as a script. Prints the failures, and the statements that crash eager."""
    for number, fault in enumerate(batch.faults, 1):
        suffix = f"_{number}" if number > 1 else ""
        path = folder / f"{fault.outcome}_{batch.seed}{suffix}.py"
        with reporting_write_errors(path):
            folder.mkdir(parents=True, exist_ok=True)
            path.write_text(fault.script)
        console.error(Diagnostic(f"{fault.outcome}: {fault.why}", str(path)))
    for statement in batch.crashing:
        console.error(
            Diagnostic(
                f"eager crashed on {statement}",
                f"the batch with seed {batch.seed}; it was repeated without this statement",
            )
        )


def _print_outcomes(batches: Sequence[FuzzBatch], options: argparse.Namespace, console: Console) -> int:
    """Prints the outcomes of all programs. Returns the exit code: a failure if any program is faulty."""
    outcomes, drawn = total(batches), merge_histograms(batch.drawn for batch in batches)
    n_faults = sum(outcomes[name] for name in FAULTS)
    if options.json:
        faults = [
            {"seed": batch.seed, "fault": fault.outcome, "why": fault.why, "script": fault.script}
            for batch in batches
            for fault in batch.faults
        ]
        summary = {"programs": sum(outcomes.values()), "outcomes": dict(outcomes), "found": faults, "drawn": drawn}
        print(json.dumps(summary, indent=2))
        return FAILURE if n_faults else 0
    console.print_output(f"{sum(outcomes.values())} programs: {_counts_text(outcomes)}\n")
    if options.drawn:
        for title, counts in drawn.items():
            console.print_output(f"{title}: {_counts_text(counts)}\n")
    return FAILURE if n_faults else 0


def _counts_text(counts: dict[str, int]) -> str:
    """The counts with their names, largest first."""
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items(), key=lambda pair: -pair[1]))
