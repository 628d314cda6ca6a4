"""`buddy-tui numerics SOURCE`: compares every node with eager, and finds the first mismatch."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from buddy.app.cli import FAILURE, VERBS, arguments
from buddy.app.cli.headless import Failure, Headless, run_verb_on_program, save_script
from buddy.app.cli.recipes import inputs_of
from buddy.app.reports import numerics
from buddy.app.reports.formatting import table
from buddy.app.reports.numerics import variants_without
from buddy.app.reports.run_report import failure_json
from buddy.compiler.protocol import CompareNodes, Extract, GraphInfo
from buddy.compiler.protocol.numerics import NumericsReport
from buddy.compiler.protocol.recipe import Recipe

_SHOWN = 12
_LEFT = frozenset({"node", "op", "result", "seen", "without", "effect of the pass"})


def parser() -> arguments.Parser:
    found = arguments.source_parser("numerics", VERBS["numerics"])
    arguments.add_recipe_options(found)
    arguments.add_input_options(found)
    arguments.add_output_options(found)
    group = found.add_argument_group("numerics")
    text = "the reference: eager, or eager in double precision ('eager')"
    group.add_argument("--reference", choices=("eager", "float64"), default="eager", help=text)
    text = "also store fused values to memory to compare them; this changes the program"
    group.add_argument("--every", action="store_true", help=text)
    text = "do not compile each node separately: faster, but without own errors"
    group.add_argument("--no-own", action="store_true", help=text)
    group.add_argument("--nans", action="store_true", help="print only the origins of NaNs and infinities")
    text = "print the error of the results without each pass that changes the numerics"
    group.add_argument("--toggles", action="store_true", help=text)
    text = "write the first node out of tolerance as a script, with its real inputs"
    group.add_argument("--save", type=arguments.script_path, metavar="FILE.py", help=text)
    text = f"list N nodes ({_SHOWN})"
    group.add_argument("--top", type=arguments.positive_number, default=_SHOWN, metavar="N", help=text)
    return found


def main(words: Sequence[str]) -> int:
    return run_verb_on_program(parser(), words, _numerics, data_with_json=True)


async def _numerics(engine: Headless, options: argparse.Namespace, script: tuple[str, ...]) -> int:
    """Compare the graphs one after another. A failure does not stop the others."""
    found: list[dict[str, Any]] = []
    for recipe in await engine.program(options, script):
        try:
            save = None if any("files" in graph for graph in found) else options.save
            found.append(await _graph(engine, options, recipe, save))
        except Failure as failure:
            engine.console.error(failure.diagnostic, f"graph {recipe.graph}")
            found.append({"graph": recipe.graph, "ok": False, "error": failure_json(failure.diagnostic)})
    ok = all(graph["ok"] for graph in found)
    if options.json:
        whole = {"source": options.source, "arguments": list(script), "ok": ok, "graphs": found}
        print(json.dumps(whole, indent=2, allow_nan=False))
    return 0 if ok else FAILURE


async def _graph(engine: Headless, options: argparse.Namespace, recipe: Recipe, save: Path | None) -> dict[str, Any]:
    """Compare one graph, print the report, and save the first node out of tolerance. Raises `Failure`."""
    info = engine.graphs[recipe.graph]
    report = await _compared(engine, options, recipe, own=not (options.no_own or options.nans))
    result = numerics.as_json(report, info)
    if not options.json:
        print(f"graph {report.graph}, {info.name}")
        print("\n".join(_origins(report, info) if options.nans else _text(report, info, options.top)))
    if options.toggles:
        result["toggles"] = await _toggles(engine, options, recipe, report)
    if save is not None and report.first:
        result["files"] = await _save(engine, recipe, report.first, save)
    return result


async def _compared(
    engine: Headless, options: argparse.Namespace, recipe: Recipe, own: bool, every: bool | None = None
) -> NumericsReport:
    request = engine.client.next_request()
    every = options.every if every is None else every
    frame = CompareNodes(request, recipe, options.reference, own, every, options.timeout, inputs_of(options))
    return (await engine.answer(frame)).report


async def _save(engine: Headless, recipe: Recipe, node: str, path: Path) -> list[str]:
    """Write the node as a script, with a `.npz` of the inputs that it has in eager."""
    client = engine.client
    extracted = await client.request(Extract(0, recipe, (node,)))
    return await save_script(engine, replace(recipe, graph=extracted.graph), path)


# ---- text output -----------------------------------------------------------------------------------------------------


def _origins(report: NumericsReport, info: GraphInfo) -> list[str]:
    found = replace(report, first="", notes=())
    result = numerics.summary_lines(found, info)[1:-1]
    return result or ["no value is NaN or infinite, in compiled code or in eager"]


def _text(report: NumericsReport, info: GraphInfo, top: int) -> list[str]:
    rows = numerics.rows_of(info)
    heading = ["node", "op", "result", "seen", "err", "own", "of tolerance"]
    lines = []
    for found in numerics.worst_nodes(report, top):
        row = rows[found.node]
        errors = [numerics.error_text(found.error), numerics.error_text(found.own)]
        shares = [numerics.share_text(each) for each in (found.error, found.own) if each is not None]
        result = f"{row.dtype}[{row.shape}]"
        lines.append([row.name, row.target.removesuffix(".default"), result, found.seen, *errors, " / ".join(shares)])
    return [*numerics.summary_lines(report, info), table(heading, lines, _LEFT)]


async def _toggles(
    engine: Headless, options: argparse.Namespace, recipe: Recipe, report: NumericsReport
) -> list[dict[str, Any]]:
    """The error of the results with all passes, and without each pass that changes the numerics."""
    whole = numerics.results_error(report)
    found: list[dict[str, Any]] = []
    for without in variants_without(recipe):
        try:
            error = numerics.results_error(await _compared(engine, options, without.recipe, own=False, every=False))
            result: dict[str, Any] = {"error": error, "accounts_for": numerics.explained_share(whole, error)}
        except Failure as failure:
            result = {"failed": str(failure.diagnostic)}
        found.append({"without": without.step, "what": without.what, **result})
    if not options.json:
        rows = [[each["without"], *_toggle_cells(each, whole), each["what"]] for each in found]
        print(
            table(
                ["without", "error", "change", "effect of the pass"],
                [["nothing", f"{whole:.2e}", "", ""], *rows],
                _LEFT,
            )
        )
    return [{"without": "", "what": "", "error": whole}, *found]


def _toggle_cells(each: dict[str, Any], whole: float) -> tuple[str, str]:
    if "failed" in each:
        return each["failed"][:60], ""
    return f"{each['error']:.2e}", f"{each['error'] - whole:+.1e}"
