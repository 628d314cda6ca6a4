"""`buddy-tui engine`: serve a client on stdin and stdout; what `ssh HOST buddy-tui engine` starts on the other side."""

from __future__ import annotations

from collections.abc import Sequence

from buddy.app.cli import VERBS, arguments


def main(words: Sequence[str]) -> int:
    parser = arguments.Parser("engine", VERBS["engine"])
    parser.add_argument("--log", default="", metavar="FILE", help="write the log to FILE instead of stderr")
    options = parser.parse_args(words)
    from buddy.compiler.engine.__main__ import main as serve

    return serve([options.log] if options.log else [])
