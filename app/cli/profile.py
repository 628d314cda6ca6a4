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
from buddy.app.reports.compile_times import compile_flame, compile_json, object_times
from buddy.app.reports.formatting import table
from buddy.app.reports.run_report import failure_json
from buddy.compiler.protocol import GraphInfo, Profile, ProfileReport, Sampling, Stage
from buddy.compiler.protocol.recipe import Recipe

_SHOWN, _HOT = 20, 10
_LEFT = frozenset({"node", "op", "result", "with it"})


class _Report(NamedTuple):
    """The profile of a graph as JSON, as a tree and as text."""

    json: dict[str, Any]
    root: profile.FlameNode
    text: str


def parser() -> arguments.Parser:
    found = arguments.source_parser("profile", VERBS["profile"])
    arguments.add_recipe_options(found)
    arguments.add_input_options(found)
    arguments.add_output_options(found)
    group = found.add_argument_group("profile")
    group.add_argument("--repeats", type=arguments.positive_number, default=10, metavar="N", help="timed runs (10)")
    group.add_argument(
        "--top", type=arguments.positive_number, default=_SHOWN, metavar="N", help=f"list N nodes ({_SHOWN})"
    )
    text = f"list N instructions ({_HOT}), sampled if the system allows it"
    group.add_argument("--hot", type=arguments.positive_number, default=_HOT, metavar="N", help=text)
    text = "write the stacks of modules to FILE, in the format of flamegraph.pl and speedscope"
    compiling = "profile the compilation instead of a run: the time of each phase and pass"
    group.add_argument("--compile", action="store_true", dest="compiling", help=compiling)
    group.add_argument("--folded", type=Path, metavar="FILE", help=text)
    return found


def main(words: Sequence[str]) -> int:
    return run_verb_on_program(parser(), words, _profile, data_with_json=True)


async def _profile(engine: Headless, options: argparse.Namespace, script: tuple[str, ...]) -> int:
    """Profile the graphs one after another. A failure does not stop the others."""
    found: list[dict[str, Any]] = []
    stacks, code = "", 0
    for recipe in await engine.program(options, script):
        try:
            told, root, text = await (_compilation if options.compiling else _run)(engine, options, recipe)
        except Failure as failure:
            engine.console.error(failure.diagnostic, f"graph {recipe.graph}")
            found.append({"graph": recipe.graph, "error": failure_json(failure.diagnostic)})
            code = FAILURE
            continue
        found.append(told)
        stacks += profile.folded_stacks(root)
        if not options.json:
            print(text)
    if options.folded is not None:
        _write(options.folded, stacks)
    if options.json:
        print(json.dumps({"source": options.source, "arguments": list(script), "graphs": found}, indent=2))
    return code


async def _run(engine: Headless, options: argparse.Namespace, recipe: Recipe) -> _Report:
    """The profile of runs."""
    request = engine.client.next_request()
    frame = Profile(request, recipe, options.repeats, options.timeout, inputs_of(options))
    report, info = (await engine.answer(frame)).report, engine.graphs[recipe.graph]
    root = profile.flame_tree(report, info)
    return _Report(profile.as_json(report, info), root, _text(report, info, root, options.top, options.hot))


async def _compilation(engine: Headless, options: argparse.Namespace, recipe: Recipe) -> _Report:
    """The profile of the compilation."""
    compilation, info = await engine.compile(recipe), engine.graphs[recipe.graph]
    stages, compiled = compilation.ordered(), compilation.compiled
    assert compiled is not None
    root = compile_flame(stages, compiled, info)
    head = f"graph {recipe.graph}, {info.name}: compiled in {compiled.seconds:.2f} s; milliseconds by phase and pass"
    lines = [*profile.tree_lines(root, formatting.UNICODE), *_functions(stages, options.top)]
    return _Report(compile_json(stages, compiled, info), root, "\n".join([head, *lines]))


def _functions(stages: Sequence[Stage], top: int) -> list[str]:
    """The functions with the longest code generation."""
    found = object_times(stages)
    if not found:
        return ["machine code: all functions were cached"]
    rows = [[f"@{name}", profile.milliseconds(seconds)] for name, seconds in found[:top]]
    return ["", f"machine code of {len(found)} functions", table(["function", "ms"], rows, frozenset({"function"}))]


def _write(path: Path, text: str) -> None:
    with reporting_write_errors(path):
        path.write_text(text, encoding="utf-8")


def _text(report: ProfileReport, info: GraphInfo, root: profile.FlameNode, top: int, hot: int) -> str:
    """The report on a graph as text: summary, slowest nodes, hottest instructions, modules."""
    longest = profile.timed_nodes(report, info)
    names = {row.stable: row.name for row in info.rows}
    heading = ["node", "op", "result", "ms", "share", "GFLOP/s", "GB/s", "of peak", "with it"]
    rows = [_row(each, names, report.whole) for each in longest[:top]]
    more = [f"and {len(longest) - top} more (--top, --json)"] if len(longest) > top else []
    return "\n".join(
        [
            f"graph {report.graph}, {info.name}",
            *profile.summary_lines(report),
            table(heading, rows, _LEFT),
            *more,
            "",
            profile.sampling_text(report.sampling),
            *_hot(report.sampling, names, hot),
            "",
            *profile.tree_lines(root, formatting.UNICODE),
        ]
    )


def _hot(sampling: Sampling, names: dict[str, str], count: int) -> list[str]:
    """The instructions with the most samples."""
    rows = [
        [
            f"{spot.samples / sampling.samples:.1%}",
            f"@{spot.function}+{spot.offset:x}",
            spot.text,
            " ".join(names.get(node, node) for node in spot.nodes),
        ]
        for spot in sampling.spots[:count]
    ]
    heading = ["share", "where", "instruction", "nodes"]
    return [table(heading, rows, frozenset({"where", "instruction", "nodes"}))] if rows else []


def _row(each: profile.TimedNode, names: dict[str, str], whole: float) -> list[object]:
    fused = " ".join(names.get(name, name) for name in each.time.fused)
    return [
        each.row.name,
        each.row.target.removesuffix(".default"),
        f"{each.row.dtype}[{each.row.shape}]",
        profile.milliseconds(each.time.seconds),
        f"{each.time.seconds / whole:.1%}",
        profile.rate_text(each.rate),
        profile.rate_text(each.traffic),
        profile.share_text(each),
        fused,
    ]
