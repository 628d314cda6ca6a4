"""`buddy-tui bench SUITE|SOURCE`: times whole programs against other compilers and runtimes."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

from buddy.app.cli import FAILURE, USAGE_ERROR, VERBS, arguments
from buddy.app.cli.console import Console
from buddy.compiler.protocol import Diagnostic
from buddy.compiler.protocol.source_files import check_source
from buddy.compiler.protocol.source_locations import SourceError
from buddy.compiler.support.cluster import ClusterError
from buddy.compiler.tools.bench import report, session
from buddy.compiler.tools.bench.plan import (
    ALL_SIDES,
    BENCH_PRECISIONS,
    DEFAULT_SIDES,
    OURS,
    SIDES,
    BenchPlan,
    BenchPlanError,
    BenchSubject,
    Clock,
    read_suite,
    resolve_sides,
    with_precisions,
)

EPILOG = """
A subject is a program to time, a side is a compiler or runtime that runs it. SUITE is a TOML file with a table
`[[subject]]` for each program (name, source, arguments, group, task, precisions). SOURCE is one script that defines
`model` and `example_inputs`; words after `--` are its arguments. Each side runs in a separate process with empty
caches, and makes the model of a precision as its users do (docs/how-to/benchmarks.md). Rounds of the sides are
interleaved. In a round, each side is called once, or repeatedly for 30 ms if a call is shorter; the median over the
rounds is reported, with the error against eager in float32. Writes bench.json and bench.md after each subject, so that
--resume can continue after an interruption, and bench.svg at the end if matplotlib is installed.
"""


def make_parser() -> arguments.Parser:
    parser = arguments.Parser("bench", VERBS["bench"], EPILOG)
    parser.add_argument("source", metavar="SUITE|SOURCE", help="a suite (.toml) or a script (.py)")
    text = f"sides to time, from {', '.join(SIDES)}, or {ALL_SIDES} (default: {', '.join(DEFAULT_SIDES)})"
    parser.add_argument("--sides", default=",".join(DEFAULT_SIDES), metavar="A,B", help=text)
    parser.add_argument(
        "--threads", default="1", metavar="N,M", help="thread counts, each measured separately (default: 1)"
    )
    text = f"precisions of every program, from {', '.join(BENCH_PRECISIONS)} (default: the suite's, or f32)"
    parser.add_argument("--precisions", default="", metavar="A,B", help=text)
    parser.add_argument("--only", default="", metavar="A,B", help="only the subjects with these names")
    parser.add_argument(
        "--rounds", type=arguments.positive_number, default=15, metavar="N", help="timed rounds (default: 15)"
    )
    parser.add_argument(
        "--seconds", type=float, default=60.0, metavar="S", help="stop timing a subject after S seconds (default: 60)"
    )
    text = "time the duration of calls, or their CPU time, which has no waits for a core; one thread (default: wall)"
    parser.add_argument("--clock", choices=get_args(Clock), default="wall", help=text)
    text = "leave out a side that is not ready after S seconds (default: 900)"
    parser.add_argument("--prepare-seconds", type=float, default=900.0, metavar="S", help=text)
    parser.add_argument(
        "--resume",
        action="store_true",
        help="reuse the measurements in DIR/bench.json of an earlier run, and measure only the missing ones",
    )
    parser.add_argument(
        "-o", "--output", type=Path, default=Path("bench"), metavar="DIR", help="output folder (default: bench)"
    )
    text = "run on the workers of a Dask cluster, such as tcp://127.0.0.1:8786"
    parser.add_argument("--cluster", metavar="ADDRESS", default="", help=text)
    arguments.add_output_options(parser)
    return parser


def main(words: Sequence[str]) -> int:
    """Runs the verb. Returns the exit code: a failure if this compiler could not be timed on a program."""
    options, script = arguments.parse_with_script_arguments(make_parser(), words)
    console = Console(options.plain, stdout_is_data=options.json)
    try:
        plan = _make_plan(options, script)
    except BenchPlanError as error:
        console.error(Diagnostic(str(error), todo="run buddy-tui bench --help"))
        return USAGE_ERROR
    if not options.cluster and (problem := _source_problem(plan)) is not None:
        console.error(problem)
        return USAGE_ERROR
    try:
        options.output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        what = f"cannot write to {options.output}: {error.strerror or error}"
        console.error(Diagnostic(what, todo="choose another folder with -o"))
        return USAGE_ERROR
    try:
        previous = _read_measurements(options.output / "bench.json", plan) if options.resume else {}
    except BenchPlanError as error:
        console.error(Diagnostic(str(error), todo="choose another folder with -o, or omit --resume"))
        return USAGE_ERROR
    try:
        results = _measure(plan, options, previous, console)
    except ClusterError as error:
        console.error(error.diagnostic)
        return FAILURE
    print(json.dumps(results, indent=2) if options.json else report.format_markdown(results))
    return 0 if all("seconds" in subject["sides"].get(OURS, {}) for subject in results["subjects"]) else FAILURE


def _measure(
    plan: BenchPlan, options: argparse.Namespace, previous: dict[str, Any], console: Console
) -> dict[str, Any]:
    """Measures the subjects of `plan` that `previous` lacks. Returns the measurements of all subjects.

    The files are written after each subject, so that an interruption loses the measurements of at most one subject.
    """
    results: dict[str, Any] = previous or {"limits": {}, "subjects": [], "summary": {}}
    output: Path = options.output
    # Yields, after each subject, the measurements of all subjects so far.
    if options.cluster:
        partial_results = session.run_on_cluster(plan, options.cluster, console.progress, previous)
    else:
        partial_results = session.run_benchmark(plan, output / "logs", console.progress, previous)
    for results in partial_results:
        (output / "bench.json").write_text(json.dumps(results, indent=2) + "\n")
        (output / "bench.md").write_text(report.format_markdown(results))
    console.clear_progress()
    _write_plot(results, output / "bench.svg", console)
    return results


def _read_measurements(path: Path, plan: BenchPlan) -> dict[str, Any]:
    """The measurements of an earlier run; empty if the file does not exist.

    Raises `BenchPlanError` if bench did not write the file, or if its sides are not those of `plan`.
    """
    if not path.exists():
        return {}
    try:
        results: dict[str, Any] = json.loads(path.read_text())
        sides = {name for subject in results["subjects"] for name in subject["sides"]}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BenchPlanError(f"{path} was not written by bench: {error}") from error
    if sides and sides != set(plan.sides):
        raise BenchPlanError(
            f"{path} was measured with other sides: {', '.join(sorted(sides))} (now: {', '.join(plan.sides)})"
        )
    return results


def _make_plan(options: argparse.Namespace, script: tuple[str, ...]) -> BenchPlan:
    """The plan that the options describe. Raises `BenchPlanError` if the options or the suite are invalid."""
    path = Path(options.source)
    subjects = read_suite(path) if path.suffix == ".toml" else (BenchSubject(path.stem, str(path), script),)
    names = [name for name in options.only.split(",") if name]
    for name in names:
        if name not in {subject.name for subject in subjects}:
            raise BenchPlanError(f"{path} has no subject {name!r}; it has {', '.join(s.name for s in subjects)}")
    threads = tuple(_parse_thread_count(text) for text in options.threads.split(","))
    selected = tuple(subject for subject in subjects if not names or subject.name in names)
    selected = with_precisions(selected, [name for name in options.precisions.split(",") if name])
    sides = resolve_sides(options.sides.split(","))
    if options.clock == "cpu" and threads != (1,):
        raise BenchPlanError("--clock cpu adds up the time of all threads: use it with --threads 1")
    return BenchPlan(selected, sides, threads, options.rounds, options.seconds, options.prepare_seconds, options.clock)


def _source_problem(plan: BenchPlan) -> Diagnostic | None:
    """The diagnostic of the first program that cannot be opened; `None` if all can.

    All programs are checked before the first is measured, because the measurements take hours.
    """
    try:
        for subject in plan.subjects:
            check_source(subject.source)
    except SourceError as error:
        return error.diagnostic
    return None


def _parse_thread_count(text: str) -> int:
    if not text.strip().isdigit() or int(text) < 1:
        raise BenchPlanError(f"--threads takes whole numbers of at least 1, not {text!r}")
    return int(text)


def _write_plot(results: dict[str, object], path: Path, console: Console) -> None:
    """Writes the plot. Without matplotlib, prints a note instead."""
    try:
        report.write_plot(results, path)
    except ImportError:
        console.note(f"{path.name} was not written: matplotlib is not installed (pip install 'buddy-tui[bench]')")
