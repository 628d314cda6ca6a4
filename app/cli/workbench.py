"""`buddy-tui SOURCE`: opens the workbench on a program."""

from __future__ import annotations

import argparse
import gc
import os
import sys
from collections.abc import Sequence

from buddy.app.cli import FAILURE, USAGE_ERROR, VERBS, arguments, missing_terminal_error
from buddy.app.cli import main as cli_main
from buddy.app.workspace.sources import missing_source_error

_SUMMARY = """Open the workbench on a PyTorch program: read every stage from the graph to machine code, and
enable or disable every pass.

Headless verbs (see `buddy-tui VERB --help`):
"""


def make_parser() -> arguments.Parser:
    verbs = "\n".join(f"  {name:8} {text}" for name, text in VERBS.items() if name != "engine")
    parser = arguments.source_parser("", _SUMMARY + verbs)
    parser.usage = "buddy-tui [options] SOURCE [arguments of the script]\n       buddy-tui VERB --help"
    parser.add_argument("--version", action=arguments.PrintVersion)
    arguments.add_file_options(parser)
    arguments.add_frontend_options(parser.add_argument_group("recipe"))
    group = parser.add_argument_group("screen")
    group.add_argument("--no-mouse", action="store_true", help="do not capture the mouse")
    group.add_argument(
        "--ascii", action="store_true", help="draw in ASCII only, which is the default if the encoding is not UTF-8"
    )
    text = "reopen the program when the script, a file that it imports, or a plug-in changes"
    group.add_argument("--watch", action="store_true", help=text)
    text = "keep reading a log of another compiler while it is being written, and show its last stage"
    group.add_argument("--follow", action="store_true", help=text)
    text = "read commands from stdin and print what changes as lines, for screen readers and pipes"
    group.add_argument("--plain", action="store_true", help=text)
    text = "show a pane of a plug-in: a class in a file of this machine, or in an installed package without the option"
    group.add_argument("--pane", metavar="FILE.py:CLASS", action="append", default=[], type=_pane_path, help=text)
    group.add_argument("--theme", help="start with this theme")
    group = parser.add_argument_group("browser")
    group.add_argument("--web", action="store_true", help="serve the screen to a browser, at an address with a token")
    text = "the port that the server listens on (default: 8000)"
    group.add_argument("--web-port", type=_port, metavar="PORT", default=8000, help=text)
    text = "the address that the server listens on (default: 127.0.0.1, only this machine); traffic is not encrypted"
    group.add_argument("--web-host", metavar="ADDRESS", default="127.0.0.1", help=text)
    return parser


# The options that apply to the first screen too, where a program is chosen: they describe the terminal.
_TERMINAL_OPTIONS = frozenset(("--no-mouse", "--ascii"))


def main(words: Sequence[str]) -> int:
    """Opens the workbench, here or for a browser; without a SOURCE, the first screen. Returns the exit code."""
    parser = make_parser()
    if _TERMINAL_OPTIONS.issuperset(words):
        if error := missing_terminal_error():
            print(error, file=sys.stderr)
            return USAGE_ERROR
        return _start(words)
    options, script = arguments.parse_with_script_arguments(parser, words)
    if options.web and options.plain:
        parser.error("--plain prints lines here, --web serves the screen: give one of them")
    error = "" if options.engine or options.remote else missing_source_error(options.source)
    error = error or ("" if options.web or options.plain else missing_terminal_error(options.source))
    if error:
        print(error, file=sys.stderr)
        return USAGE_ERROR
    # A log that is followed may still be empty.
    if not (options.follow and os.path.isfile(options.source)) and arguments.report_source_error(options):
        return USAGE_ERROR
    if options.web:
        return _serve(options, words)
    # What is allocated before the first paint stays alive, so a collection would only delay that paint.
    gc.disable()
    from buddy.app.workbench.launch import run_workbench

    return run_workbench(
        options.source,
        script,
        engine=arguments.engine_location(options),
        directory=arguments.working_folder(options),
        mouse=not options.no_mouse,
        ascii_mode=options.ascii or not _can_draw_boxes(),
        theme=options.theme,
        log=arguments.log_options(options),
        plugins=arguments.plugins_of(options),
        watch=options.watch,
        overrides=arguments.recipe_overrides(options),
        shapes=arguments.shapes_of(options),
        is_trusted=options.trust,
        follows_file=options.follow,
        plain=options.plain,
        panes=tuple(options.pane),
    )


def _pane_path(text: str) -> str:
    """The value of `--pane` with an absolute path. Raises `ArgumentTypeError`."""
    from buddy.app.session.pane_plugins import pane_file_error

    if error := pane_file_error(text):
        raise argparse.ArgumentTypeError(error)
    return os.path.abspath(text)


def _start(words: Sequence[str]) -> int:
    """Lets the user choose a program, and opens it with the options `words`, or runs the chosen verb."""
    from buddy.app.workbench.start import Verb, choose_program

    choice = choose_program(ascii_mode="--ascii" in words or not _can_draw_boxes(), mouse="--no-mouse" not in words)
    if choice is None:
        return 0
    if isinstance(choice, Verb):
        return cli_main([choice.name])
    opened = [*words, choice.source]
    return main([*opened, "--", *choice.arguments] if choice.arguments else opened)


def _can_draw_boxes() -> bool:
    """Whether the encoding of stderr, which Textual draws to, has the characters of borders and bars."""
    encoding = getattr(sys.__stderr__, "encoding", None) or "utf-8"
    try:
        return bool("─│█…Δ".encode(encoding))
    except (UnicodeEncodeError, LookupError):
        return False


def _serve(options: argparse.Namespace, words: Sequence[str]) -> int:
    """Serves the same command line, without its `--web` options, to a browser. Returns the exit code."""
    try:
        from buddy.app.workbench.web import serve
    except ImportError as error:
        print(f"--web needs {error.name}: pip install 'buddy-tui[web]'", file=sys.stderr)
        return FAILURE
    from buddy.app.session.client import module_command

    command = [*module_command("buddy.app.cli"), *without_web(words)]
    try:
        serve(command, options.web_host, options.web_port, f"buddy-tui {options.source}")
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        todo = "choose another address with --web-port or --web-host"
        print(f"cannot listen on {options.web_host}:{options.web_port}: {reason} · {todo}", file=sys.stderr)
        return FAILURE
    return 0


def without_web(words: Sequence[str]) -> list[str]:
    """The words of a command line without `--web`, `--web-port` and `--web-host`, except after `--`."""
    end = list(words).index("--") if "--" in words else len(words)
    options_with_value = ("--web-port", "--web-host")
    remaining: list[str] = []
    is_value = False  # whether the word is the value of the option before it
    for word in words[:end]:
        if not is_value and word.partition("=")[0] not in ("--web", *options_with_value):
            remaining.append(word)
        is_value = word in options_with_value
    return [*remaining, *words[end:]]


def _port(text: str) -> int:
    """The value of `--web-port`. Raises `ArgumentTypeError`."""
    value = int(text)
    if not 0 < value < 1 << 16:
        raise argparse.ArgumentTypeError("must be 1 to 65535")
    return value
