"""`buddy-tui doctor`: what is installed, on what machine, in what terminal, and whether a small program works.

What it prints is made to be pasted into a report: nothing of the environment but what is named here, and the home
folder as `~`.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import sys
import time
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from buddy.app.cli import FAILURE, VERBS, arguments, run
from buddy.app.cli.console import Console
from buddy.app.cli.headless import Failure, Headless, converse
from buddy.app.client import RequestFailed
from buddy.app.settings import settings_path
from buddy.app.workspace import default_store
from buddy.compiler.protocol import ListPasses, Passes

SELF_TEST = "buddy.compiler.self_test:model"
# A program that compiles in a second, on a machine where torch takes a few to import.
SOON = 10.0
PACKAGES = ("textual", "textual-plot", "msgspec", "pygments", "capstone", "pyelftools")
# What each optional part needs.
PARTS = {
    "samples": "transformers",
    "blas": "scipy-openblas32",
    "bench": "matplotlib",
    "iree": "iree-base-compiler",
    "cuda": "cuda-bindings",
    "coverage": "expecttest",
    "web": "textual-serve",
}
_TERMINALS = ("TERM", "COLORTERM", "NO_COLOR", "LANG", "LC_ALL")
_OURS = ("BUDDY_CACHE", "BUDDY_TUI_STATE", "BUDDY_TUI_CONFIG", "BUDDY_MLIR_PACKAGE", "BUDDY_MLIR_OPT")

Facts = list[tuple[str, str]]


def parser() -> arguments.Parser:
    found = arguments.Parser("doctor", VERBS["doctor"])
    arguments.add_engine_options(found)
    return found


def main(words: Sequence[str]) -> int:
    options = parser().parse_args(words)
    _show("here", [*_here(), *_terminal(), *_folders()])
    _show("optional parts", [(name, _version(package)) for name, package in PARTS.items()])
    sys.stdout.flush()
    return converse(options, Console(plain=True), lambda engine: _engine(engine, options))


async def _engine(engine: Headless, options: argparse.Namespace) -> int:
    """What the engine says of its side, and a small program from capture to comparison."""
    welcome = engine.client.welcome
    assert welcome is not None
    packages = ", ".join(f"{name} {version}" for name, version in welcome.packages.items())
    where = options.remote or options.engine or "a process here"
    facts = [("engine", where), ("buddy-tui", welcome.engine), ("with", packages)]
    facts += [("CPU", f"{welcome.target}, {welcome.cores} cores")]
    facts += [("", "another version than here")] * (welcome.engine != _version("buddy-tui"))
    _show("engine", facts)
    _show("MLIR", await _mlir(engine))
    try:
        text, ok = await _self_test(engine, options)
    except Failure as failure:
        engine.console.error(failure.diagnostic, "the self-test")
        text, ok = "FAILED", False
    engine.console.done()
    _show("self-test", [("result", text)])
    return 0 if ok else FAILURE


async def _mlir(engine: Headless) -> Facts:
    """Which bindings the engine uses, and what they have registered."""
    try:
        found = await engine.client.ask(ListPasses(engine.client.next_request()), Passes)
    except RequestFailed as failed:
        return [("bindings", str(failed.diagnostic))]
    there = found.bindings
    if there is None:
        return [("bindings", note) for note in found.notes]
    why = "named by BUDDY_MLIR_PACKAGE" if there.named else "torch-mlir's, since BUDDY_MLIR_PACKAGE is not set"
    facts = [("bindings", f"{there.package} {there.version} in {_short(there.folder)}, {why}")]
    facts += [("passes", f"{len(found.passes)}, {sum(item.ours for item in found.passes)} of them written here")]
    facts += [("dialects", f"{len(found.dialects)}: {', '.join(item.name for item in found.dialects)}")]
    tool = _short(there.tool) if there.tool else "not on the path, and BUDDY_MLIR_OPT is not set"
    return [*facts, ("mlir-opt", there.tool_problem or tool)]


async def _self_test(engine: Headless, options: argparse.Namespace) -> tuple[str, bool]:
    """Compile, run and compare: what came of it, and whether all is well. Raises `Failure`."""
    started = time.monotonic()
    words = [SELF_TEST, *arguments.engine_words(options)]
    (recipe,) = await engine.program(run.parser().parse_args(words), ())
    compilation = await engine.run(recipe, 3, 60.0)
    seconds = time.monotonic() - started
    assert compilation.report is not None
    ok = compilation.report.ok
    slow = f"; {SOON:g} s are usual, so the machine is busy or slow" if seconds > SOON else ""
    verdict = "the same numbers as eager" if ok else "OTHER NUMBERS than eager"
    return f"{len(compilation.stages)} stages, {verdict}, {seconds:.1f} s{slow}", ok


def _here() -> Facts:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    packages = ", ".join(f"{name} {_version(name)}" for name in PACKAGES)
    return [
        ("buddy-tui", f"{_version('buddy-tui')}, {_short(Path(__file__).resolve().parents[2])}"),
        ("Python", f"{platform.python_version()}, {_short(sys.executable)}"),
        ("system", f"{platform.platform()}, {memory:.1f} GiB of memory"),
        ("with", packages),
    ]


def _terminal() -> Facts:
    size = shutil.get_terminal_size()
    inside = [
        name for name, sign in (("tmux", "TMUX"), ("screen", "STY"), ("ssh", "SSH_CONNECTION")) if sign in os.environ
    ]
    kind = "a terminal" if sys.stdout.isatty() else "no terminal"
    variables = ", ".join(f"{name}={_short(os.environ[name])}" for name in (*_TERMINALS, *_OURS) if name in os.environ)
    return [
        (
            "terminal",
            f"{kind}, {size.columns}x{size.lines}, {sys.stdout.encoding}, in {' and '.join(inside) or 'nothing else'}",
        ),
        ("set", variables or "nothing"),
    ]


def _folders() -> Facts:
    from buddy.compiler import disk_cache

    folders = [("settings", settings_path()), ("state", default_store()), ("cache", disk_cache.folder())]
    return [(name, f"{_short(path)}, {_free(Path(path))}") for name, path in folders]


def _free(path: Path) -> str:
    """How much room there is where a folder is, or would be made."""
    there = next(folder for folder in (path, *path.parents) if folder.exists())
    writable = "" if os.access(there, os.W_OK) else ", NOT WRITABLE"
    return f"{shutil.disk_usage(there).free / 2**30:.1f} GiB free{writable}"


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def _short(path: object) -> str:
    return str(path).replace(str(Path.home()), "~")


def _show(title: str, facts: Facts) -> None:
    print(title)
    for name, text in facts:
        print(f"  {name:<10} {text}")
