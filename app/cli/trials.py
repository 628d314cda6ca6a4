"""`buddy-tui trials SOURCE --stage X`: shows what each pass would change in a stage."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any

from buddy.app.cli import VERBS, arguments
from buddy.app.cli.dump import choose_stage
from buddy.app.cli.headless import Headless, run_verb_on_program
from buddy.app.cli.recipes import UsageError
from buddy.app.reports.formatting import table
from buddy.app.reports.searches import PassPreview, candidates, deltas_text, rank_previews
from buddy.compiler.protocol import ListPasses, Tried, TryPasses


def parser() -> arguments.Parser:
    found = arguments.source_parser("trials", VERBS["trials"])
    found.add_argument("--stage", metavar="NAME", required=True, help="an MLIR stage, as for `dump`")
    text = "try only passes with that name or pattern, such as 'convert-*'"
    found.add_argument("--pass", metavar="NAME", action="append", default=[], dest="passes", help=text)
    found.add_argument("--all", action="store_true", help="also list passes that fail or change nothing")
    text = "time limit (60)"
    found.add_argument("--within", type=arguments.positive_seconds, default=60.0, metavar="SECONDS", help=text)
    arguments.add_recipe_options(found)
    arguments.add_output_options(found)
    return found


def main(words: Sequence[str]) -> int:
    return run_verb_on_program(parser(), words, _try)


async def _try(engine: Headless, options: argparse.Namespace, script: tuple[str, ...]) -> int:
    recipe = (await engine.program(options, script))[0]
    stage = choose_stage((await engine.compile(recipe)).ordered(), options.stage)
    if stage.language != "mlir":
        raise UsageError(f"stage {stage.name} is {stage.language}: choose an MLIR stage with --stage")
    passes = (await engine.client.request(ListPasses(0))).passes
    wanted = candidates(recipe.steps, passes)
    if options.passes:
        wanted = tuple(step for step in wanted if any(fnmatchcase(step.name, name) for name in options.passes))
    if not wanted:
        raise UsageError(f"unknown pass {' or '.join(options.passes)}: `buddy-tui passes` lists the passes")
    attempts: list[PassPreview] = []

    def take(frame: Any) -> None:
        if isinstance(frame, Tried):
            attempts.append(PassPreview(wanted[frame.number], frame))
            engine.console.progress(f"tried {len(attempts)} of {len(wanted)} passes")

    done = await engine.client.request(TryPasses(0, stage.text, wanted, recipe.threads, timeout=options.within), take)
    engine.console.done()
    if done.tried < done.candidates:
        engine.console.note(
            f"note: {done.candidates - done.tried} passes were not tried within the time limit (--within)"
        )
    shown = attempts if options.all else rank_previews(attempts)
    if options.json:
        print(json.dumps({"stage": stage.name, "passes": [attempt.as_json() for attempt in shown]}, indent=2))
    else:
        print(
            table(["pass", "on", "ms", "ops"], [_row(attempt) for attempt in shown], frozenset({"pass", "on", "ops"}))
        )
    return 0


def _row(attempt: PassPreview) -> list[object]:
    tried = attempt.tried
    what = deltas_text(tried.deltas) or ("the same ops" if tried.changed else "nothing")
    return [attempt.step.spelling(), attempt.step.anchor, f"{tried.milliseconds:.1f}", tried.problem or what]
