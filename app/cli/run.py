"""`buddy-tui run SOURCE`: compiles and runs a program, compares it with eager, and times both."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import Any

from buddy.app.cli import FAILURE, VERBS, arguments
from buddy.app.cli.console import Console
from buddy.app.cli.headless import Failure, Headless, run_with_engine
from buddy.app.cli.recipes import inputs_of
from buddy.app.reports.run_report import as_json, as_text, failure_json, in_eager
from buddy.compiler.protocol import Assignment, Diagnostic, GraphInfo, RunReport
from buddy.compiler.protocol.recipe import EAGER, Recipe


def parser() -> arguments.Parser:
    found = arguments.source_parser("run", VERBS["run"])
    arguments.add_recipe_options(found)
    arguments.add_input_options(found)
    arguments.add_output_options(found)
    group = found.add_argument_group("run")
    group.add_argument(
        "--all", action="store_true", help="every graph of the program, which is the default without --graph"
    )
    group.add_argument("--repeats", type=arguments.positive_number, default=10, metavar="N", help="timed runs (10)")
    arguments.add_comparison_options(group)
    return found


def main(words: Sequence[str]) -> int:
    found = parser()
    options, script = arguments.parse_with_script_arguments(found, words)
    if options.all and options.graph is not None:
        found.error("--all selects every graph, --graph only one: give one of them")
    console = Console(options.plain, stdout_is_data=options.json)
    return run_with_engine(options, console, lambda engine: _run(engine, options, script))


async def _run(engine: Headless, options: argparse.Namespace, script: tuple[str, ...]) -> int:
    """Run the graphs one after another. A failure does not stop the others."""
    found = _Result(options, script)
    try:
        for recipe in await engine.program(options, script):
            await _run_graph(engine, options, recipe, found)
    except Failure as failure:
        engine.console.error(failure.diagnostic)
        found.failed(failure)
    if options.json:
        print(json.dumps(found.as_json(), indent=2, allow_nan=False))
    return 0 if found.ok else FAILURE


async def _run_graph(engine: Headless, options: argparse.Namespace, recipe: Recipe, found: _Result) -> None:
    try:
        inputs, nan = inputs_of(options), options.equal_nan
        compilation = await engine.run(recipe, options.repeats, options.timeout, inputs, equal_nan=nan)
    except Failure as failure:
        engine.console.error(failure.diagnostic, f"graph {recipe.graph}")
        found.failed(failure, recipe.graph)
        return
    assert compilation.report is not None
    info = engine.graphs[recipe.graph]
    broken = unexpected_eager_nodes(info, compilation.assignments, recipe)
    found.ran(info, compilation.report, compilation.assignments, broken)
    if not options.json:
        print(as_text(info, compilation.report, compilation.assignments))
    if broken is not None:
        engine.console.error(broken, f"graph {recipe.graph}")


def unexpected_eager_nodes(info: GraphInfo, assignments: Sequence[Assignment], recipe: Recipe) -> Diagnostic | None:
    """The error for nodes that fall back to eager although the script sets `fallback="error"`; `None` without any."""
    left = [a for a in in_eager(assignments) if recipe.choice_map().get(a.node) != EAGER]
    if not info.strict or not left:
        return None
    return Diagnostic(
        f"the script sets fallback='error', but {len(left)} of {len(assignments)} nodes fall back to eager",
        info.name,
        "add a lowering for these ops (docs/adding-an-operator.md), use other ops, or set fallback='eager'",
        detail="\n".join(f"{a.node}: {a.reason}" for a in left),
        node=left[0].node,
    )


class _Result:
    """The results of all graphs."""

    def __init__(self, options: argparse.Namespace, script: tuple[str, ...]) -> None:
        self._head: dict[str, Any] = {"source": options.source, "arguments": list(script)}
        self._graphs: list[dict[str, Any]] = []
        self._error: dict[str, Any] = {}
        self.ok = True
        self._compared = True

    def ran(
        self, info: GraphInfo, report: RunReport, assignments: Sequence[Assignment], broken: Diagnostic | None
    ) -> None:
        error = {} if broken is None else {"ok": False, "error": failure_json(broken)}
        self._graphs.append({**as_json(info, report, assignments), **error})
        self.ok &= not report.wrong and broken is None
        self._compared &= not report.not_compared

    def failed(self, failure: Failure, graph: int | None = None) -> None:
        self.ok = False
        if graph is None:
            self._error = {"error": failure_json(failure.diagnostic)}
        else:
            self._graphs.append({"graph": graph, "ok": False, "error": failure_json(failure.diagnostic)})

    def as_json(self) -> dict[str, Any]:
        # A graph that was not compared is not reported as OK.
        ok = self.ok if self._compared or not self.ok else None
        return {**self._head, "ok": ok, **self._error, "graphs": self._graphs}
