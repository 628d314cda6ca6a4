"""Options and output shared by the verbs that list what the engine has: passes, dialects, backends, ops."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec

from buddy.app.cli import FAILURE, arguments

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
    """Print the items whose `searched_text` contains TEXT, in any case. Returns the exit code: 1 without a match.

    Items are structs of msgspec. They are printed by `as_table`, or with `--json` as a list of objects.
    """
    matching = [item for item in items if options.text.lower() in searched_text(item).lower()]
    if options.json:
        objects: list[Any] = [msgspec.to_builtins(item) for item in matching]
        print(json.dumps(objects, indent=2))
    else:
        print(as_table(matching) if matching else f"no entry contains {options.text!r}")
    return 0 if matching else FAILURE
