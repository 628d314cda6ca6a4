"""`buddy-tui presets SOURCE`: compiles one program with every preset, and compares the measurements."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence

from buddy.app.cli import FAILURE, VERBS, arguments
from buddy.app.cli.headless import Failure, Headless, run_verb_on_program
from buddy.app.cli.recipes import find_preset
from buddy.app.reports.compile_times import PipelineFacts
from buddy.app.reports.formatting import table
from buddy.compiler.protocol import ListPresets
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
    recipes = await engine.open_program(options, script)
    presets = (
        await engine.client.request(ListPresets(0, arguments.working_folder(options), arguments.plugins_of(options)))
    ).presets
    selected = [find_preset(presets, name) for name in options.only] or [
        preset for preset in presets if preset.suits(recipes[0])
    ]
    graphs = []
    for recipe in recipes:
        rows = []
        for preset in selected:
            with_preset = engine.with_steps_of(preset.recipe, recipe)
            rows.append(await _measure(engine, options, preset.name, with_preset))
        graphs.append((recipe.graph, rows))
        if not options.json:
            print(f"graph {recipe.graph}\n{_table(rows)}")
    if options.json:
        results = [{"graph": number, "presets": [row.as_json() for row in rows]} for number, rows in graphs]
        print(json.dumps({"source": options.source, "graphs": results}, indent=2))
    return FAILURE if any(row.problem or (row.report and row.report.wrong) for _, rows in graphs for row in rows) else 0


async def _measure(engine: Headless, options: argparse.Namespace, name: str, recipe: Recipe) -> PipelineFacts:
    """Compile `recipe` of the preset `name`, and run it with `--run`. Returns the measurements, or the error."""
    try:
        if options.run:
            compilation = await engine.run(recipe, options.repeats, options.timeout)
        else:
            compilation = await engine.compile(recipe)
    except Failure as failure:
        engine.console.error(failure.diagnostic, f"preset {name}")
        return PipelineFacts(name, recipe, problem=str(failure.diagnostic))
    return PipelineFacts(name, recipe, compilation.compiled, compilation.report)


def _table(rows: Sequence[PipelineFacts]) -> str:
    heading = ["preset", "passes", "changing", "compile ms", "ops", "asm lines", "run ms", "eager ms", "verdict"]
    return table(heading, [_row(row) for row in rows], frozenset({"preset", "verdict"}))


def _row(row: PipelineFacts) -> list[object]:
    report = row.report
    times = [f"{report.compiled.median * 1e3:.3g}", f"{report.eager.median * 1e3:.3g}"] if report else ["", ""]
    verdict = "failed" if row.problem else "" if report is None else report.word
    sizes = [row.n_passes, row.n_changing_passes, f"{row.milliseconds:.0f}", row.n_ops, row.n_assembly_lines]
    return [row.title, *sizes, *times, verdict]
