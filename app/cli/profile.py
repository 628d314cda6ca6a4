"""`buddy-tui profile SOURCE`: measures the time of each node in a run."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from buddy.app.cli import FAILURE, VERBS, arguments
from buddy.app.cli.headless import Failure, Headless, reporting_write_errors, run_verb_on_program
from buddy.app.cli.recipes import inputs_of
from buddy.app.reports import formatting, profile
from buddy.app.reports.compilations import compile_flame, compile_json, function_times
from buddy.app.reports.formatting import table
from buddy.app.reports.run_report import failure_json
from buddy.compiler.protocol import GraphInfo, Profile, ProfileReport, Sampling, Stage
from buddy.compiler.protocol.recipe import Recipe

_DEFAULT_TOP, _DEFAULT_HOT = 20, 10
_LEFT_ALIGNED = frozenset({"node", "op", "result", "fused with"})


class _Report(NamedTuple):
    """The profile of a graph or of its compilation: as JSON, as a tree for `--folded`, and as text."""

    json: dict[str, Any]
    root: profile.FlameNode
    text: str


def make_parser() -> arguments.Parser:
    parser = arguments.source_parser("profile", VERBS["profile"])
    arguments.add_recipe_options(parser)
    arguments.add_input_options(parser)
    arguments.add_output_options(parser)
    group = parser.add_argument_group("profile")
    arguments.add_repeats_option(group, 10)
    group.add_argument(
        "--top",
        type=arguments.positive_number,
        default=_DEFAULT_TOP,
        metavar="N",
        help=f"list the N slowest nodes, or with --compile the N slowest functions (default: {_DEFAULT_TOP})",
    )
    text = f"list the N instructions with the most samples, if the system allows sampling (default: {_DEFAULT_HOT})"
    group.add_argument("--hot", type=arguments.positive_number, default=_DEFAULT_HOT, metavar="N", help=text)
    text = "profile the compilation instead of a run: the time of each phase and pass"
    group.add_argument("--compile", action="store_true", dest="compiling", help=text)
    text = "write the stacks of modules, or of phases and passes, to FILE, for flamegraph.pl and speedscope"
    group.add_argument("--folded", type=Path, metavar="FILE", help=text)
    return parser


def main(words: Sequence[str]) -> int:
    return run_verb_on_program(make_parser(), words, _profile, data_with_json=True)


async def _profile(engine: Headless, options: argparse.Namespace, script: tuple[str, ...]) -> int:
    """Profiles the graphs one after another. A failure of one does not stop the others. Returns the exit code."""
    graphs: list[dict[str, Any]] = []
    stacks, code = "", 0
    profile_graph = _profile_compilation if options.compiling else _profile_runs
    for recipe in await engine.open_program(options, script):
        try:
            report = await profile_graph(engine, options, recipe)
        except Failure as failure:
            engine.console.error(failure.diagnostic, f"graph {recipe.graph}")
            graphs.append({"graph": recipe.graph, "error": failure_json(failure.diagnostic)})
            code = FAILURE
            continue
        graphs.append(report.json)
        stacks += profile.folded_stacks(report.root)
        if not options.json:
            print(report.text)
    if options.folded is not None:
        with reporting_write_errors(options.folded):
            options.folded.write_text(stacks, encoding="utf-8")
    if options.json:
        print(json.dumps({"source": options.source, "arguments": list(script), "graphs": graphs}, indent=2))
    return code


async def _profile_runs(engine: Headless, options: argparse.Namespace, recipe: Recipe) -> _Report:
    """Runs a graph, and measures the time of each node. Raises `Failure`."""
    request = engine.client.new_request_id()
    frame = Profile(request, recipe, options.repeats, options.timeout, inputs_of(options))
    report, info = (await engine.request(frame)).report, engine.graphs[recipe.graph]
    root = profile.flame_tree(report, info)
    return _Report(profile.as_json(report, info), root, _report_text(report, info, root, options.top, options.hot))


async def _profile_compilation(engine: Headless, options: argparse.Namespace, recipe: Recipe) -> _Report:
    """Compiles a graph, and measures the time of each phase and pass. Raises `Failure`."""
    compilation, info = await engine.compile(recipe), engine.graphs[recipe.graph]
    stages, compiled = compilation.ordered_stages(), compilation.compiled
    assert compiled is not None
    root = compile_flame(stages, compiled, info)
    title = f"graph {recipe.graph}, {info.name}: compiled in {compiled.seconds:.2f} s; milliseconds by phase and pass"
    lines = [*profile.tree_lines(root, formatting.UNICODE), *_function_lines(stages, options.top)]
    return _Report(compile_json(stages, compiled, info), root, "\n".join([title, *lines]))


def _function_lines(stages: Sequence[Stage], top: int) -> list[str]:
    """A table of the `top` functions with the longest code generation."""
    times = function_times(stages)
    if not times:
        return ["machine code: all functions were cached"]
    rows = [[f"@{name}", profile.in_milliseconds(seconds)] for name, seconds in times[:top]]
    return ["", f"machine code of {len(times)} functions", table(["function", "ms"], rows, frozenset({"function"}))]


def _report_text(report: ProfileReport, info: GraphInfo, root: profile.FlameNode, top: int, hot: int) -> str:
    """The report on a graph as text: summary, slowest nodes, hottest instructions, modules."""
    slowest = profile.timed_nodes(report, info)
    names = {row.stable: row.display_name for row in info.rows}
    heading = ["node", "op", "result", "ms", "share", "GFLOP/s", "GB/s", "of peak", "fused with"]
    rows = [_node_row(node, names, report.whole) for node in slowest[:top]]
    rest = [f"and {len(slowest) - top} more (--top, --json)"] if len(slowest) > top else []
    return "\n".join(
        [
            f"graph {report.graph}, {info.name}",
            *profile.summary_lines(report),
            table(heading, rows, _LEFT_ALIGNED),
            *rest,
            "",
            profile.sampling_text(report.sampling),
            *_instruction_lines(report.sampling, names, hot),
            "",
            *profile.tree_lines(root, formatting.UNICODE),
        ]
    )


def _instruction_lines(sampling: Sampling, names: dict[str, str], count: int) -> list[str]:
    """A table of the `count` instructions with the most samples; empty without samples."""
    rows = [
        [
            f"{spot.samples / sampling.samples:.1%}",
            f"@{spot.function}+{spot.offset:#x}",
            spot.text,
            " ".join(names.get(node, node) for node in spot.nodes),
        ]
        for spot in sampling.spots[:count]
    ]
    heading = ["share", "where", "instruction", "nodes"]
    return [table(heading, rows, frozenset({"where", "instruction", "nodes"}))] if rows else []


def _node_row(node: profile.TimedNode, names: dict[str, str], run_seconds: float) -> list[object]:
    """The cells of a node. `names` has displayed names by stable names; `run_seconds` is the time of a whole run."""
    return [
        node.row.display_name,
        node.row.target.removesuffix(".default"),
        f"{node.row.dtype}[{node.row.shape}]",
        profile.in_milliseconds(node.time.seconds),
        f"{node.time.seconds / run_seconds:.1%}",
        profile.rate_text(node.rate),
        profile.rate_text(node.traffic),
        profile.share_text(node),
        " ".join(names.get(name, name) for name in node.time.fused),
    ]
