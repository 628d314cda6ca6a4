"""`buddy-tui passes [TEXT]`: lists the catalogue of passes."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from buddy.app.cli import VERBS, arguments
from buddy.app.cli.catalogue import catalogue_parser, print_matching
from buddy.app.cli.console import Console
from buddy.app.cli.headless import Headless, run_with_engine
from buddy.app.reports.formatting import table
from buddy.compiler.protocol import BackendInfo, DialectInfo, ListPasses, PassInfo


def parser() -> arguments.Parser:
    found = catalogue_parser("passes", VERBS["passes"])
    text = "list the registered dialects with the number of their ops, instead of passes"
    found.add_argument("--dialects", action="store_true", help=text)
    text = "list the backends that a recipe may name, instead of passes"
    found.add_argument("--backends", action="store_true", help=text)
    return found


def main(words: Sequence[str]) -> int:
    options = parser().parse_args(words)
    return run_with_engine(options, Console(options.plain, stdout_is_data=True), lambda engine: _list(engine, options))


async def _list(engine: Headless, options: argparse.Namespace) -> int:
    request = ListPasses(0, arguments.working_folder(options), arguments.named_plugins(options))
    found = await engine.client.request(request)
    for note in found.notes:
        engine.console.note(f"note: {note}")
    if options.dialects:
        return print_matching(options, found.dialects, lambda item: item.name, _dialects)
    if options.backends:
        return print_matching(options, found.backends, lambda item: f"{item.name} {item.summary}", _backends)
    return print_matching(options, found.passes, lambda item: f"{item.name} {item.summary}", _table)


def _dialects(dialects: Sequence[DialectInfo]) -> str:
    heading = ["dialect", "ops", "Python module"]
    return table(heading, [[item.name, item.ops, item.module] for item in dialects], frozenset(heading))


def _backends(backends: Sequence[BackendInfo]) -> str:
    rows = [[item.name, item.origin or "ours", item.takes, item.summary, " ".join(item.phases)] for item in backends]
    heading = ["backend", "whose", "takes", "summary", "phases"]
    return table(heading, rows, frozenset(heading))


def _origin(item: PassInfo) -> str:
    return item.origin or ("ours" if item.ours else "")


def _table(passes: Sequence[PassInfo]) -> str:
    rows = [[item.name, item.level, _origin(item), item.anchor, item.summary] for item in passes]
    heading = ["pass", "level", "whose", "runs on", "summary"]
    return table(heading, rows, frozenset(heading))
