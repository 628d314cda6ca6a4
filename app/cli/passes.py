"""`buddy-tui passes [TEXT]`: lists the passes, dialects or backends that the engine has.

Also has the options and the output that this verb shares with `buddy-tui ops`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec

from buddy.app.cli import FAILURE, VERBS, arguments
from buddy.app.cli.console import Console
from buddy.app.cli.headless import Headless, run_with_engine
from buddy.app.reports.formatting import table
from buddy.compiler.protocol import BackendInfo, DialectInfo, ListPasses, PassInfo

# ---- shared with the verb `ops` --------------------------------------------------------------------------------------


Item = TypeVar("Item")


def make_catalogue_parser(verb: str, summary: str) -> arguments.Parser:
    """A parser with the argument TEXT and the options of a verb that lists what the engine has."""
    parser = arguments.Parser(verb, summary)
    parser.add_argument("text", metavar="TEXT", nargs="?", default="", help="only entries that contain TEXT")
    arguments.add_output_options(parser)
    arguments.add_engine_options(parser)
    arguments.add_plugin_option(parser)
    return parser


def print_matching(
    options: argparse.Namespace,
    items: Sequence[Item],
    searched_text: Callable[[Item], str],
    as_table: Callable[[Sequence[Item]], str],
) -> int:
    """Prints the items whose `searched_text` contains TEXT, in any case. Returns the exit code: 1 without a match.

    Items are structs of msgspec. They are printed by `as_table`, or with `--json` as a list of objects.
    """
    matching = [item for item in items if options.text.lower() in searched_text(item).lower()]
    if options.json:
        objects: list[Any] = [msgspec.to_builtins(item) for item in matching]
        print(json.dumps(objects, indent=2))
    else:
        print(as_table(matching) if matching else f"no entry contains {options.text!r}")
    return 0 if matching else FAILURE


# ---- the verb `passes` -----------------------------------------------------------------------------------------------


def make_parser() -> arguments.Parser:
    parser = make_catalogue_parser("passes", VERBS["passes"])
    text = "list the registered dialects with the number of their ops, instead of passes"
    parser.add_argument("--dialects", action="store_true", help=text)
    text = "list the backends that a recipe may name, instead of passes"
    parser.add_argument("--backends", action="store_true", help=text)
    return parser


def main(words: Sequence[str]) -> int:
    options = make_parser().parse_args(words)
    return run_with_engine(
        options, Console(options.plain, stdout_is_data=True), lambda engine: _list_catalogue(engine, options)
    )


async def _list_catalogue(engine: Headless, options: argparse.Namespace) -> int:
    """Prints the passes, dialects or backends that match. Returns the exit code."""
    request = ListPasses(0, arguments.working_folder(options), arguments.plugins_of(options))
    catalogue = await engine.client.request(request)
    for note in catalogue.notes:
        engine.console.note(f"note: {note}")
    if options.dialects:
        return print_matching(options, catalogue.dialects, lambda dialect: dialect.name, _dialect_table)
    if options.backends:
        return print_matching(options, catalogue.backends, _name_and_summary, _backend_table)
    return print_matching(options, catalogue.passes, _name_and_summary, _pass_table)


def _name_and_summary(info: PassInfo | BackendInfo) -> str:
    return f"{info.name} {info.summary}"


def _dialect_table(dialects: Sequence[DialectInfo]) -> str:
    heading = ["dialect", "ops", "Python module"]
    rows = [[dialect.name, dialect.ops, dialect.module] for dialect in dialects]
    return table(heading, rows, frozenset(heading))


def _backend_table(backends: Sequence[BackendInfo]) -> str:
    heading = ["backend", "origin", "takes", "summary", "phases"]
    rows = [[info.name, info.origin or "ours", info.takes, info.summary, " ".join(info.phases)] for info in backends]
    return table(heading, rows, frozenset(heading))


def _origin(info: PassInfo) -> str:
    """The plug-in that registers a pass, "ours", or "" for a pass of MLIR."""
    return info.origin or ("ours" if info.ours else "")


def _pass_table(passes: Sequence[PassInfo]) -> str:
    heading = ["pass", "level", "origin", "runs on", "summary"]
    rows = [[info.name, info.level, _origin(info), info.anchor, info.summary] for info in passes]
    return table(heading, rows, frozenset(heading))
