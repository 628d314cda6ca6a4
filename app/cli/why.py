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
from buddy.app.reports.node_history import (
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


def parser() -> arguments.Parser:
    found = arguments.source_parser("why", VERBS["why"])
    found.add_argument("node", metavar="NODE", help="a name from the FX table, a full name, or a pattern ('mm*')")
    arguments.add_recipe_options(found)
    arguments.add_output_options(found)
    return found


def main(words: Sequence[str]) -> int:
    return run_verb_on_program(parser(), words, _why)


async def _why(engine: Headless, options: argparse.Namespace, script: tuple[str, ...]) -> int:
    recipes = await engine.program(options, script)
    wanted = [(recipe, rows) for recipe in recipes if (rows := find_nodes(engine.graphs[recipe.graph], options.node))]
    if not wanted:
        raise UsageError(f"unknown node {options.node!r}; `buddy-tui dump SOURCE --stage fx` lists the nodes")
    code, found = 0, []
    for recipe, rows in wanted:
        try:
            histories = await _histories(engine, recipe, rows)
        except Failure as failure:
            engine.console.error(failure.diagnostic, f"graph {recipe.graph}")
            code = FAILURE
            found.append({"graph": recipe.graph, "ok": False, "error": failure_json(failure.diagnostic)})
            continue
        found.append({"graph": recipe.graph, "ok": True, "nodes": [_json(row, history) for row, history in histories]})
        if not options.json:
            print("\n\n".join(_text(row, history) for row, history in histories))
    if options.json:
        print(json.dumps({"source": options.source, "graphs": found}, indent=2))
    return code


async def _histories(
    engine: Headless, recipe: Recipe, rows: Sequence[NodeRow]
) -> list[tuple[NodeRow, list[NodeRemark]]]:
    compilation = await engine.compile(recipe)
    assert compilation.compiled is not None
    stages = compilation.compiled.stages
    remarks = (*compilation.compiled.remarks, *await _llvm_remarks(engine, recipe))
    assigned = {assignment.node: assignment for assignment in compilation.assignments}
    return [
        (
            row,
            [
                *node_history(row, assigned.get(row.stable), remarks, stages),
                *await _machine_code(engine, compilation, row),
            ],
        )
        for row in rows
    ]


async def _llvm_remarks(engine: Headless, recipe: Recipe) -> tuple[tuple[str, str, str], ...]:
    """LLVM's remarks; empty, with a note, if they are not available."""
    try:
        return (await engine.answer(ExplainCode(engine.client.next_request(), recipe))).remarks
    except Failure as failure:
        engine.console.note(str(failure.diagnostic))
        return ()


async def _machine_code(engine: Headless, compilation: CollectedCompilation, row: NodeRow) -> list[NodeRemark]:
    """The number of instructions that come from a node, and their functions."""
    text = next((stage.text for stage in compilation.ordered() if stage.language == "asm"), "")
    if not text or not is_computed(row):
        return []
    client = engine.client
    symbols = (await client.request(ListSymbols(0, text, "asm"))).symbols
    frame = FollowNode(0, (text,), row.stable, EVERY_LINE)
    traces = (await client.request(frame)).traces
    return [instruction_count_remark(traces, symbols)]


def _json(row: NodeRow, history: Sequence[NodeRemark]) -> dict[str, object]:
    said = [{"who": one.source, "text": one.text, "times": one.times} for one in history]
    return {**node_json(row), "fate": said}


def _text(row: NodeRow, history: Sequence[NodeRemark]) -> str:
    rows = [[one.source, remark_text(one)] for one in history]
    return f"{node_line(row)}\n{table(['who', 'what'], rows, frozenset({'who', 'what'}))}"
