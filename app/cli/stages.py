"""`buddy-tui stages SOURCE`: lists the stages of a program, with what each pass changed."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence

import msgspec

from buddy.app.cli import FAILURE, VERBS, arguments
from buddy.app.cli.headless import Failure, Headless, run_verb_on_program
from buddy.app.reports.formatting import table
from buddy.compiler.protocol import Stage

_LEFT_ALIGNED = frozenset({"stage", "of", "phase", "state"})


def make_parser() -> arguments.Parser:
    parser = arguments.source_parser("stages", VERBS["stages"])
    arguments.add_recipe_options(parser)
    arguments.add_output_options(parser)
    return parser


def main(words: Sequence[str]) -> int:
    return run_verb_on_program(make_parser(), words, _list_stages)


async def _list_stages(engine: Headless, options: argparse.Namespace, script: tuple[str, ...]) -> int:
    """Prints the stages of each graph; of one that fails, those before the failure. Returns the exit code."""
    code, graphs = 0, []
    for recipe in await engine.open_program(options, script):
        try:
            stages = (await engine.compile(recipe)).ordered_stages()
        except Failure as failure:
            engine.console.error(failure.diagnostic, f"graph {recipe.graph}")
            code, stages = FAILURE, failure.stages
        graphs.append({"graph": recipe.graph, "stages": [msgspec.to_builtins(stage) for stage in stages]})
        if not options.json:
            title = f": {engine.graphs[recipe.graph].name}" if recipe.is_dump else ""
            print(f"graph {recipe.graph}{title}\n{_table(stages)}")
    if options.json:
        print(json.dumps({"source": options.source, "graphs": graphs}, indent=2))
    return code


def _table(stages: Sequence[Stage]) -> str:
    if any(stage.anchor for stage in stages):  # of a dump
        heading = ["#", "stage", "of", "phase", "lines", "ops", "+", "-", "state"]
        return table(heading, [_dump_row(stage) for stage in stages], _LEFT_ALIGNED)
    heading = ["#", "stage", "phase", "lines", "ops", "+", "-", "ms", "state"]
    return table(heading, [_row(stage) for stage in stages], _LEFT_ALIGNED)


def _dump_row(stage: Stage) -> list[object]:
    """A stage of a dump, with the op that its text shows, and without the time, which dumps do not have."""
    index, name, phase, *counts, _milliseconds, state = _row(stage)
    return [index, name, stage.anchor, phase, *counts, state]


def _row(stage: Stage) -> list[object]:
    """The cells of a stage. The state is empty for a stage that is done and has changed something."""
    state = stage.state if stage.state != "done" or stage.changed else "changed nothing"
    counts = [stage.lines, stage.ops, stage.added, stage.removed, f"{stage.milliseconds:.1f}"]
    return [stage.index, stage.name, stage.phase, *counts, "" if state == "done" else state]
