"""`buddy-tui bench SUITE|SOURCE`: times whole programs against eager, inductor and IREE."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from buddy.app.cli import FAILURE, USAGE, VERBS, arguments
from buddy.app.cli.console import Console
from buddy.compiler.protocol import Diagnostic
from buddy.compiler.support.cluster import ClusterError
from buddy.compiler.tools.bench import report, session
from buddy.compiler.tools.bench.plan import (
    OURS,
    SIDES,
    BenchPlan,
    BenchPlanError,
    BenchSubject,
    check_sides,
    read_suite,
)

EPILOG = """
SUITE is a TOML file with a table `[[subject]]` for each program (name, source, arguments); SOURCE is one script that
defines `model` and `example_inputs`; words after `--` are its arguments. Each side runs in a separate process with
empty caches. Timings of the sides are interleaved: a round is one call, or 30 ms of calls, and the median counts.
Writes bench.json and bench.md after each program, so that --resume can continue after an interruption, and bench.svg
if matplotlib is installed.
"""


def parser() -> arguments.Parser:
    found = arguments.Parser("bench", VERBS["bench"], EPILOG)
    found.add_argument("source", metavar="SUITE|SOURCE", help="a suite (.toml) or a script (.py)")
    found.add_argument(
        "--sides", default=",".join(SIDES), metavar="A,B", help=f"sides to time, from {', '.join(SIDES)} (all)"
    )
    found.add_argument("--threads", default="1", metavar="N,M", help="thread counts, each measured separately (1)")
    found.add_argument("--only", default="", metavar="A,B", help="only the subjects with these names")
    found.add_argument("--rounds", type=arguments.positive_number, default=15, metavar="N", help="timed rounds (15)")
    found.add_argument(
        "--seconds", type=float, default=60.0, metavar="S", help="stop the rounds of a subject after S (60)"
    )
    found.add_argument(
        "--resume",
        action="store_true",
        help="keep the measurements in DIR/bench.json, and measure only the missing ones",
    )
    found.add_argument("-o", "--output", type=Path, default=Path("bench"), metavar="DIR", help="output folder (bench)")
    text = "run on the workers of a Dask cluster, such as tcp://127.0.0.1:8786"
    found.add_argument("--cluster", metavar="ADDRESS", default="", help=text)
    arguments.add_output_options(found)
    return found


def main(words: Sequence[str]) -> int:
    options, script = arguments.parse_with_script_arguments(parser(), words)
    console = Console(options.plain, stdout_is_data=options.json)
    try:
        plan = _plan(options, script)
    except BenchPlanError as error:
        console.error(Diagnostic(str(error), todo="run buddy-tui bench --help"))
        return USAGE
    try:
        known = _known(options.output / "bench.json", plan) if options.resume else {}
    except BenchPlanError as error:
        console.error(Diagnostic(str(error), todo="measure into another folder, or without --resume"))
        return USAGE
    try:
        found = _measure(plan, options, known, console)
    except ClusterError as error:
        console.error(error.diagnostic)
        return FAILURE
    print(json.dumps(found, indent=2) if options.json else report.markdown(found))
    return 0 if all("seconds" in subject["sides"].get(OURS, {}) for subject in found["subjects"]) else FAILURE


def _measure(plan: BenchPlan, options: argparse.Namespace, known: dict[str, Any], console: Console) -> dict[str, Any]:
    """The measurements. They are written after each subject, so that an interruption loses at most one."""
    found: dict[str, Any] = known or {"limits": {}, "subjects": []}
    output: Path = options.output
    if options.cluster:
        output.mkdir(parents=True, exist_ok=True)
        measured = session.run_on_cluster(plan, options.cluster, console.progress, known)
    else:
        measured = session.run(plan, output / "logs", console.progress, known)
    for found in measured:
        (output / "bench.json").write_text(json.dumps(found, indent=2) + "\n")
        (output / "bench.md").write_text(report.markdown(found))
    console.done()
    _plot(found, output / "bench.svg", console)
    return found


def _known(path: Path, plan: BenchPlan) -> dict[str, Any]:
    """The measurements of an earlier run. Raises `BenchPlanError` if the file is not from bench, or has other sides."""
    if not path.exists():
        return {}
    try:
        known: dict[str, Any] = json.loads(path.read_text())
        sides = {name for subject in known["subjects"] for name in subject["sides"]}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BenchPlanError(f"{path} was not written by bench: {error}") from error
    if sides and sides != set(plan.sides):
        raise BenchPlanError(f"{path} has measurements of other sides: {', '.join(sorted(sides))}")
    return known


def _plan(options: argparse.Namespace, script: tuple[str, ...]) -> BenchPlan:
    path = Path(options.source)
    subjects = read_suite(path) if path.suffix == ".toml" else (BenchSubject(path.stem, str(path), script),)
    wanted = [name for name in options.only.split(",") if name]
    for name in wanted:
        if name not in {subject.name for subject in subjects}:
            raise BenchPlanError(f"{path} has no subject {name!r}; it has {', '.join(s.name for s in subjects)}")
    threads = tuple(_number(text) for text in options.threads.split(","))
    kept = tuple(subject for subject in subjects if not wanted or subject.name in wanted)
    return BenchPlan(kept, check_sides(options.sides.split(",")), threads, options.rounds, options.seconds)


def _number(text: str) -> int:
    if not text.strip().isdigit() or int(text) < 1:
        raise BenchPlanError(f"--threads takes whole numbers of at least 1, not {text!r}")
    return int(text)


def _plot(found: dict[str, object], path: Path, console: Console) -> None:
    try:
        report.plot(found, path)
    except ImportError:
        console.note(f"{path.name} was not written: matplotlib is not installed (pip install 'buddy-tui[bench]')")
