"""`buddy-tui passes [TEXT]`: lists the passes, dialects or backends that the engine has."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from buddy.app.cli import VERBS, arguments
from buddy.app.cli.catalogue import make_catalogue_parser, print_matching
from buddy.app.cli.console import Console
from buddy.app.cli.headless import Headless, run_with_engine
from buddy.app.reports.formatting import table
from buddy.compiler.protocol import BackendInfo, DialectInfo, ListPasses, PassInfo


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
    request = ListPasses(0, arguments.working_folder(options), arguments.plugins_of(options))
    catalogue = await engine.client.request(request)
    for note in catalogue.notes:
        engine.console.note(f"note: {note}")
    if options.dialects:
        return print_matching(options, catalogue.dialects, lambda item: item.name, _dialect_table)
    if options.backends:
        return print_matching(options, catalogue.backends, lambda item: f"{item.name} {item.summary}", _backend_table)
    return print_matching(options, catalogue.passes, lambda item: f"{item.name} {item.summary}", _pass_table)


def _dialect_table(dialects: Sequence[DialectInfo]) -> str:
    heading = ["dialect", "ops", "Python module"]
    return table(heading, [[item.name, item.ops, item.module] for item in dialects], frozenset(heading))


def _backend_table(backends: Sequence[BackendInfo]) -> str:
    rows = [[item.name, item.origin or "ours", item.takes, item.summary, " ".join(item.phases)] for item in backends]
    heading = ["backend", "origin", "takes", "summary", "phases"]
    return table(heading, rows, frozenset(heading))


def _origin(item: PassInfo) -> str:
    return item.origin or ("ours" if item.ours else "")


def _pass_table(passes: Sequence[PassInfo]) -> str:
    rows = [[item.name, item.level, _origin(item), item.anchor, item.summary] for item in passes]
    heading = ["pass", "level", "origin", "runs on", "summary"]
    return table(heading, rows, frozenset(heading))
