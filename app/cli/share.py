"""`buddy-tui share SOURCE -o FILE.html`: writes one HTML file with every stage, the graph and the results."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from buddy.app.cli import FAILURE, VERBS, arguments
from buddy.app.cli.console import Console
from buddy.app.cli.headless import Failure, Headless, reporting_write_errors, run_with_engine
from buddy.app.cli.recipes import inputs_of
from buddy.app.reports import formatting
from buddy.app.reports.share.contents import SharedGraph
from buddy.app.reports.share.page import encode_report, may_be_replaced
from buddy.app.workspace.files import write_bytes_atomically
from buddy.compiler.protocol import CompareNodes, Profile
from buddy.compiler.protocol.recipe import Recipe
from buddy.compiler.protocol.run_report import InputChoice

_EPILOG = """
The file contains the IR of every stage, the Python code that nodes come from, and the results. It
contains no weights and no tensor elements, except constants in the IR. It opens in a browser without a network. See
docs/how-to/sharing.md.
"""


def make_parser() -> arguments.Parser:
    parser = arguments.source_parser("share", VERBS["share"], _EPILOG)
    text = "the file to write; an existing file is replaced if it is a report"
    parser.add_argument("-o", "--output", type=Path, metavar="FILE.html", required=True, help=text)
    parser.add_argument("--force", action="store_true", help="replace any existing file")
    group = parser.add_argument_group("contents")
    group.add_argument("--no-run", action="store_true", help="do not run the compiled graphs: no outputs, no timings")
    group.add_argument("--profile", action="store_true", help="add the time of each node")
    group.add_argument("--numerics", action="store_true", help="add the error of each node, compared with eager")
    arguments.add_repeats_option(group)
    arguments.add_comparison_options(group)
    arguments.add_input_options(parser)
    arguments.add_recipe_options(parser)
    parser.add_argument("--plain", action="store_true", help="never redraw a line")
    return parser


def main(words: Sequence[str]) -> int:
    parser = make_parser()
    options, script = arguments.parse_program(parser, words)
    if options.no_run and (options.profile or options.numerics):
        parser.error("--profile and --numerics run the compiled graphs: leave them out, or leave out --no-run")
    try:
        if not (options.force or may_be_replaced(options.output)):
            parser.error(
                f"{options.output} exists and is not a report: choose another name, or replace it with --force"
            )
    except OSError as error:
        parser.error(f"cannot write to {options.output}: {error.strerror or error}")
    return run_with_engine(options, Console(options.plain), lambda engine: _share(engine, options, script))


async def _share(engine: Headless, options: argparse.Namespace, script: tuple[str, ...]) -> int:
    """Writes the report on the selected graphs.

    If a graph fails, the report contains its error. Returns the exit code, which is then `FAILURE`.
    """
    inputs = inputs_of(options)
    recipes = await engine.open_program(options, script)
    graphs = [await _collect_graph(engine, options, recipe, inputs) for recipe in recipes]
    page = await encode_report(graphs, engine.client.request, engine.client.welcome, engine.console.progress)
    with reporting_write_errors(options.output):
        write_bytes_atomically(options.output, page)
    engine.console.clear_progress()
    stage_count = sum(len(graph.stages) for graph in graphs)
    engine.console.note(f"wrote {stage_count} stages to {options.output} ({formatting.size(len(page))})")
    return FAILURE if any(graph.problem for graph in graphs) else 0


async def _collect_graph(
    engine: Headless, options: argparse.Namespace, recipe: Recipe, inputs: InputChoice
) -> SharedGraph:
    """Compiles a graph, runs it on `inputs`, and measures what the options ask for."""
    info = engine.graphs[recipe.graph]
    try:
        compilation = await engine.compile(recipe)
    except Failure as failure:
        engine.console.error(failure.diagnostic, f"graph {recipe.graph}")
        stages = tuple(dict.fromkeys(failure.stages))
        return SharedGraph(info, recipe, stages, problem=failure.diagnostic)
    ran = profiled = compared = problem = None
    try:
        if not options.no_run:
            ran = await engine.run(recipe, options.repeats, options.timeout, inputs, options.equal_nan)
        if options.profile:
            frame = Profile(engine.client.new_request_id(), recipe, options.repeats, options.timeout, inputs)
            profiled = await engine.request(frame)
        if options.numerics:
            compared = await engine.request(
                CompareNodes(engine.client.new_request_id(), recipe, timeout=options.timeout, inputs=inputs)
            )
    except Failure as failure:
        engine.console.error(failure.diagnostic, f"graph {recipe.graph}")
        problem = failure.diagnostic
    return SharedGraph(
        info,
        recipe,
        compilation.ordered_stages(),
        compilation.assignments,
        report=ran.report if ran is not None else None,
        numerics=compared.report if compared is not None else None,
        profile=profiled.report if profiled is not None else None,
        problem=problem,
    )
