"""`buddy-tui passes [TEXT]`: the catalogue of passes."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from buddy.app.cli import VERBS
from buddy.app.cli.catalogue import catalogue_parser, show
from buddy.app.cli.console import Console, table
from buddy.app.cli.headless import Headless, converse
from buddy.compiler.protocol import ListPasses, Passes, PassInfo


def main(words: Sequence[str]) -> int:
    options = catalogue_parser("passes", VERBS["passes"]).parse_args(words)
    return converse(options, Console(options.plain, stdout_is_data=True), lambda engine: _list(engine, options))


async def _list(engine: Headless, options: argparse.Namespace) -> int:
    found = await engine.client.ask(ListPasses(engine.client.next_request()), Passes)
    return show(options, found.passes, lambda item: f"{item.name} {item.summary}", _table)


def _table(passes: Sequence[PassInfo]) -> str:
    rows = [[item.name, item.level, "ours" if item.ours else "", item.anchor, item.summary] for item in passes]
    heading = ["pass", "level", "whose", "runs on", "summary"]
    return table(heading, rows, frozenset(heading))
