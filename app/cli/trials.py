"""`buddy-tui trials SOURCE --stage X`: shows what each pass would change in a stage."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from buddy.app.cli import VERBS, arguments
from buddy.app.cli.dump import choose_stage
from buddy.app.cli.headless import Headless, run_verb_on_program
from buddy.app.cli.recipes import UsageError
from buddy.app.reports.compilations import PassPreview, candidate_passes, deltas_text, rank_previews
from buddy.app.reports.formatting import table
from buddy.compiler.protocol import ListPasses, Tried, TryPasses

if TYPE_CHECKING:
    from buddy.compiler.protocol.connection import Frame


def make_parser() -> arguments.Parser:
    parser = arguments.source_parser("trials", VERBS["trials"])
    parser.add_argument("--stage", metavar="NAME", required=True, help="an MLIR stage, as for `dump`")
    text = "try only passes with this name, or that match this pattern, such as 'convert-*'; may be repeated"
    parser.add_argument("--pass", metavar="NAME", action="append", default=[], dest="passes", help=text)
    parser.add_argument("--all", action="store_true", help="also list passes that fail or change nothing")
    text = "time limit of all passes together (default: 60)"
    parser.add_argument("--within", type=arguments.positive_seconds, default=60.0, metavar="SECONDS", help=text)
    arguments.add_recipe_options(parser)
    arguments.add_output_options(parser)
    return parser


def main(words: Sequence[str]) -> int:
    return run_verb_on_program(make_parser(), words, _preview_passes)


async def _preview_passes(engine: Headless, options: argparse.Namespace, script: tuple[str, ...]) -> int:
    """Runs each pass on the stage, and prints what it changes. Returns the exit code. Raises `UsageError`."""
    recipe = await engine.open_graph(options, script)
    stage = choose_stage((await engine.compile(recipe)).ordered_stages(), options.stage)
    if stage.language != "mlir":
        raise UsageError(f"stage {stage.name} is {stage.language}: choose an MLIR stage with --stage")
    passes = (await engine.client.request(ListPasses(0))).passes
    steps = candidate_passes(recipe.steps, passes)
    if options.passes:
        steps = tuple(step for step in steps if any(fnmatchcase(step.name, pattern) for pattern in options.passes))
    if not steps:
        raise UsageError(f"unknown pass {' or '.join(options.passes)}: `buddy-tui passes` lists the passes")
    previews: list[PassPreview] = []

    def add_preview(frame: Frame) -> None:
        if isinstance(frame, Tried):
            previews.append(PassPreview(steps[frame.number], frame))
            engine.console.progress(f"tried {len(previews)} of {len(steps)} passes")

    request = TryPasses(0, stage.text, steps, recipe.threads, timeout=options.within)
    counts = await engine.client.request(request, add_preview)
    engine.console.clear_progress()
    n_untried = counts.candidates - counts.tried
    if n_untried:
        engine.console.note(f"note: {n_untried} passes were not tried within the time limit (--within)")
    listed = previews if options.all else rank_previews(previews)
    if options.json:
        print(json.dumps({"stage": stage.name, "passes": [preview.as_json() for preview in listed]}, indent=2))
    else:
        heading = ["pass", "on", "ms", "ops"]
        print(table(heading, [_row(preview) for preview in listed], frozenset({"pass", "on", "ops"})))
    return 0


def _row(preview: PassPreview) -> list[object]:
    """The cells of a pass: how it is written in a pipeline, its anchor, its time, and the changed ops or the error."""
    tried = preview.tried
    changes = deltas_text(tried.deltas) or ("the same ops" if tried.changed else "nothing")
    return [preview.step.spelling(), preview.step.anchor, f"{tried.milliseconds:.1f}", tried.problem or changes]
