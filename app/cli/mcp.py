"""`buddy-tui mcp`: serves the workbench's functions to an agent as tools of the Model Context Protocol, over stdio."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from buddy.app.cli import USAGE_ERROR, VERBS, arguments

_EPILOG = """
The agent's client starts this command and talks to it on stdin and stdout. Tools open programs, read, search and
compare stages, edit the recipe, run, profile, bisect, and write recipes and reports. Paths outside of the folder are
refused. A script that is opened is executed. See docs/how-to/agents.md.
"""


def make_parser() -> arguments.Parser:
    parser = arguments.Parser("mcp", VERBS["mcp"], _EPILOG)
    text = "the folder that tools may read and write, with everything in it (default: the current folder)"
    parser.add_argument("--folder", type=Path, metavar="DIR", default=Path(), help=text)
    text = "time limit of the script and of each run (default: 120)"
    parser.add_argument("--timeout", type=arguments.positive_seconds, default=120.0, metavar="SECONDS", help=text)
    return parser


def main(words: Sequence[str]) -> int:
    parser = make_parser()
    options = parser.parse_args(words)
    if not options.folder.is_dir():
        parser.error(f"{options.folder} is not a folder")
    try:  # the package `mcp` is an extra
        from buddy.app.cli.mcp_server import serve
    except ImportError as error:
        if not (error.name or "").startswith("mcp"):
            raise
        print(f"buddy-tui mcp needs the package mcp: pip install 'buddy-tui[mcp]' ({error})", file=sys.stderr)
        return USAGE_ERROR
    # Relative paths, also those of the script, are relative to the folder.
    os.chdir(options.folder)
    asyncio.run(serve(Path.cwd(), options.timeout))
    return 0
