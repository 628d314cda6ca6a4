"""`buddy-tui engine`: serves a client on stdin and stdout, or with an ID relays to an engine in the background.

`ssh HOST buddy-tui engine` starts it on a remote host.
"""

from __future__ import annotations

import argparse
import os
import re
import stat
import sys
from collections.abc import Sequence

from buddy.app.cli import USAGE_ERROR, VERBS, arguments
from buddy.app.session.engine_options import RECONNECT_SECONDS

_NOT_INTERACTIVE = """buddy-tui engine communicates with a workbench through pipes; it is not interactive. To use it
from another machine, run on that machine: buddy-tui --remote HOST script.py"""


def make_parser() -> arguments.Parser:
    parser = arguments.Parser("engine", VERBS["engine"])
    parser.add_argument("--log", default="", metavar="FILE", help="write the log to FILE instead of stderr")
    group = parser.add_mutually_exclusive_group()
    text = (
        "connect to the engine called ID (8 to 64 hexadecimal digits), started if it does not run; it keeps running "
        "for --wait seconds without a connection, and logs next to its socket"
    )
    group.add_argument("--keep", type=_engine_id, metavar="ID", help=text)
    group.add_argument(
        "--back", "--reconnect", type=_engine_id, metavar="ID", help="reconnect to the engine called ID, if it runs"
    )
    group.add_argument(
        "--end", type=_engine_id, metavar="ID", help="stop the engine called ID, by a signal if necessary"
    )
    text = (
        "with --keep, if it starts the engine: how long that waits for a reconnect before it exits "
        f"(default: {RECONNECT_SECONDS:g})"
    )
    parser.add_argument(
        "--wait", type=arguments.positive_seconds, metavar="SECONDS", default=RECONNECT_SECONDS, help=text
    )
    return parser


def main(words: Sequence[str]) -> int:
    """Serves a client, relays to an engine with an ID, or stops such an engine. Returns the exit code.

    The modules of the engine are imported where they are needed: a relay needs only a few of them.
    """
    parser = make_parser()
    options = parser.parse_args(words)
    if options.log and (options.keep or options.back or options.end):
        parser.error(
            "--log applies only without --keep, --back and --end: an engine with an ID logs next to its socket"
        )
    if options.end:
        from buddy.compiler.engine.relay import end_engine

        return end_engine(options.end)
    if not _has_client():
        print(_NOT_INTERACTIVE, file=sys.stderr)
        return USAGE_ERROR
    if options.keep or options.back:
        from buddy.compiler.engine.relay import run_relay

        return run_relay(options.keep or options.back, options.wait, start=bool(options.keep))
    from buddy.compiler.engine.__main__ import main as serve

    return serve([options.log] if options.log else [])


def _engine_id(text: str) -> str:
    """`text`, if it can be the ID of an engine. Raises `ArgumentTypeError`."""
    if not re.fullmatch("[0-9a-f]{8,64}", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not 8 to 64 hexadecimal digits")
    return text


def _has_client() -> bool:
    """Whether stdin is a pipe or a socket. Frames never come from a terminal, and a regular file cannot be polled."""
    try:
        mode = os.fstat(0).st_mode
    except OSError:
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)
