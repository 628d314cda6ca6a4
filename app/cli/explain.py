"""`buddy-tui explain SOURCE`: lists what is not compiled, and why TorchDynamo broke graphs and compiled again."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import Any

from buddy.app.cli import FAILURE, VERBS, arguments
from buddy.app.cli.console import Console
from buddy.app.cli.headless import Failure, Headless, run_verb_on_program, run_with_engine
from buddy.app.reports.fallbacks import GraphFacts, fallback_rows, fallbacks_json, fallbacks_summary, fallbacks_text
from buddy.app.reports.recompilations import dynamo_json, dynamo_text
from buddy.app.reports.run_report import failure_json
from buddy.compiler.protocol import DynamoReport, ExplainDynamo, Profile, ProfileReport
from buddy.compiler.protocol.recipe import Recipe

_EPILOG = """\
A script is run two times: its graphs are captured and compiled, and it is run as Python runs it, with the backends
that it names, while graph breaks, guards and recompilations are recorded. `--only` leaves one of the two out.
With --trace instead of SOURCE, nothing is run: the trace or the log of an earlier run is read."""


def make_parser() -> arguments.Parser:
    parser = arguments.source_parser("explain", VERBS["explain"], _EPILOG, optional=True)
    arguments.add_recipe_options(parser)
    text = "run the program, and give the share of the time of each node in eager; without it, the size of its results"
    parser.add_argument("--measure", action="store_true", help=text)
    group = parser.add_argument_group("recompilations")
    text = "list only what is not compiled, or only graph breaks, guards and recompilations (default: both)"
    group.add_argument("--only", choices=("fallbacks", "recompilations"), default="", help=text)
    text = (
        "read a folder of TORCH_TRACE=DIR, one of its files, or a log of TORCH_LOGS=recompiles,graph_breaks,guards, "
        "instead of running SOURCE"
    )
    group.add_argument("--trace", metavar="PATH", default="", help=text)
    arguments.add_output_options(parser)
    return parser


def main(words: Sequence[str]) -> int:
    parser = make_parser()
    options, _ = arguments.parse_with_script_arguments(parser, words)
    if bool(options.trace) == bool(options.source):
        parser.error("SOURCE or --trace PATH is required, and not both")
    if options.source:
        return run_verb_on_program(parser, words, _explain)
    console = Console(options.plain, stdout_is_data=True)
    return run_with_engine(options, console, lambda engine: _explain_trace(engine, options))


async def _explain_trace(engine: Headless, options: argparse.Namespace) -> int:
    """Prints what the trace or the log of an earlier run says. Returns the exit code."""
    frame = ExplainDynamo(
        engine.client.new_request_id(), trace=options.trace, directory=arguments.working_folder(options)
    )
    report = (await engine.request(frame)).report
    _print_notes(engine, report)
    print(
        json.dumps({"trace": options.trace, **dynamo_json(report)}, indent=2) if options.json else dynamo_text(report)
    )
    return 0


async def _explain(engine: Headless, options: argparse.Namespace, script: tuple[str, ...]) -> int:
    """Prints what is not compiled, and what TorchDynamo did; with `--only`, one of these. Returns the exit code."""
    summary: dict[str, Any] = {"source": options.source}
    texts, code = [], 0
    if options.only != "recompilations":
        text, fallbacks, code = await _explain_fallbacks(engine, options, script)
        texts.append(text)
        summary |= fallbacks
    if options.only != "fallbacks" and (options.only or _is_script(options.source)):
        report = await _explain_dynamo(engine, options, script)
        texts.append(dynamo_text(report))
        summary["dynamo"] = dynamo_json(report)
        code = code or (FAILURE if report.problem else 0)
    print(json.dumps(summary, indent=2, allow_nan=False) if options.json else "\n\n".join(texts))
    return code


def _is_script(source: str) -> bool:
    """Whether the source can be run as Python runs a script: not a model file, nor `script.py:name`."""
    return source.endswith(".py")


async def _explain_fallbacks(
    engine: Headless, options: argparse.Namespace, script: tuple[str, ...]
) -> tuple[str, dict[str, object], int]:
    """Returns what is not compiled, as text and as JSON, and the exit code."""
    graphs, errors = [], []
    for recipe in await engine.open_program(options, script):
        assignments = profile = None
        try:
            assignments = (await engine.compile(recipe)).assignments
            profile = await _profile(engine, recipe, options.timeout) if options.measure else None
        except Failure as failure:
            engine.console.error(failure.diagnostic, f"graph {recipe.graph}")
            errors.append({"graph": recipe.graph, "error": failure_json(failure.diagnostic)})
        graphs.append(GraphFacts(recipe.graph, engine.graphs[recipe.graph], assignments, profile))
    rows, summary_line = fallback_rows(graphs), fallbacks_summary(graphs)
    graph_names = [{"graph": facts.number, "name": facts.info.name} for facts in graphs]
    summary: dict[str, object] = {
        "summary": summary_line,
        "graphs": graph_names,
        "rows": fallbacks_json(rows),
        **({"errors": errors} if errors else {}),
    }
    return fallbacks_text(rows, summary_line), summary, FAILURE if errors else 0


async def _profile(engine: Headless, recipe: Recipe, timeout: float) -> ProfileReport:
    """The time of each node, without the measurement of the machine's peak. Raises `Failure`."""
    frame = Profile(engine.client.new_request_id(), recipe, timeout=timeout, peak=False)
    return (await engine.request(frame)).report


async def _explain_dynamo(engine: Headless, options: argparse.Namespace, script: tuple[str, ...]) -> DynamoReport:
    """Runs the script, and returns what TorchDynamo did. If the script fails, prints its error."""
    folder = arguments.working_folder(options)
    frame = ExplainDynamo(engine.client.new_request_id(), options.source, script, folder, timeout=options.timeout)
    report = (await engine.request(frame)).report
    _print_notes(engine, report)
    if report.problem is not None:
        engine.console.error(report.problem)
    return report


def _print_notes(engine: Headless, report: DynamoReport) -> None:
    for note in report.notes:
        engine.console.note(f"note: {note}")
