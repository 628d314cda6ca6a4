"""`buddy-tui dump SOURCE`: writes the IR of one stage to stdout, or of all stages to files, for one or all graphs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from buddy.app.cli import FAILURE, VERBS, arguments
from buddy.app.cli.console import Console
from buddy.app.cli.headless import Failure, Headless, reporting_write_errors, run_with_engine
from buddy.app.cli.recipes import UsageError
from buddy.app.reports.run_report import lowering_table
from buddy.app.session.stages import stage_file_name
from buddy.compiler.protocol import Stage
from buddy.compiler.protocol.plain_values import LANGUAGES
from buddy.compiler.protocol.recipe import Recipe

# The prefix of the stages of LLVM's passes: `llvm:3`, `llvm:gvn`.
_LLVM_PREFIX = "llvm:"


def make_parser() -> arguments.Parser:
    parser = arguments.source_parser("dump", VERBS["dump"])
    text = (
        "a stage by name ('lower', 'canonicalize#2'), a phase for its last stage ('llvm'), a number, or "
        f"{_LLVM_PREFIX}3 or {_LLVM_PREFIX}gvn for the stage after a pass of LLVM's optimiser"
    )
    parser.add_argument("--stage", metavar="NAME", help=text)
    text = "every stage of every graph, one file each; with --stage, that stage of every graph"
    parser.add_argument("--all", action="store_true", help=text)
    text = "print a table of nodes instead: the registry that lowers each node, and why preferred registries do not"
    parser.add_argument("--nodes", action="store_true", help=text)
    parser.add_argument("-o", "--output", type=Path, metavar="DIR", help="write files to DIR")
    arguments.add_recipe_options(parser)
    parser.add_argument("--plain", action="store_true", help="never redraw a line")
    return parser


def main(words: Sequence[str]) -> int:
    parser = make_parser()
    options, script = arguments.parse_program(parser, words)
    if options.nodes and (options.stage or options.output):
        parser.error("--nodes prints a table to stdout: it cannot be combined with --stage or -o")
    if not options.stage and not options.all and not options.nodes:
        parser.error("nothing to dump: give --stage NAME, --nodes, or --all -o DIR")
    if not options.stage and not options.nodes and options.output is None:
        parser.error("--all needs -o DIR")
    options.llvm_passes |= (options.stage or "").startswith(_LLVM_PREFIX)
    console = Console(options.plain, stdout_is_data=True)
    return run_with_engine(options, console, lambda engine: _dump(engine, options, script))


async def _dump(engine: Headless, options: argparse.Namespace, script: tuple[str, ...]) -> int:
    """Dumps the selected graphs. Returns the largest of their exit codes."""
    recipes = await engine.open_program(options, script)
    if not options.all and len(recipes) > 1:
        names = ", ".join(f"{number} ({graph.name})" for number, graph in enumerate(engine.graphs))
        engine.console.note(f"note: only graph 0 of {names}; use --graph for another one, --all for all")
        recipes = recipes[:1]
    if options.nodes:
        return max([await _dump_nodes(engine, recipe, len(recipes) > 1) for recipe in recipes])
    return max([await _dump_graph(engine, options, recipe, len(recipes) > 1) for recipe in recipes])


async def _dump_nodes(engine: Headless, recipe: Recipe, with_heading: bool) -> int:
    """Prints the table of a graph's nodes and how each is lowered. Returns the exit code."""
    try:
        compilation = await engine.compile(recipe)
    except Failure as failure:
        engine.console.error(failure.diagnostic, f"graph {recipe.graph}")
        return FAILURE
    info = engine.graphs[recipe.graph]
    heading = f"# graph {recipe.graph}: {info.name}\n" if with_heading else ""
    sys.stdout.write(heading + lowering_table(info, compilation.assignments))
    return 0


async def _dump_graph(engine: Headless, options: argparse.Namespace, recipe: Recipe, several_graphs: bool) -> int:
    """Dumps the requested stages; if the compilation fails, those before the failure. Returns the exit code."""
    code = 0
    try:
        stages = (await engine.compile(recipe)).ordered_stages()
    except Failure as failure:
        engine.console.error(failure.diagnostic, f"graph {recipe.graph}")
        code, stages = FAILURE, failure.stages
    try:
        chosen = [choose_stage(stages, options.stage)] if options.stage else list(stages)
    except UsageError:
        if code:  # the stage may be one that the failure prevented
            return code
        raise
    if options.output is None:
        text = await engine.client.fetch_text(chosen[0].text)
        if several_graphs:
            comment_sign = LANGUAGES[chosen[0].language].comment
            sys.stdout.write(f"{comment_sign} graph {recipe.graph}: {engine.graphs[recipe.graph].name}\n")
        sys.stdout.write(text)
    else:
        folder = options.output / f"graph{recipe.graph}" if several_graphs else options.output
        await _write_stages(engine, folder, chosen)
    return code


async def _write_stages(engine: Headless, folder: Path, stages: Sequence[Stage]) -> None:
    """Writes each stage to a file in `folder`, which is created. Raises `UsageError`."""
    with reporting_write_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    for stage in stages:
        text = await engine.client.fetch_text(stage.text)
        with reporting_write_errors(folder):
            (folder / stage_file_name(stage)).write_text(text, encoding="utf-8")
    engine.console.note(f"wrote {len(stages)} file{'s' * (len(stages) != 1)} to {folder}")


def _choose_llvm_stage(stages: Sequence[Stage], selector: str) -> Stage:
    """The stage of LLVM's optimiser with that number, from 0 for its input, or with that name.

    Raises `UsageError` if it does not exist.
    """
    # The first stage of LLVM IR is the translation from the LLVM dialect.
    passes = [stage for stage in stages if stage.language == "llvm" and stage.phase == "ir"][1:]
    if not passes:
        raise UsageError("no stages of LLVM's passes: add --llvm-passes, with the native backend")
    if selector.isdigit():
        if int(selector) < len(passes):
            return passes[int(selector)]
        last = f"{_LLVM_PREFIX}{len(passes) - 1}"
        raise UsageError(f"no stage {_LLVM_PREFIX}{selector}: the stages of LLVM's passes end with {last}")
    return choose_stage(passes, selector)


def choose_stage(stages: Sequence[Stage], selector: str) -> Stage:
    """The stage with that number, name or phase. `NAME#2` is the second stage of that name; a phase is its last stage.

    Raises `UsageError` if there is no such stage, or if several have that name.
    """
    if selector.isdigit() and int(selector) < len(stages):
        return stages[int(selector)]
    if selector.startswith(_LLVM_PREFIX):
        return _choose_llvm_stage(stages, selector.removeprefix(_LLVM_PREFIX))
    name, _, number = selector.partition("#")
    with_name = [stage for stage in stages if stage.name == name]
    if number.isdigit() and 1 <= int(number) <= len(with_name):
        return with_name[int(number) - 1]
    if len(with_name) == 1 and not number:
        return with_name[0]
    if len(with_name) > 1:
        choices = ", ".join(f"{name}#{count} (stage {stage.index})" for count, stage in enumerate(with_name, 1))
        raise UsageError(f"several stages are called {name!r}: choose one of {choices}")
    in_phase = [stage for stage in stages if stage.phase == selector]
    if in_phase:
        return in_phase[-1]
    phases = dict.fromkeys(stage.phase for stage in stages)
    names = dict.fromkeys(stage.name for stage in stages)
    raise UsageError(f"unknown stage {selector!r}; phases: {', '.join(phases)}; stages: {', '.join(names)}")
