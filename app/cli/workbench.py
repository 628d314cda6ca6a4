"""`buddy-tui SOURCE`: opens the workbench on a program."""

from __future__ import annotations

import argparse
import gc
import sys
from collections.abc import Sequence

from buddy.app.cli import FAILURE, USAGE, VERBS, arguments, missing_source, missing_terminal

_SUMMARY = """Open the workbench on a PyTorch program: read every stage from the graph to machine code, and
switch every pass.

Headless verbs (see `buddy-tui VERB --help`):
"""


def parser() -> arguments.Parser:
    verbs = "\n".join(f"  {name:8} {text}" for name, text in VERBS.items() if name != "engine")
    found = arguments.source_parser("", _SUMMARY + verbs)
    found.usage = "buddy-tui [options] SOURCE [arguments of the script]\n       buddy-tui VERB --help"
    found.add_argument("--version", action="version", version=arguments.version())
    arguments.add_file_options(found)
    arguments.add_frontend_options(found.add_argument_group("recipe"))
    group = found.add_argument_group("screen")
    group.add_argument("--no-mouse", action="store_true", help="do not capture the mouse")
    group.add_argument(
        "--ascii", action="store_true", help="draw in ASCII only, which is the default if the encoding is not UTF-8"
    )
    text = "reload the script and plug-ins when their files change"
    group.add_argument("--watch", action="store_true", help=text)
    group.add_argument("--theme", help="start with this theme")
    group = found.add_argument_group("browser")
    group.add_argument("--web", action="store_true", help="serve the screen to a browser, at an address with a token")
    text = "the port to listen on (8000)"
    group.add_argument("--web-port", type=_port, metavar="PORT", default=8000, help=text)
    text = "the address to listen on (127.0.0.1: only this machine); traffic is not encrypted"
    group.add_argument("--web-host", metavar="ADDRESS", default="127.0.0.1", help=text)
    return found


def main(words: Sequence[str]) -> int:
    found = parser()
    if not words:
        found.print_help()
        return USAGE
    options, script = arguments.parse_with_script_arguments(found, words)
    problem = "" if options.engine or options.remote else missing_source(options.source)
    problem = problem or ("" if options.web else missing_terminal(options.source))
    if problem:
        print(problem, file=sys.stderr)
        return USAGE
    if options.web:
        return _serve(options, words)
    # Objects from before the first paint are never garbage, so collecting would only delay that paint.
    gc.disable()
    from buddy.app.workbench.launch import run_workbench

    return run_workbench(
        options.source,
        script,
        engine=arguments.engine_place(options),
        directory=arguments.working_folder(options),
        mouse=not options.no_mouse,
        ascii_mode=options.ascii or not _draws_more_than_ascii(),
        theme=options.theme,
        log=arguments.log_options(options),
        plugins=arguments.named_plugins(options),
        watch=options.watch,
        wanted=arguments.recipe_overrides(options),
        shapes=arguments.shapes_of(options),
        trusts=options.trust,
    )


def _draws_more_than_ascii() -> bool:
    """Whether the encoding of stderr, which Textual draws to, has the characters of borders and bars."""
    encoding = getattr(sys.__stderr__, "encoding", None) or "utf-8"
    try:
        return bool("─│█…Δ".encode(encoding))
    except (UnicodeEncodeError, LookupError):
        return False


def _serve(options: argparse.Namespace, words: Sequence[str]) -> int:
    """Serve the same command line, without its `--web` options, to a browser."""
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
    """The words of a command line without the `--web` options. Words after `--` belong to the script."""
    cut = list(words).index("--") if "--" in words else len(words)
    kept: list[str] = []
    skip, with_value = False, ("--web-port", "--web-host")
    for word in words[:cut]:
        if not skip and word.partition("=")[0] not in ("--web", *with_value):
            kept.append(word)
        skip = word in with_value
    return [*kept, *words[cut:]]


def _port(text: str) -> int:
    value = int(text)
    if not 0 < value < 1 << 16:
        raise argparse.ArgumentTypeError("must be 1 to 65535")
    return value
