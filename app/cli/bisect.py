"""`buddy-tui bisect SOURCE`: finds the pass, lowering and nodes that make a program fail, differ or run slowly.

For a dump of another compiler, finds the first stage on which a command of the user shows a failure.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from buddy.app.cli import USAGE_ERROR, VERBS, arguments
from buddy.app.cli.console import Console
from buddy.app.cli.headless import Headless, reporting_write_errors, run_verb_on_program
from buddy.app.reports.searches import bisection_json, bisection_lines, write_bisection
from buddy.compiler.protocol import Bisect, Criterion, Diagnostic, Progress

if TYPE_CHECKING:
    from buddy.compiler.protocol.connection import Frame


EPILOG = """
Of a dump of another compiler, the first stage that shows a failure is searched. The command gets the path of its text
in place of {}, or as its last argument; words after `--` are flags of mlir-opt. Examples:

  buddy-tui bisect model.py --criterion differs
  buddy-tui bisect after_all.log --test './is_wrong.sh'
  buddy-tui bisect after_all.log --crash -- -convert-scf-to-cf
  buddy-tui bisect after_all.log --graph @main --contains 'affine.for' --command 'cat {}'
"""


def make_parser() -> arguments.Parser:
    parser = arguments.source_parser("bisect", VERBS["bisect"], EPILOG)
    group = parser.add_argument_group("criterion")
    text = (
        "the fault: an error or a crash, a difference from eager, slow code, or either of the first two (default: any)"
    )
    kinds = ("any", "fails", "differs", "slower")
    group.add_argument("--criterion", choices=kinds, default="any", help=text)
    text = "multiply the tolerance of each element type by this factor (default: 1)"
    group.add_argument("--tolerance", type=arguments.positive_factor, default=1.0, metavar="FACTOR", help=text)
    text = "report a pass if the program is at least this many times faster without the pass (default: 1.1)"
    group.add_argument("--slower", type=arguments.positive_factor, default=1.1, metavar="FACTOR", help=text)
    text = "time limit of each step of a trial (default: 20); smaller parts of the program get less"
    group.add_argument("--each", type=arguments.positive_seconds, default=20.0, metavar="SECONDS", help=text)
    text = "start no more trials that only reduce the result after this time (default: 300)"
    group.add_argument("--within", type=arguments.positive_seconds, default=300.0, metavar="SECONDS", help=text)
    text = "write the correct recipe and the reduced module, or the texts of a dump before and after, to DIR"
    parser.add_argument("-o", "--output", type=Path, metavar="DIR", help=text)
    arguments.add_failure_options(parser, required=False)
    arguments.add_recipe_options(parser)
    arguments.add_output_options(parser)
    return parser


def main(words: Sequence[str]) -> int:
    """Bisects a program with an engine, or a dump in this process. Returns the exit code."""
    options, script = arguments.parse_program(make_parser(), words)
    if not arguments.is_dump(options):
        if options.test or options.crash or options.verifier or options.contains is not None:
            Console().error(Diagnostic(f"{options.source} is not a dump: its failure is given by --criterion"))
            return USAGE_ERROR
        return run_verb_on_program(make_parser(), words, _bisect)
    # Imported on demand: a bisection of a program does not need it.
    from buddy.app.cli.reduce import bisect_dump

    return bisect_dump(options, script)


def criterion_of(options: argparse.Namespace) -> Criterion:
    return Criterion(options.criterion, options.tolerance, options.slower, options.each, options.within)


async def _bisect(engine: Headless, options: argparse.Namespace, script: tuple[str, ...]) -> int:
    """Bisects a program, prints the result, and writes it with `-o`. Returns 0."""
    recipe, client = await engine.open_graph(options, script), engine.client

    def show_progress(frame: Frame) -> None:
        if isinstance(frame, Progress):
            engine.console.progress(frame.activity)

    finding = (await client.request(Bisect(0, recipe, criterion_of(options)), show_progress)).finding
    engine.console.clear_progress()
    saved: list[str] = []
    if options.output is not None:
        with reporting_write_errors(options.output):
            saved = [str(path) for path in write_bisection(options.output, finding)]
    if options.json:
        print(json.dumps({"source": options.source, **bisection_json(finding), "files": saved}, indent=2))
    else:
        print("\n".join([*bisection_lines(finding), *(f"wrote {path}" for path in saved)]))
    return 0
