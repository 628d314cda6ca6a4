"""`buddy-tui ops [TEXT]`: lists the supported ATen ops and the registries that lower them."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from buddy.app.cli import VERBS, arguments
from buddy.app.cli.console import Console
from buddy.app.cli.headless import Headless, run_with_engine
from buddy.app.cli.passes import make_catalogue_parser, print_matching
from buddy.app.reports.formatting import table
from buddy.compiler.protocol import ListOps, OpInfo


def make_parser() -> arguments.Parser:
    return make_catalogue_parser("ops", VERBS["ops"])


def main(words: Sequence[str]) -> int:
    options = make_parser().parse_args(words)
    return run_with_engine(
        options, Console(options.plain, stdout_is_data=True), lambda engine: _list_ops(engine, options)
    )


async def _list_ops(engine: Headless, options: argparse.Namespace) -> int:
    """Prints the ops that match. Returns the exit code."""
    request = ListOps(0, arguments.working_folder(options), arguments.plugins_of(options))
    catalogue = await engine.client.request(request)
    for note in catalogue.notes:
        engine.console.note(f"note: {note}")
    return print_matching(options, catalogue.ops, lambda op: f"{op.target} {op.op}", _table)


def _table(ops: Sequence[OpInfo]) -> str:
    heading = ["target", "op", "registries", "origin"]
    rows = [[op.target, op.op or "decomposed", ", ".join(op.registries), op.origin or "ours"] for op in ops]
    return table(heading, rows, frozenset(heading))
