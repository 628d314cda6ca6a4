"""`buddy-tui extract SOURCE NODE…`: extracts nodes as a separate graph, with their real inputs."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import Any

import msgspec

from buddy.app.cli import FAILURE, VERBS, arguments
from buddy.app.cli.headless import Headless, run_verb_on_program, save_script
from buddy.app.reports.run_report import run_report_json, run_report_text
from buddy.compiler.protocol import Extract


def make_parser() -> arguments.Parser:
    parser = arguments.source_parser("extract", VERBS["extract"])
    parser.add_argument("nodes", metavar="NODE", nargs="+", help="a node: 'layer.3/mm.0', or its FX name 'mm_3'")
    text = "write the graph as a script, and its tensors as a .npz next to it"
    parser.add_argument("-o", "--output", type=arguments.script_path, metavar="FILE.py", help=text)
    arguments.add_repeats_option(parser)
    arguments.add_recipe_options(parser)
    arguments.add_output_options(parser)
    return parser


def main(words: Sequence[str]) -> int:
    return run_verb_on_program(make_parser(), words, _extract, data_with_json=True)


async def _extract(engine: Headless, options: argparse.Namespace, script: tuple[str, ...]) -> int:
    """Extracts the nodes, writes and runs the extracted graph, and prints the report. Returns the exit code."""
    recipe, client = await engine.open_graph(options, script, options.nodes), engine.client
    info = engine.graphs[recipe.graph]
    nodes = tuple(row.stable for name in options.nodes for row in info.nodes_named(name))
    # Unknown names are requested too, because the engine reports them.
    unknown = tuple(name for name in options.nodes if not info.nodes_named(name))
    extracted = await client.request(Extract(0, recipe, (*unknown, *nodes)))
    subgraph_recipe = msgspec.structs.replace(recipe, graph=extracted.graph)
    saved: list[str] = []
    if options.output is not None:
        saved = await save_script(engine, subgraph_recipe, options.output)
    compilation = await engine.run(subgraph_recipe, options.repeats, options.timeout)
    assert compilation.report is not None
    if options.json:
        results: dict[str, Any] = run_report_json(extracted.info, compilation.report, compilation.assignments)
        extracted_nodes = [row.stable for row in extracted.info.rows if row.opcode.startswith("call")]
        print(json.dumps({"source": options.source, "extracted": extracted_nodes, "files": saved, **results}, indent=2))
    else:
        print(run_report_text(extracted.info, compilation.report, compilation.assignments))
    return FAILURE if compilation.report.wrong else 0
