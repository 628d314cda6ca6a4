"""`buddy-tui coverage`: compiles PyTorch's operator samples, runs them and compares them with eager."""

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
from buddy.compiler.support.cluster import ClusterError
from buddy.compiler.tools.coverage import report, session
from buddy.compiler.tools.coverage.session import (
    DEFAULT_DTYPES,
    RIGHT_OUTCOMES,
    CoveragePlan,
    CoveragePlanError,
    OpDtypePair,
    PairResult,
    parse_shard,
)

EPILOG = """
Samples are those of PyTorch's OpInfo database (torch.testing, which needs `pip install expecttest`). Each operator and
dtype is checked in a separate process, so that a crash affects only that process. With -o, results are appended to
FILE, one JSON object per line, and operators that FILE already has are skipped, so interrupted runs and shards can be
continued.
"""


def make_parser() -> arguments.Parser:
    parser = arguments.Parser("coverage", VERBS["coverage"], EPILOG)
    parser.add_argument(
        "--only", default="", metavar="A,B", help="only these operators: names, or patterns such as 'linalg.*'"
    )
    parser.add_argument(
        "--dtypes",
        default=",".join(DEFAULT_DTYPES),
        metavar="A,B",
        help=f"dtypes (default: {','.join(DEFAULT_DTYPES)})",
    )
    parser.add_argument(
        "--backward", action="store_true", help="compare gradients too, of the operators that have them"
    )
    text = "at most N distinct samples of each operator and dtype (default: 4)"
    parser.add_argument("--samples", type=arguments.positive_number, default=4, metavar="N", help=text)
    parser.add_argument("--shard", default="1/1", metavar="I/N", help="only part I of N parts of the list")
    text = "stop a program that makes no progress for S seconds (default: 60)"
    parser.add_argument("--timeout", type=arguments.positive_seconds, default=60.0, metavar="S", help=text)
    parser.add_argument("--preset", default="default", help="compile with this preset (default: default)")
    text = "the dialect that ops are lowered to first"
    arguments.add_dialect_option(parser, ("linalg", "tosa"), default="linalg", help=text)
    text = "run this Python file first; it may define op classes and lowerings; may be repeated"
    parser.add_argument("--extension", action="append", default=[], metavar="FILE", help=text)
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="append results to FILE, and skip those that it has"
    )
    text = "with -o: check operators of FILE again that have one of these outcomes, such as eager,wrong,crash"
    parser.add_argument("--again", default="", metavar="A,B", help=text)
    parser.add_argument("--report", type=Path, metavar="PAGE", help="write a report in Markdown")
    text = "run on the workers of a Dask cluster, such as tcp://127.0.0.1:8786"
    parser.add_argument("--cluster", metavar="ADDRESS", default="", help=text)
    arguments.add_output_options(parser)
    return parser


def main(words: Sequence[str]) -> int:
    options = make_parser().parse_args(list(words))
    console = Console(options.plain, stdout_is_data=options.json)
    try:
        return _run_coverage(options, _make_plan(options), console)
    except CoveragePlanError as error:
        console.error(Diagnostic(str(error), todo="run buddy-tui coverage --help"))
        return USAGE_ERROR
    except UsageError as error:
        console.error(Diagnostic(str(error)))
        return USAGE_ERROR
    except ClusterError as error:
        console.error(error.diagnostic)
        return FAILURE
    except session.CoverageError as error:
        console.error(Diagnostic(f"the coverage process ended: {error}"))
        return FAILURE


def _make_plan(options: argparse.Namespace) -> CoveragePlan:
    """The plan that the options describe. Raises `CoveragePlanError` if they are invalid."""
    operators = tuple(name for name in options.only.split(",") if name)
    dtypes = tuple(name for name in options.dtypes.split(",") if name)
    shard = parse_shard(options.shard)
    extensions = tuple(str(Path(path).resolve()) for path in options.extension)
    for path in extensions:
        if not Path(path).is_file():
            raise CoveragePlanError(f"file not found: {path}")
    return CoveragePlan(
        operators, dtypes, options.samples, options.timeout, shard, options.preset, options.dialect, extensions,
        backward=options.backward,
    )  # fmt: skip


def _read_results(path: Path, plan: CoveragePlan) -> dict[OpDtypePair, PairResult]:
    """The results in the file `path`, which has those of earlier runs. Raises `UsageError` if it cannot be read."""
    try:
        return session.read_results(path, plan.backward)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from error


def _run_coverage(options: argparse.Namespace, plan: CoveragePlan, console: Console) -> int:
    """Checks the operators of `plan`, and prints the summary. Returns the exit code. Raises `UsageError`."""
    results = _read_results(options.output, plan) if options.output else {}
    if options.report and (options.report.is_dir() or not options.report.parent.is_dir()):
        raise UsageError(f"cannot write to {options.report}: it is a folder, or its folder does not exist")
    previous_results = dict(results)

    def record_result(number: int, count: int, result: PairResult) -> None:
        results[result.pair] = result
        if options.output:
            with reporting_write_errors(options.output):
                files.append_json_line(options.output, result)
        console.progress(f"{number}/{count} {result.op} {result.dtype}: {result.outcome}")
        if not options.json and result.outcome != "compiled":
            console.print_output(report.pair_line(result) + "\n")

    listing = session.run(plan, results, options.again.split(","), record_result, options.cluster)
    console.clear_progress()
    selected_results = [results[pair] for pair in listing.pairs if pair in results]
    if options.report:
        with reporting_write_errors(options.report):
            options.report.write_text(report.markdown(selected_results, listing, plan))
    summary = report.summary(selected_results, listing.core)
    summary |= {
        "reasons": report.top_reasons(selected_results),
        "changed": report.outcome_changes(previous_results, selected_results),
    }
    text = "\n\n".join(filter(None, (report.statistics_text(summary), report.conclusions(summary))))
    print(json.dumps(summary, indent=2) if options.json else text)
    return 0 if all(result.outcome in (*RIGHT_OUTCOMES, "skipped") for result in selected_results) else FAILURE
