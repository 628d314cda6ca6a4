"""`buddy-tui SOURCE`: the workbench on a program."""

from __future__ import annotations

import argparse
import gc
import os
import shlex
import sys
from collections.abc import Sequence

from buddy.app.cli import FAILURE, USAGE, VERBS, arguments

_SUMMARY = """Open the workbench on a PyTorch program: every stage from the graph to machine code, every pass a switch.

Verbs without a screen (`buddy-tui VERB --help` tells more):
"""


def parser() -> arguments.Parser:
    verbs = "\n".join(f"  {name:8} {text}" for name, text in VERBS.items() if name != "engine")
    found = arguments.source_parser("", _SUMMARY + verbs)
    found.usage = "buddy-tui [options] SOURCE [arguments of the script]\n       buddy-tui VERB --help"
    found.add_argument("--version", action="version", version=arguments.version())
    arguments.add_file_options(found)
    arguments.add_road_options(found.add_argument_group("recipe"))
    group = found.add_argument_group("screen")
    group.add_argument("--no-mouse", action="store_true", help="leave the mouse to the terminal")
    group.add_argument("--ascii", action="store_true", help="draw with ASCII alone, as where the encoding is not UTF-8")
    text = "load the script, and plug-ins, again whenever their files change"
    group.add_argument("--watch", action="store_true", help=text)
    group.add_argument("--theme", help="start with this theme")
    group = found.add_argument_group("browser")
    group.add_argument(
        "--web", action="store_true", help="serve the screen to a browser, at an address that holds a token"
    )
    text = "the port to serve at (8000)"
    group.add_argument("--web-port", type=_port, metavar="PORT", default=8000, help=text)
    text = "the address to serve at (127.0.0.1: this machine alone); traffic is not encrypted"
    group.add_argument("--web-host", metavar="ADDRESS", default="127.0.0.1", help=text)
    return found


def main(words: Sequence[str]) -> int:
    found = parser()
    if not words:
        found.print_help()
        return USAGE
    options, script = arguments.parse(found, words)
    problem = _no_such_source(options) or ("" if options.web else _no_terminal(options.source))
    if problem:
        print(problem, file=sys.stderr)
        return USAGE
    if options.web:
        return _serve(options, words)
    # What is imported and made before the first paint stays: looking for garbage in it would only delay that.
    gc.disable()
    from buddy.app.workbench.launch import run_workbench

    return run_workbench(
        options.source,
        script,
        engine=arguments.engine_place(options),
        directory=arguments.directory(options),
        mouse=not options.no_mouse,
        ascii_mode=options.ascii or not _draws_more_than_ascii(),
        theme=options.theme,
        log=arguments.log_of(options),
        plugins=arguments.plugins(options),
        watch=options.watch,
        wanted=arguments.wanted_of(options),
        shapes=arguments.shapes_of(options),
        trusts=options.trust,
    )


def _no_such_source(options: argparse.Namespace) -> str:
    """Why a plain word names no program; "" where it may, as every word does on another machine."""
    source: str = options.source
    elsewhere = options.engine or options.remote
    if elsewhere or not source.replace("-", "_").isidentifier() or os.path.lexists(source):
        return ""
    return f"no verb {source!r}, and no such file in {os.getcwd()} (`buddy-tui --help` lists the verbs)"


def _no_terminal(source: str) -> str:
    """Why there is no screen to draw on; "" where there is one, or where a driver of its own stands for it."""
    if os.environ.get("TEXTUAL_DRIVER"):  # textual-serve, which starts this with pipes
        return ""
    streams = {"input": sys.__stdin__, "output": sys.__stdout__, "error output": sys.__stderr__}
    lacking = [name for name, stream in streams.items() if stream is None or not stream.isatty()]
    if not lacking:
        return ""
    todo = f"without a screen: `buddy-tui run {shlex.quote(source)}`"
    return f"the workbench needs a terminal, and has none at standard {', '.join(lacking)}; {todo}"


def _draws_more_than_ascii() -> bool:
    """Whether the encoding of the terminal, which Textual writes to by way of stderr, has borders and bars."""
    encoding = getattr(sys.__stderr__, "encoding", None) or "utf-8"
    try:
        return bool("─│█…Δ".encode(encoding))
    except (UnicodeEncodeError, LookupError):
        return False


def _serve(options: argparse.Namespace, words: Sequence[str]) -> int:
    """Serve the same command line, without what makes it serve, to a browser."""
    try:
        from buddy.app.workbench.web import serve
    except ImportError as error:
        print(f"--web needs {error.name}, of the extra `web`: pip install 'buddy-tui[web]'", file=sys.stderr)
        return FAILURE
    from buddy.app.session.client import module_command

    command = [*module_command("buddy.app.cli"), *without_web(words)]
    try:
        serve(command, options.web_host, options.web_port, f"buddy-tui {options.source}")
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        todo = "choose another with --web-port or --web-host"
        print(f"{options.web_host}:{options.web_port} cannot be served at: {reason} · {todo}", file=sys.stderr)
        return FAILURE
    return 0


def without_web(words: Sequence[str]) -> list[str]:
    """The words of a command line without ours of the browser; what stands behind `--` is the script's."""
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
