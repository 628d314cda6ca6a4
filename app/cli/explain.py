"""`buddy-tui explain SOURCE`: lists what is not compiled: nodes in eager, graph breaks, and guards."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence

from buddy.app.cli import FAILURE, VERBS, arguments
from buddy.app.cli.headless import Failure, Headless, run_verb_on_program
from buddy.app.reports.fallbacks import GraphFacts, as_json, as_text, fallbacks, summary
from buddy.app.reports.run_report import failure_json
from buddy.compiler.protocol import Profile, ProfileReport
from buddy.compiler.protocol.recipe import Recipe


def make_parser() -> arguments.Parser:
    parser = arguments.source_parser("explain", VERBS["explain"])
    arguments.add_recipe_options(parser)
    text = "run the program, and give the share of the time of each node in eager; without it, the size of its results"
    parser.add_argument("--measure", action="store_true", help=text)
    arguments.add_output_options(parser)
    return parser


def main(words: Sequence[str]) -> int:
    return run_verb_on_program(make_parser(), words, _explain)


async def _explain(engine: Headless, options: argparse.Namespace, script: tuple[str, ...]) -> int:
    graphs, errors = [], []
    for recipe in await engine.open_program(options, script):
        info, assignments, profile = engine.graphs[recipe.graph], None, None
        try:
            assignments = (await engine.compile(recipe)).assignments
            profile = await _profile(engine, recipe, options.timeout) if options.measure else None
        except Failure as failure:
            engine.console.error(failure.diagnostic, f"graph {recipe.graph}")
            errors.append({"graph": recipe.graph, "error": failure_json(failure.diagnostic)})
        graphs.append(GraphFacts(recipe.graph, info, assignments, profile))
    rows, line = fallbacks(graphs), summary(graphs)
    if options.json:
        names = [{"graph": facts.number, "name": facts.info.name} for facts in graphs]
        values = {"source": options.source, "summary": line, "graphs": names, "rows": as_json(rows)}
        print(json.dumps({**values, **({"errors": errors} if errors else {})}, indent=2, allow_nan=False))
    else:
        print(as_text(rows, line))
    return FAILURE if errors else 0


async def _profile(engine: Headless, recipe: Recipe, timeout: float) -> ProfileReport:
    frame = Profile(engine.client.next_request(), recipe, timeout=timeout, peak=False)
    return (await engine.request(frame)).report
