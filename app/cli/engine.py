"""`buddy-tui engine`: serve a client on stdin and stdout; what `ssh HOST buddy-tui engine` starts on the other side."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Sequence

from buddy.app.cli import USAGE, VERBS, arguments

_FOR_CLIENTS = """buddy-tui engine speaks with a workbench through pipes, not with a person. To work on this machine
from another one, start there: buddy-tui --engine 'ssh HOST buddy-tui engine' script.py"""


def main(words: Sequence[str]) -> int:
    parser = arguments.Parser("engine", VERBS["engine"])
    parser.add_argument("--log", default="", metavar="FILE", help="write the log to FILE instead of stderr")
    options = parser.parse_args(words)
    if not _has_client():
        print(_FOR_CLIENTS, file=sys.stderr)
        return USAGE
    from buddy.compiler.engine.__main__ import main as serve

    return serve([options.log] if options.log else [])


def _has_client() -> bool:
    """Whether stdin is a pipe or a socket: frames neither come from a terminal nor can a file be waited for."""
    try:
        mode = os.fstat(0).st_mode
    except OSError:
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)
