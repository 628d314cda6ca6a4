"""`buddy-tui doctor`: shows what is installed, the machine and the terminal, and runs a small program.

The output can be pasted into a bug report: it contains no host name and no token, only the environment variables listed
in `surroundings`, and `~` for the home folder.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence

from buddy.app.cli import FAILURE, VERBS, arguments, run, surroundings
from buddy.app.cli.console import Console
from buddy.app.cli.headless import Failure, Headless, run_with_engine
from buddy.app.cli.surroundings import Facts, abbreviate_home
from buddy.app.session.client import RequestFailed
from buddy.compiler.protocol import ListPasses

SELF_TEST = "buddy.compiler.support.self_test:model"
# Seconds. The program compiles in one second, and importing torch takes a few.
SOON = 10.0


class _Findings:
    """Facts by title, in order. They are printed at once, or at the end as JSON."""

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json
        self._found: dict[str, dict[str, str]] = {}
        self.seconds = 0.0

    def add(self, title: str, facts: Facts) -> None:
        found = self._found[title] = {}
        for name, text in facts:
            # A fact without a title continues the previous one.
            key = name or list(found)[-1]
            found[key] = f"{found[key]}; {text}" if key in found else text
        if not self._as_json:
            print(title)
            for name, text in facts:
                print(f"  {name:<10} {text}")
            sys.stdout.flush()

    def end(self, code: int) -> None:
        if self._as_json:
            summary = {"ok": code == 0, "self_test_seconds": round(self.seconds, 2) or None}
            print(json.dumps({**summary, **self._found}, indent=2))


def parser() -> arguments.Parser:
    found = arguments.Parser("doctor", VERBS["doctor"])
    found.add_argument("--json", action="store_true", help="print one JSON object to stdout, everything else to stderr")
    arguments.add_engine_options(found)
    return found


def main(words: Sequence[str]) -> int:
    options = parser().parse_args(words)
    found = _Findings(options.json)
    found.add("here", surroundings.installation_facts())
    found.add("processor", surroundings.processor())
    found.add("terminal", surroundings.terminal())
    found.add("folders", surroundings.folders())
    found.add("optional parts", surroundings.package_facts())
    console = Console(plain=True, stdout_is_data=options.json)
    code = run_with_engine(options, console, lambda engine: _engine(engine, options, found))
    found.end(code)
    return code


async def _engine(engine: Headless, options: argparse.Namespace, found: _Findings) -> int:
    """The facts that the engine reports, and the result of a small program from capture to comparison."""
    welcome = engine.client.welcome
    assert welcome is not None
    packages = ", ".join(f"{name} {version}" for name, version in welcome.packages.items())
    # The host name and the command may be confidential.
    where = (
        "on another machine, over ssh"
        if options.remote
        else "started by --engine"
        if options.engine
        else "a local process"
    )
    facts = [("engine", where), ("buddy-tui", welcome.engine), ("with", packages)]
    facts += [("CPU", f"{welcome.target}, {welcome.cores} cores")]
    facts += [("", "differs from the local version")] * (welcome.engine != surroundings.version("buddy-tui"))
    found.add("engine", facts)
    found.add("MLIR", await _mlir(engine))
    started = time.monotonic()
    try:
        text, ok = await _self_test(engine, options)
    except Failure as failure:
        engine.console.error(failure.diagnostic, "the self-test")
        text, ok = "FAILED", False
    engine.console.done()
    found.seconds = time.monotonic() - started
    slow = f"; usually below {SOON:g} s, so the machine is busy or slow" if found.seconds > SOON else ""
    found.add("self-test", [("result", f"{text}, {found.seconds:.1f} s{slow}")])
    return 0 if ok else FAILURE


async def _mlir(engine: Headless) -> Facts:
    """The MLIR bindings that the engine uses, and the passes and dialects that they register."""
    try:
        found = await engine.client.request(ListPasses(0))
    except RequestFailed as failed:
        return [("bindings", str(failed.diagnostic))]
    there = found.bindings
    if there is None:
        return [("bindings", note) for note in found.notes]
    why = "named by BUDDY_MLIR_PACKAGE" if there.named else "from torch-mlir, because BUDDY_MLIR_PACKAGE is not set"
    facts = [("bindings", f"{there.package} {there.version} in {abbreviate_home(there.folder)}, {why}")]
    facts += [("passes", f"{len(found.passes)}, {sum(item.ours for item in found.passes)} of them from buddy-tui")]
    facts += [("dialects", f"{len(found.dialects)}: {', '.join(item.name for item in found.dialects)}")]
    tool = abbreviate_home(there.tool) if there.tool else "not in PATH, and BUDDY_MLIR_OPT is not set"
    return [*facts, ("mlir-opt", there.tool_problem or tool)]


async def _self_test(engine: Headless, options: argparse.Namespace) -> tuple[str, bool]:
    """Compile, run and compare. Returns the result as text, and whether it is OK. Raises `Failure`."""
    words = [SELF_TEST, *arguments.engine_words(options)]
    (recipe,) = await engine.program(run.parser().parse_args(words), ())
    compilation = await engine.run(recipe, 3, 60.0)
    assert compilation.report is not None
    ok = compilation.report.ok
    verdict = "matches eager" if ok else "MISMATCH with eager"
    return f"{len(compilation.stages)} stages, {verdict}", ok
