"""`buddy-tui presets SOURCE`: compiles one program with every preset, and compares the measurements."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence

from buddy.app.cli import FAILURE, VERBS, arguments
from buddy.app.cli.headless import Failure, Headless, run_verb_on_program
from buddy.app.cli.recipes import find_preset
from buddy.app.reports.compilations import PipelineFacts
from buddy.app.reports.formatting import table
from buddy.compiler.protocol.recipe import Recipe


def make_parser() -> arguments.Parser:
    parser = arguments.source_parser("presets", VERBS["presets"])
    parser.add_argument(
        "--only",
        metavar="PRESET",
        action="append",
        default=[],
        help="only this preset; may be repeated (default: all presets that suit the program)",
    )
    parser.add_argument("--run", action="store_true", help="also run each, and compare it with eager")
    arguments.add_repeats_option(parser)
    arguments.add_recipe_options(parser)
    arguments.add_output_options(parser)
    return parser


def main(words: Sequence[str]) -> int:
    return run_verb_on_program(make_parser(), words, _compare_presets)


async def _compare_presets(engine: Headless, options: argparse.Namespace, script: tuple[str, ...]) -> int:
    """Compiles each graph with each selected preset, and prints a table for each graph. Returns the exit code."""
    recipes = await engine.open_program(options, script)
    presets = engine.presets
    selected = [find_preset(presets, name) for name in dict.fromkeys(options.only)]
    if not selected:
        # All graphs of a program have the same frontend, which decides what presets suit them.
        selected = [preset for preset in presets if preset.suits(recipes[0])]
    rows_by_graph = []
    for recipe in recipes:
        rows = []
        for preset in selected:
            preset_recipe = engine.with_steps_of(preset.recipe, recipe)
            rows.append(await _measure(engine, options, preset.name, preset_recipe))
        rows_by_graph.append((recipe.graph, rows))
        if not options.json:
            print(f"graph {recipe.graph}\n{_table(rows)}")
    if options.json:
        results = [{"graph": number, "presets": [row.as_json() for row in rows]} for number, rows in rows_by_graph]
        print(json.dumps({"source": options.source, "graphs": results}, indent=2))
    all_rows = [row for _, rows in rows_by_graph for row in rows]
    return FAILURE if any(row.problem or (row.report and row.report.wrong) for row in all_rows) else 0


async def _measure(engine: Headless, options: argparse.Namespace, name: str, recipe: Recipe) -> PipelineFacts:
    """Compiles `recipe`, which has the steps of preset `name`, and runs it with `--run`.

    Returns the measurements. If the compilation or the run fails, prints the error, and returns it with the
    measurements before it.
    """
    compiled = report = None
    try:
        compiled = (await engine.compile(recipe)).compiled
        if options.run:
            report = (await engine.run(recipe, options.repeats, options.timeout)).report
    except Failure as failure:
        engine.console.error(failure.diagnostic, f"preset {name}")
        return PipelineFacts(name, recipe, compiled, problem=str(failure.diagnostic))
    return PipelineFacts(name, recipe, compiled, report)


def _table(rows: Sequence[PipelineFacts]) -> str:
    heading = ["preset", "passes", "changing", "compile ms", "ops", "asm lines", "run ms", "eager ms", "verdict"]
    return table(heading, [_row(row) for row in rows], frozenset({"preset", "verdict"}))


def _row(row: PipelineFacts) -> list[object]:
    """The cells of a row of the table; empty where nothing was measured."""
    report = row.report
    times = [f"{report.compiled.median * 1e3:.3g}", f"{report.eager.median * 1e3:.3g}"] if report else ["", ""]
    verdict = report.word if report is not None else ""
    if row.problem:
        verdict = "failed"
    sizes: list[object] = [row.n_passes, row.n_changing_passes]
    sizes += [f"{row.milliseconds:.0f}", row.n_ops, row.n_assembly_lines] if row.compiled else ["", "", ""]
    return [row.title, *sizes, *times, verdict]
