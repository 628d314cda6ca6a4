"""`buddy-tui why SOURCE NODE`: shows the history of a node, from capture through every pass to machine code."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence

from buddy.app.cli import FAILURE, VERBS, arguments
from buddy.app.cli.headless import CollectedCompilation, Failure, Headless, run_verb_on_program
from buddy.app.cli.recipes import UsageError
from buddy.app.cli.trace import find_nodes, node_json, node_line
from buddy.app.reports.formatting import table
from buddy.app.reports.nodes import (
    EVERY_LINE,
    NodeRemark,
    instruction_count_remark,
    is_computed,
    node_history,
    remark_text,
)
from buddy.app.reports.run_report import failure_json
from buddy.compiler.protocol import ExplainCode, FollowNode, ListSymbols, NodeRow
from buddy.compiler.protocol.recipe import Recipe


def make_parser() -> arguments.Parser:
    parser = arguments.source_parser("why", VERBS["why"])
    parser.add_argument(
        "node",
        metavar="NODE",
        help="a node ('layer.3/mm.0'), its module, its FX name ('mm_3'), or a pattern",
    )
    arguments.add_recipe_options(parser)
    arguments.add_output_options(parser)
    return parser


def main(words: Sequence[str]) -> int:
    return run_verb_on_program(make_parser(), words, _why)


async def _why(engine: Headless, options: argparse.Namespace, script: tuple[str, ...]) -> int:
    """Prints the history of the selected nodes of each graph. Returns the exit code. Raises `UsageError`."""
    recipes = await engine.open_program(options, script)
    selected = [(recipe, find_nodes(engine.graphs[recipe.graph], options.node)) for recipe in recipes]
    selected = [(recipe, rows) for recipe, rows in selected if rows]
    if not selected:
        raise UsageError(f"unknown node {options.node!r}; `buddy-tui dump SOURCE --stage fx` lists the nodes")
    code, graphs = 0, []
    for recipe, rows in selected:
        try:
            histories = await _node_histories(engine, recipe, rows)
        except Failure as failure:
            engine.console.error(failure.diagnostic, f"graph {recipe.graph}")
            code = FAILURE
            graphs.append({"graph": recipe.graph, "ok": False, "error": failure_json(failure.diagnostic)})
            continue
        if not options.json:
            separator = "\n" if graphs else ""
            heading = f"{separator}graph {recipe.graph}, {engine.graphs[recipe.graph].name}"
            print(heading, "\n\n".join(_history_text(row, history) for row, history in histories), sep="\n")
        nodes = [_history_json(row, history) for row, history in histories]
        graphs.append({"graph": recipe.graph, "ok": True, "nodes": nodes})
    if options.json:
        print(json.dumps({"source": options.source, "graphs": graphs}, indent=2))
    return code


async def _node_histories(
    engine: Headless, recipe: Recipe, rows: Sequence[NodeRow]
) -> list[tuple[NodeRow, list[NodeRemark]]]:
    """Compiles `recipe`. Returns each node with its history. Raises `Failure`."""
    compilation = await engine.compile(recipe)
    assert compilation.compiled is not None
    stages = compilation.compiled.stages
    remarks = (*compilation.compiled.remarks, *await _llvm_remarks(engine, recipe))
    assignments = {assignment.node: assignment for assignment in compilation.assignments}
    histories = []
    for row in rows:
        history = node_history(row, assignments.get(row.stable), remarks, stages)
        histories.append((row, [*history, *await _machine_code_remarks(engine, compilation, row)]))
    return histories


async def _llvm_remarks(engine: Headless, recipe: Recipe) -> tuple[tuple[str, str, str], ...]:
    """LLVM's remarks, each as (`LLVM`, node, text). If they are not available, prints why and returns none."""
    try:
        return (await engine.request(ExplainCode(engine.client.new_request_id(), recipe))).remarks
    except Failure as failure:
        diagnostic = failure.diagnostic
        engine.console.note(f"note: {diagnostic.what}: {diagnostic.detail.strip() or diagnostic.where}")
        return ()


async def _machine_code_remarks(engine: Headless, compilation: CollectedCompilation, row: NodeRow) -> list[NodeRemark]:
    """A remark with the node's instruction count and functions; empty without assembly, or if no code is generated."""
    text = next((stage.text for stage in compilation.ordered_stages() if stage.language == "asm"), "")
    if not text or not is_computed(row):
        return []
    client = engine.client
    symbols = (await client.request(ListSymbols(0, text, "asm"))).symbols
    frame = FollowNode(0, (text,), row.stable, EVERY_LINE)
    traces = (await client.request(frame)).traces
    return [instruction_count_remark(traces, symbols)]


def _history_json(row: NodeRow, history: Sequence[NodeRemark]) -> dict[str, object]:
    remarks = [{"step": remark.step, "text": remark.text, "times": remark.times} for remark in history]
    return {**node_json(row), "remarks": remarks}


def _history_text(row: NodeRow, history: Sequence[NodeRemark]) -> str:
    heading = ["step", "remark"]
    rows = [[remark.step, remark_text(remark)] for remark in history]
    return f"{node_line(row)}\n{table(heading, rows, frozenset(heading))}"
