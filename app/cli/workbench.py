"""`buddy-tui SOURCE`: the workbench on a program."""

from __future__ import annotations

from collections.abc import Sequence

from buddy.app.cli import USAGE, VERBS, arguments

_SUMMARY = """Open the workbench on a PyTorch program: every stage from the graph to machine code, every pass a switch.

Verbs without a screen (`buddy-tui VERB --help` tells more):
"""


def parser() -> arguments.Parser:
    verbs = "\n".join(f"  {name:8} {text}" for name, text in VERBS.items() if name != "engine")
    found = arguments.source_parser("", _SUMMARY + verbs)
    found.usage = "buddy-tui [options] SOURCE [arguments of the script]\n       buddy-tui VERB --help"
    found.add_argument("--version", action="version", version=arguments.version())
    group = found.add_argument_group("screen")
    group.add_argument("--no-mouse", action="store_true", help="leave the mouse to the terminal")
    group.add_argument("--ascii", action="store_true", help="draw with ASCII alone")
    group.add_argument("--theme", help="start with this theme")
    return found


def main(words: Sequence[str]) -> int:
    found = parser()
    if not words:
        found.print_help()
        return USAGE
    options, script = arguments.parse(found, words)
    from buddy.app.workbench import run_workbench

    return run_workbench(
        options.source,
        script,
        engine=arguments.engine_place(options),
        directory=arguments.directory(options),
        mouse=not options.no_mouse,
        ascii_mode=options.ascii,
        theme=options.theme,
        log=options.log,
        plugins=arguments.plugins(options),
    )
