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

_DEFAULT_TOP = 12
_LEFT_ALIGNED = frozenset({"node", "op", "result", "seen", "precision", "without", "effect of the pass"})


def make_parser() -> arguments.Parser:
    parser = arguments.source_parser("numerics", VERBS["numerics"])
    arguments.add_recipe_options(parser)
    arguments.add_input_options(parser)
    arguments.add_output_options(parser)
    group = parser.add_argument_group("numerics")
    text = "the reference: eager, or eager in double precision (default: eager)"
    group.add_argument("--reference", choices=("eager", "float64"), default="eager", help=text)
    text = "also store fused values to memory to compare them; this changes the program"
    group.add_argument("--every", action="store_true", help=text)
    text = "do not compile each node separately: faster, but without the error of each node on its own"
    group.add_argument("--no-own", action="store_true", help=text)
    group.add_argument("--nans", action="store_true", help="print only the origins of NaNs and infinities")
    text = "for each pass that changes numerics, print the error of the outputs when the pass is disabled"
    group.add_argument("--toggles", action="store_true", help=text)
    text = "write the first node out of tolerance as a script, with its real inputs"
    group.add_argument("--save", type=arguments.script_path, metavar="FILE.py", help=text)
    text = f"list the N nodes with the largest errors (default: {_DEFAULT_TOP})"
    group.add_argument("--top", type=arguments.positive_number, default=_DEFAULT_TOP, metavar="N", help=text)
    return parser


def main(words: Sequence[str]) -> int:
    return run_verb_on_program(make_parser(), words, _numerics, data_with_json=True)


async def _numerics(engine: Headless, options: argparse.Namespace, script: tuple[str, ...]) -> int:
    """Compares the graphs one after another. A failure of one does not stop the others. Returns the exit code."""
    results: list[dict[str, Any]] = []
    for recipe in await engine.open_program(options, script):
        try:
            # `--save` writes one node: that of the first graph with a mismatch.
            is_saved = any("files" in graph for graph in results)
            results.append(await _compare_graph(engine, options, recipe, None if is_saved else options.save))
        except Failure as failure:
            engine.console.error(failure.diagnostic, f"graph {recipe.graph}")
            results.append({"graph": recipe.graph, "ok": False, "error": failure_json(failure.diagnostic)})
    ok = all(graph["ok"] for graph in results)
    if options.json:
        summary = {"source": options.source, "arguments": list(script), "ok": ok, "graphs": results}
        print(json.dumps(summary, indent=2, allow_nan=False))
    return 0 if ok else FAILURE


async def _compare_graph(
    engine: Headless, options: argparse.Namespace, recipe: Recipe, script_path: Path | None
) -> dict[str, object]:
    """Compares one graph and prints the report. Returns it as JSON. Raises `Failure`.

    If a node is out of tolerance and there is a `script_path`, writes the first such node there.
    """
    info = engine.graphs[recipe.graph]
    report = await _compare_nodes(engine, options, recipe, own_errors=not (options.no_own or options.nans))
    report_json = numerics.as_json(report, info)
    if not options.json:
        print(f"graph {report.graph}, {info.name}")
        print("\n".join(_nan_lines(report, info) if options.nans else _report_lines(report, info, options.top)))
    if options.toggles:
        report_json["toggles"] = await _compare_without_passes(engine, options, recipe, report)
    if script_path is not None and report.first:
        report_json["files"] = await _save_node(engine, recipe, report.first, script_path)
    return report_json


async def _compare_nodes(
    engine: Headless, options: argparse.Namespace, recipe: Recipe, own_errors: bool, every: bool | None = None
) -> NumericsReport:
    """Compares every node with the reference. With `own_errors`, also compiles and compares each node alone.

    With `every`, compares fused values too, which changes the program; `None` stands for the option `--every`.
    """
    request = engine.client.new_request_id()
    every = options.every if every is None else every
    frame = CompareNodes(request, recipe, options.reference, own_errors, every, options.timeout, inputs_of(options))
    return (await engine.request(frame)).report


async def _save_node(engine: Headless, recipe: Recipe, node: str, path: Path) -> list[str]:
    """Writes the node as a script, with a `.npz` of the inputs that it has in eager. Returns both paths."""
    client = engine.client
    extracted = await client.request(Extract(0, recipe, (node,)))
    return await save_script(engine, replace(recipe, graph=extracted.graph), path)


# ---- text output -----------------------------------------------------------------------------------------------------


def _nan_lines(report: NumericsReport, info: GraphInfo) -> list[str]:
    """The lines of the summary that name the origins of NaNs and infinities."""
    only_origins = replace(report, first="", notes=())
    # Without a mismatch and notes, the first line is the verdict, and the last one counts the compared nodes.
    lines = numerics.summary_lines(only_origins, info)[1:-1]
    return lines or [f"no value is NaN or infinite, in compiled code or in {numerics.REFERENCES[report.reference]}"]


def _report_lines(report: NumericsReport, info: GraphInfo, top: int) -> list[str]:
    """The summary, and a table of the `top` nodes with the largest errors."""
    rows = numerics.rows_by_stable_name(info)
    heading = ["node", "op", "result", "seen", "err", "own", "of tolerance"]
    has_precisions = any(comparison.precision for comparison in report.nodes)
    if has_precisions:
        heading += ["precision", "its error"]
    cells = []
    for comparison in numerics.worst_nodes(report, top):
        row, error, own_error = rows[comparison.node], comparison.error, comparison.own_error
        facts = [row.display_name, row.target.removesuffix(".default"), f"{row.dtype}[{row.shape}]"]
        errors = [numerics.error_text(error), numerics.error_text(own_error)]
        multiples = [numerics.tolerance_multiple_text(e) for e in (error, own_error) if e is not None]
        cells.append([*facts, comparison.value_state, *errors, " / ".join(multiples)])
        if has_precisions:
            # The error of a product alone, in a reduced precision, is the error of the precision.
            own_text = f"{own_error.relative:.1e}" if comparison.precision and own_error is not None else ""
            cells[-1] += [comparison.precision, own_text]
    return [*numerics.summary_lines(report, info), table(heading, cells, _LEFT_ALIGNED)]


async def _compare_without_passes(
    engine: Headless, options: argparse.Namespace, recipe: Recipe, report: NumericsReport
) -> list[dict[str, object]]:
    """The error of the outputs with all passes, and without each pass that changes numerics, as JSON.

    Prints a table unless the user asks for JSON.
    """
    full_error = numerics.results_error(report)
    variants: list[dict[str, Any]] = []
    for variant in variants_without(recipe):
        try:
            comparison = await _compare_nodes(engine, options, variant.recipe, own_errors=False, every=False)
            error = numerics.results_error(comparison)
            result: dict[str, Any] = {"error": error, "accounts_for": numerics.explained_share(full_error, error)}
        except Failure as failure:
            result = {"failed": str(failure.diagnostic)}
        variants.append({"without": variant.step, "what": variant.effect, **result})
    if not options.json:
        heading = ["without", "error", "change", "effect of the pass"]
        rows = [[variant["without"], *_error_cells(variant, full_error), variant["what"]] for variant in variants]
        print(table(heading, [["nothing", f"{full_error:.2e}", "", ""], *rows], _LEFT_ALIGNED))
    return [{"without": "", "what": "", "error": full_error}, *variants]


def _error_cells(variant: dict[str, Any], full_error: float) -> tuple[str, str]:
    """The error without a pass, and its difference from the error with all passes; or the failure, and ""."""
    if "failed" in variant:
        return variant["failed"][:60], ""
    return f"{variant['error']:.2e}", f"{variant['error'] - full_error:+.1e}"
