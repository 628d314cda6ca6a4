"""`buddy-tui reproduce SOURCE -o FOLDER`: writes a reproducer for `buddy-tui replay`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from buddy.app.cli import FAILURE, VERBS, arguments
from buddy.app.cli.console import Console
from buddy.app.cli.headless import Headless, reporting_write_errors, run_with_engine
from buddy.app.cli.recipes import inputs_of
from buddy.app.reports.reproducer import EngineFunctions, ReproducerSubject, has_foreign_files, write_reproducer
from buddy.compiler.protocol import Compile, Run


def make_parser() -> arguments.Parser:
    parser = arguments.source_parser("reproduce", VERBS["reproduce"])
    parser.add_argument("-o", "--output", type=Path, metavar="FOLDER", required=True, help="output folder")
    text = "write into a folder that contains other files"
    parser.add_argument("--force", action="store_true", help=text)
    arguments.add_input_options(parser)
    arguments.add_recipe_options(parser)
    parser.add_argument("--plain", action="store_true", help="never redraw a line")
    return parser


def main(words: Sequence[str]) -> int:
    options, script = arguments.parse_program(make_parser(), words)
    try:
        if not options.force and has_foreign_files(options.output):
            what = f"{options.output} contains files that do not belong to a reproducer"
            make_parser().error(f"{what}; choose another folder, or write into this one with --force")
    except OSError as error:
        make_parser().error(f"cannot write to {options.output}: {error.strerror or error}")
    return run_with_engine(options, Console(options.plain), lambda engine: _write_reproducer(engine, options, script))


async def _write_reproducer(engine: Headless, options: argparse.Namespace, script: tuple[str, ...]) -> int:
    """Compiles and runs the graph, and writes the folder. Returns the exit code: a failure if the run failed."""
    recipe = await engine.open_graph(options, script)
    client, inputs = engine.client, inputs_of(options)
    functions = EngineFunctions(
        lambda recipe: client.request(Compile(0, recipe, for_comparison=True)),
        client.fetch_text,
        lambda recipe: client.request(Run(0, recipe, 1, for_comparison=True, inputs=inputs, values=True)),
    )
    subject = ReproducerSubject(recipe, engine.graphs[recipe.graph], client.welcome, str(inputs), files=engine.files,
        shapes=arguments.shapes_of(options),
    )  # fmt: skip
    with reporting_write_errors(options.output):
        from buddy.app.session.client import RequestFailed

        written = await write_reproducer(options.output, subject, functions, RequestFailed)
    replay = options.output / "replay.sh"
    engine.console.note(f"wrote {len(written.stages)} stages to {options.output}; run {replay} to repeat the run")
    if written.missing_files_text:
        engine.console.note(written.missing_files_text)
    if written.problem:
        engine.console.note(f"the folder has no outputs, because the run failed: {written.problem}")
    return FAILURE if written.problem else 0
