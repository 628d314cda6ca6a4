"""`buddy-tui dump SOURCE`: the text of one stage to stdout, or of all to files."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from buddy.app.cli import FAILURE, VERBS, arguments
from buddy.app.cli.console import Console
from buddy.app.cli.headless import Failure, Headless, converse
from buddy.app.cli.recipes import UsageError
from buddy.compiler.protocol import Stage
from buddy.compiler.recipe import Recipe

_SUFFIXES = {"fx": ".txt", "buddy": ".txt", "mlir": ".mlir", "llvm": ".ll", "asm": ".s"}


def parser() -> arguments.Parser:
    found = arguments.source_parser("dump", VERBS["dump"])
    what = found.add_mutually_exclusive_group(required=True)
    text = "a stage by name ('lower', 'canonicalize#2'), a phase for its last stage ('llvm'), or a number"
    what.add_argument("--stage", metavar="NAME", help=text)
    what.add_argument("--all", action="store_true", help="every stage, a file each")
    found.add_argument("-o", "--output", type=Path, metavar="DIR", help="write files to DIR")
    arguments.add_recipe_options(found)
    found.add_argument("--plain", action="store_true", help="no line that is redrawn")
    return found


def main(words: Sequence[str]) -> int:
    found = parser()
    options, script = arguments.parse(found, words)
    if options.all and options.output is None:
        found.error("--all needs -o DIR")
    console = Console(options.plain, stdout_is_data=True)
    return converse(options, console, lambda engine: _dump(engine, options, script))


async def _dump(engine: Headless, options: argparse.Namespace, script: tuple[str, ...]) -> int:
    recipes = await engine.program(options, script)
    if options.stage and len(recipes) > 1:
        engine.console.note(f"note: graph 0 of {len(recipes)}; choose another with --graph")
        recipes = recipes[:1]
    return max([await _dump_graph(engine, options, recipe, len(recipes) > 1) for recipe in recipes])


async def _dump_graph(engine: Headless, options: argparse.Namespace, recipe: Recipe, several: bool) -> int:
    """Dump what was asked for, as far as the compilation came."""
    code = 0
    try:
        stages = (await engine.compile(recipe)).ordered()
    except Failure as failure:
        engine.console.error(failure.diagnostic, f"graph {recipe.graph}")
        code, stages = FAILURE, failure.stages
    try:
        chosen = stages if options.all else [choose(stages, options.stage)]
    except UsageError:
        if code:
            return code
        raise
    if options.output is None:
        sys.stdout.write(await engine.client.fetch_text(chosen[0].text))
    else:
        folder = options.output / f"graph{recipe.graph}" if several else options.output
        await _write(engine, folder, chosen)
    return code


async def _write(engine: Headless, folder: Path, stages: Sequence[Stage]) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for stage in stages:
            text = await engine.client.fetch_text(stage.text)
            (folder / file_name(stage)).write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write to {folder}: {error.strerror or error}") from error
    engine.console.note(f"{len(stages)} file{'s' * (len(stages) != 1)} in {folder}")


def file_name(stage: Stage) -> str:
    """Sorts as the stages follow each other: `07-canonicalize.mlir`."""
    failed = ".failed" * (stage.state == "failed")
    return f"{stage.index:02}-{stage.name}{failed}{_SUFFIXES[stage.language]}"


def choose(stages: Sequence[Stage], wanted: str) -> Stage:
    """The stage that `wanted` names. Raises `UsageError` when none or several do."""
    if wanted.isdigit() and int(wanted) < len(stages):
        return stages[int(wanted)]
    name, _, number = wanted.partition("#")
    named = [stage for stage in stages if stage.name == name]
    if number.isdigit() and 1 <= int(number) <= len(named):
        return named[int(number) - 1]
    if len(named) == 1 and not number:
        return named[0]
    if len(named) > 1:
        several = ", ".join(f"{name}#{count} (stage {stage.index})" for count, stage in enumerate(named, 1))
        raise UsageError(f"there are several stages {name!r}: choose {several}")
    in_phase = [stage for stage in stages if stage.phase == wanted]
    if in_phase:
        return in_phase[-1]
    phases = dict.fromkeys(stage.phase for stage in stages)
    names = dict.fromkeys(stage.name for stage in stages)
    raise UsageError(f"there is no stage {wanted!r}; phases: {', '.join(phases)}; stages: {', '.join(names)}")
