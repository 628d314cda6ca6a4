"""`buddy-tui engine`: serves a client on stdin and stdout. `ssh HOST buddy-tui engine` starts it on a remote host."""

from __future__ import annotations

import argparse
import os
import re
import stat
import sys
from collections.abc import Sequence

from buddy.app.cli import USAGE, VERBS, arguments
from buddy.app.session.transport import RECONNECT_SECONDS

_NOT_INTERACTIVE = """buddy-tui engine communicates with a workbench through pipes; it is not interactive. To use it
from another machine, run on that machine: buddy-tui --remote HOST script.py"""


def main(words: Sequence[str]) -> int:
    parser = arguments.Parser("engine", VERBS["engine"])
    parser.add_argument("--log", default="", metavar="FILE", help="write the log to FILE instead of stderr")
    group = parser.add_mutually_exclusive_group()
    text = "start an engine called NAME that keeps running without a connection, and connect to it"
    group.add_argument("--keep", type=_name, metavar="NAME", help=text)
    group.add_argument("--back", type=_name, metavar="NAME", help="reconnect to the engine called NAME")
    group.add_argument(
        "--end", type=_name, metavar="NAME", help="stop the engine called NAME, by a signal if necessary"
    )
    text = f"how long the engine waits for a reconnect before it exits (default: {RECONNECT_SECONDS:g})"
    parser.add_argument(
        "--wait", type=arguments.positive_seconds, metavar="SECONDS", default=RECONNECT_SECONDS, help=text
    )
    options = parser.parse_args(words)
    if options.end:
        from buddy.compiler.engine.relay import end_engine

        return end_engine(options.end)
    if not _has_client():
        print(_NOT_INTERACTIVE, file=sys.stderr)
        return USAGE
    if options.keep or options.back:
        from buddy.compiler.engine.relay import run_relay

        return run_relay(options.keep or options.back, options.wait, start=bool(options.keep))
    from buddy.compiler.engine.__main__ import main as serve

    return serve([options.log] if options.log else [])


def _name(text: str) -> str:
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
