"""`buddy-tui run SOURCE`: compiles and runs a program, compares it with eager, and times both."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import Any, get_args

from buddy.app.cli import FAILURE, VERBS, arguments
from buddy.app.cli.console import Console
from buddy.app.cli.headless import Failure, Headless, run_with_engine
from buddy.app.cli.recipes import inputs_of
from buddy.app.reports.run_report import (
    eager_assignments,
    failure_json,
    part_seconds,
    part_times_text,
    run_report_json,
    run_report_text,
)
from buddy.compiler.protocol import OPERATOR_GUIDE, Assignment, Diagnostic, GraphInfo, RunReport
from buddy.compiler.protocol.recipe import EAGER, Recipe
from buddy.compiler.protocol.run_report import OWN_INPUTS, RUNTIMES, Mark


def make_parser() -> arguments.Parser:
    parser = arguments.source_parser("run", VERBS["run"])
    arguments.add_recipe_options(parser)
    arguments.add_input_options(parser)
    arguments.add_output_options(parser)
    group = parser.add_argument_group("run")
    group.add_argument(
        "--all", action="store_true", help="every graph of the program, which is the default without --graph"
    )
    arguments.add_repeats_option(group)
    arguments.add_comparison_options(group)
    text = f"also run other runtimes, separated by commas, and compare them with eager: {', '.join(RUNTIMES)}"
    group.add_argument("--beside", type=_runtime_names, metavar="NAMES", default=(), help=text)
    text = (
        "the nodes whose values in other runtimes are compared with eager: auto (default) searches for the first one "
        "that differs if a result does, all compares all of them and breaks the runtime's fusions"
    )
    group.add_argument("--mark", choices=get_args(Mark), default="auto", help=text)
    return parser


def _runtime_names(text: str) -> tuple[str, ...]:
    """The names of runtimes in `text`. Raises `ArgumentTypeError` for an unknown one."""
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    unknown = next((name for name in names if name not in RUNTIMES), None)
    if unknown is not None or not names:
        raise argparse.ArgumentTypeError(f"unknown runtime {unknown or text!r}: choose from {', '.join(RUNTIMES)}")
    return names


def main(words: Sequence[str]) -> int:
    parser = make_parser()
    options, script = arguments.parse_program(parser, words)
    if options.all and options.graph is not None:
        parser.error("--all selects every graph, --graph only one: give one of them")
    console = Console(options.plain, stdout_is_data=options.json)
    return run_with_engine(options, console, lambda engine: _run(engine, options, script))


async def _run(engine: Headless, options: argparse.Namespace, script: tuple[str, ...]) -> int:
    """Runs the graphs one after another. A failure of one does not stop the others. Returns the exit code."""
    results = _Results(options, script)
    engine.reopens = True
    # A graph that an earlier session captured is known to equal the model only on the script's inputs.
    engine.reuses = inputs_of(options) == OWN_INPUTS
    try:
        for recipe in await engine.open_program(options, script):
            await _run_graph(engine, options, recipe, results)
    except Failure as failure:
        engine.console.error(failure.diagnostic)
        results.add_failure(failure)
    seconds = part_seconds(engine.times)
    if options.json:
        print(json.dumps({**results.as_json(), "seconds": seconds}, indent=2, allow_nan=False))
    else:
        engine.console.note(part_times_text(seconds))
    return 0 if results.ok else FAILURE


async def _run_graph(engine: Headless, options: argparse.Namespace, recipe: Recipe, results: _Results) -> None:
    """Runs a graph, prints the report or the failure, and adds it to `results`."""
    try:
        compilation = await engine.run(
            recipe,
            options.repeats,
            options.timeout,
            inputs_of(options),
            options.equal_nan,
            options.beside,
            options.mark,
            stages=False,
        )
    except Failure as failure:
        engine.console.error(failure.diagnostic, f"graph {recipe.graph}")
        results.add_failure(failure, recipe.graph)
        return
    assert compilation.report is not None
    info = engine.graphs[recipe.graph]
    if compilation.compiled is not None and compilation.compiled.reused >= len(compilation.stages):
        engine.console.note(f"graph {recipe.graph}: IR and machine code from an earlier run")
    fallback_error = _fallback_error(info, compilation.assignments, recipe)
    results.add_run(info, compilation.report, compilation.assignments, fallback_error)
    if not options.json:
        print(run_report_text(info, compilation.report, compilation.assignments))
    if fallback_error is not None:
        engine.console.error(fallback_error, f"graph {recipe.graph}")


def _fallback_error(info: GraphInfo, assignments: Sequence[Assignment], recipe: Recipe) -> Diagnostic | None:
    """The error if the script sets `fallback="error"` and nodes fall back to eager without a choice of the recipe.

    Returns `None` if there is no such node, or if the script does not set this.
    """
    choices = recipe.choice_map()
    fallbacks = [assignment for assignment in eager_assignments(assignments) if choices.get(assignment.node) != EAGER]
    if not info.strict or not fallbacks:
        return None
    return Diagnostic(
        f"the script sets fallback='error', but {len(fallbacks)} of {len(assignments)} nodes fall back to eager",
        info.name,
        f"add a lowering for these ops ({OPERATOR_GUIDE}), use other ops, or set fallback='eager'",
        detail="\n".join(f"{assignment.node}: {assignment.reason}" for assignment in fallbacks),
        node=fallbacks[0].node,
    )


class _Results:
    """The results of all graphs. `ok` is false if a run failed, differs from eager, or has unexpected fallbacks."""

    def __init__(self, options: argparse.Namespace, script: tuple[str, ...]) -> None:
        self._program: dict[str, Any] = {"source": options.source, "arguments": list(script)}
        self._graphs: list[dict[str, Any]] = []
        self._error: dict[str, Any] = {}
        self.ok = True
        self._all_compared = True

    def add_run(
        self, info: GraphInfo, report: RunReport, assignments: Sequence[Assignment], fallback_error: Diagnostic | None
    ) -> None:
        """Records the run of a graph, and the error about its fallbacks, if any."""
        error = {} if fallback_error is None else {"ok": False, "error": failure_json(fallback_error)}
        self._graphs.append({**run_report_json(info, report, assignments), **error})
        self.ok &= not report.wrong and fallback_error is None
        self._all_compared &= not report.not_compared

    def add_failure(self, failure: Failure, graph: int | None = None) -> None:
        """Records a failure of `graph`; with `None`, of the whole program."""
        self.ok = False
        if graph is None:
            self._error = {"error": failure_json(failure.diagnostic)}
        else:
            self._graphs.append({"graph": graph, "ok": False, "error": failure_json(failure.diagnostic)})

    def as_json(self) -> dict[str, object]:
        """All results. `ok` is null if nothing failed, but not all graphs were compared with eager."""
        ok = None if self.ok and not self._all_compared else self.ok
        return {**self._program, "ok": ok, **self._error, "graphs": self._graphs}
