"""`buddy-tui tune SOURCE`: searches for the fastest recipe whose results match eager."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from buddy.app.cli import VERBS, arguments
from buddy.app.cli.headless import Headless, reporting_write_errors, run_verb_on_program
from buddy.app.cli.recipes import UsageError
from buddy.app.reports.formatting import table
from buddy.app.reports.searches import (
    VariationError,
    attempt_line,
    error_time_rows,
    precision_rows,
    read_variation,
    tuning_json,
    tuning_lines,
)
from buddy.compiler.protocol import Attempted, Progress, Tune, Variation
from buddy.compiler.protocol.recipe import to_toml
from buddy.compiler.protocol.searches import default_seconds

if TYPE_CHECKING:
    from buddy.compiler.protocol.connection import Frame


EPILOG = """
SETTING is a pass of the recipe (`fuse-rows=on,off`), a pass option (`contractions-to-kernels.rows=4,6,8`; the value
`default` is the pass's default), the lowering of a node (`lowering:NODE=linalg,eager`), the precision of its products
(`precision:NODE=f32,bf16`), or values of `threads`, `opt-level`, `dialect`, `partition` or `precision`. Without --vary,
the search varies the block sizes of matrix products and the passes with the largest effect; with --max-error, it
chooses the precision of each product, by the time that it saves and the error that it causes. Recipes with wrong
outputs are discarded: the reference is eager or, for reduced precisions, the same arithmetic in PyTorch. At the end,
the best recipe is timed again against the original recipe, which is kept unless the best one is clearly faster.
"""


def make_parser() -> arguments.Parser:
    parser = arguments.source_parser("tune", VERBS["tune"], EPILOG)
    group = parser.add_argument_group("search")
    text = "vary this part of the recipe; may be repeated"
    group.add_argument("--vary", metavar="SETTING=VALUES", action="append", default=[], help=text)
    text = "discard recipes with a larger error: the rms of an output's difference from eager, divided by that of eager"
    group.add_argument("--max-error", type=_error_limit, metavar="ERROR", help=text)
    text = "start no new recipe after this time (default: 60; 300 for the choice of precisions)"
    group.add_argument("--within", "--seconds", type=arguments.positive_seconds, metavar="SECONDS", help=text)
    text = "time limit of each recipe (default: 30)"
    group.add_argument("--each", type=arguments.positive_seconds, default=30.0, metavar="SECONDS", help=text)
    text = "try N recipes in parallel (default: 1); with fewer than N free cores, they disturb each other's timings"
    group.add_argument("--jobs", type=arguments.positive_number, default=1, metavar="N", help=text)
    text = "try recipes on the workers of a Dask cluster, such as tcp://127.0.0.1:8786"
    group.add_argument("--cluster", metavar="ADDRESS", default="", help=text)
    group.add_argument("--search-seed", type=int, default=0, metavar="N", help="seed of the search (default: 0)")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE.toml", help="write the best recipe to FILE")
    arguments.add_recipe_options(parser)
    arguments.add_output_options(parser)
    return parser


def _error_limit(text: str) -> float:
    """The value of `--max-error`. Raises `ArgumentTypeError`."""
    limit = arguments.number(text)
    if not 0 <= limit < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is not a finite number of at least 0")
    return limit


def main(words: Sequence[str]) -> int:
    return run_verb_on_program(make_parser(), words, _tune)


async def _tune(engine: Headless, options: argparse.Namespace, script: tuple[str, ...]) -> int:
    """Searches for the fastest recipe, writes it, and prints the attempts. Returns 0. Raises `UsageError`."""
    variations = _variations(options.vary)  # an invalid one ends the search before the program is captured
    recipe = await engine.open_graph(options, script)
    seconds = options.within or default_seconds(options.max_error, variations)
    frame = Tune(
        0, recipe, variations, seconds, recipe_seconds=options.each, jobs=options.jobs, cluster=options.cluster,
        seed=options.search_seed, max_error=options.max_error,
    )  # fmt: skip
    attempts: list[Attempted] = []

    def show_progress(frame: Frame) -> None:
        if isinstance(frame, Attempted):
            attempts.append(frame)
            engine.console.progress(attempt_line(frame))
        elif isinstance(frame, Progress):
            engine.console.progress(frame.activity)

    tuned = await engine.client.request(frame, show_progress)
    engine.console.clear_progress()
    if options.output is not None:
        with reporting_write_errors(options.output):
            options.output.write_text(to_toml(tuned.recipe), "utf-8")
    if options.json:
        print(json.dumps({"source": options.source, **tuning_json(tuned, attempts)}, indent=2))
    else:
        saved = [f"wrote {options.output}"] if options.output is not None else []
        print("\n".join([*tuning_lines(tuned, attempts[0].choices if attempts else ()), *saved]))
        if tuned.nodes:
            names = {row.stable: row.display_name for row in engine.graphs[recipe.graph].rows}
            print(table(["error", "x eager", "precisions"], error_time_rows(attempts), frozenset({"precisions"})))
            rows = precision_rows(tuned, names)
            heading = ["product", "precision", "saves", "error alone"]
            print(table(heading, rows, frozenset({"product", "precision"})) if rows else "all products stay in f32")
    return 0


def _variations(texts: Sequence[str]) -> tuple[Variation, ...]:
    """The values of `--vary`. Raises `UsageError`."""
    try:
        return tuple(map(read_variation, texts))
    except VariationError as error:
        raise UsageError(f"--vary: {error}") from error
