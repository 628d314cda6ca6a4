"""`buddy-tui recipe SOURCE`: prints the recipe that the options describe, as TOML or as a pass pipeline."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from buddy.app.cli import VERBS, arguments
from buddy.app.cli.headless import Headless, run_verb_on_program
from buddy.app.workspace.pipeline_text import mlir_pipeline, pipeline_text
from buddy.compiler.protocol.recipe import to_toml


def make_parser() -> arguments.Parser:
    parser = arguments.source_parser("recipe", VERBS["recipe"])
    format_group = parser.add_mutually_exclusive_group()
    format_group.add_argument("--as-pipeline", action="store_true", help="print the passes as text for --pipeline")
    format_group.add_argument(
        "--mlir", action="store_true", help="print the MLIR passes as text for `mlir-opt --pass-pipeline`"
    )
    arguments.add_recipe_options(parser)
    parser.add_argument("--plain", action="store_true", help="never redraw a line")
    return parser


def main(words: Sequence[str]) -> int:
    return run_verb_on_program(make_parser(), words, _print_recipe)


async def _print_recipe(engine: Headless, options: argparse.Namespace, script: tuple[str, ...]) -> int:
    """Prints the recipe, or only its passes as text. Returns 0."""
    recipe = await engine.open_graph(options, script)
    if options.as_pipeline:
        print(pipeline_text(recipe.steps), end="")
    elif options.mlir:
        print(mlir_pipeline(recipe.steps))
    else:
        print(to_toml(recipe).rstrip())
    return 0
