"""`buddy-tui trace SOURCE [NODE|LINE]`: nodes and Python lines down through every stage, a stage's lines up."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any

from buddy.app.cli import FAILURE, VERBS, arguments
from buddy.app.cli.console import table
from buddy.app.cli.dump import choose
from buddy.app.cli.headless import Failure, Headless, converse_on
from buddy.app.cli.recipes import UsageError
from buddy.compiler.protocol import (
    FindOrigins,
    Followed,
    FollowNode,
    GraphInfo,
    NodeRow,
    NodeTrace,
    Origin,
    OriginsFound,
    Stage,
)
from buddy.compiler.recipe import Recipe

_PYTHON = re.compile(r"(.*\.py):(\d+)")
_LINES = re.compile(r"(.+):(\d+)(?:-(\d+))?")
# Lines of each stage that are named at most.
_LIMIT = 10_000
_SHOWN = 76


def parser() -> arguments.Parser:
    found = arguments.source_parser("trace", VERBS["trace"])
    text = (
        "a node: its name in the FX table ('mm_3') or the whole one; a Python line: 'model.py:12'; lines of a stage: "
        "'STAGE:120' or 'STAGE:120-140', the stage by name, phase or number. Without it, as with --coverage"
    )
    found.add_argument("target", metavar="NODE|LINE", nargs="?", default="", help=text)
    text = "how much of each stage leads to nodes, and how many ops lost their location in each pass"
    found.add_argument("--coverage", action="store_true", help=text)
    arguments.add_recipe_options(found)
    arguments.add_output_options(found)
    return found


def main(words: Sequence[str]) -> int:
    return converse_on(parser(), words, _trace)


async def _trace(engine: Headless, options: argparse.Namespace, script: tuple[str, ...]) -> int:
    code, found = 0, []
    refused: list[UsageError] = []  # a graph may lack what another one has
    for recipe in await engine.program(options, script):
        info = engine.graphs[recipe.graph]
        try:
            stages = (await engine.compile(recipe)).ordered()
        except Failure as failure:
            engine.console.error(failure.diagnostic, f"graph {recipe.graph}")
            code, stages = FAILURE, failure.stages
        if not stages:
            continue
        try:
            answer = await _answered(engine, options, recipe, info, stages)
        except UsageError as error:
            refused.append(error)
            continue
        found.append({"graph": recipe.graph, "name": info.name, **answer.as_json()})
        if not options.json:
            print(f"graph {recipe.graph}, {info.name}\n{answer.as_text()}")
    if refused and not found:
        raise UsageError("\n".join(map(str, refused)))
    if options.json:
        print(json.dumps({"source": options.source, "graphs": found}, indent=2))
    return code


async def _answered(
    engine: Headless, options: argparse.Namespace, recipe: Recipe, info: GraphInfo, stages: Sequence[Stage]
) -> Any:
    if options.coverage or not options.target:
        return _Coverage(stages)
    python, lines = _PYTHON.fullmatch(options.target), _LINES.fullmatch(options.target)
    if python is not None:
        rows = [row for row in info.rows if is_at(row, python[1], int(python[2]))]
        if not rows:
            raise UsageError(f"no node of graph {recipe.graph} comes from {options.target}")
        return _Down(stages, [await _followed(engine, stages, row) for row in rows])
    rows = named(info, options.target)
    if rows:
        return _Down(stages, [await _followed(engine, stages, row) for row in rows])
    if lines is not None:
        stage = choose(stages, lines[1])
        first = int(lines[2])
        last = int(lines[3] or first)
        frame = FindOrigins(engine.client.next_request(), stage.text, first - 1, last - 1)
        return _Up(info, stage, (first, last), await engine.client.ask(frame, OriginsFound))
    raise UsageError(
        f"no node {options.target!r} in graph {recipe.graph}; `buddy-tui dump SOURCE --stage fx` lists them"
    )


def named(info: GraphInfo, wanted: str) -> list[NodeRow]:
    """The nodes of that name, whole or as the FX table has it, or that fit the pattern."""
    exact = [row for row in info.rows if wanted in (row.stable, row.name)]
    return exact or [row for row in info.rows if fnmatchcase(row.name, wanted) or fnmatchcase(row.stable, wanted)]


def is_at(row: NodeRow, path: str, line: int) -> bool:
    """Whether a node comes from line `line` of a file whose path ends in `path`."""
    return row.location == f"{path}:{line}" or row.location.endswith(f"/{path}:{line}")


async def _followed(engine: Headless, stages: Sequence[Stage], row: NodeRow) -> tuple[NodeRow, dict[str, NodeTrace]]:
    texts = tuple(dict.fromkeys(stage.text for stage in stages))
    frame = FollowNode(engine.client.next_request(), texts, row.stable, _LIMIT)
    found = await engine.client.ask(frame, Followed)
    return row, {trace.text: trace for trace in found.traces}


class _Coverage:
    """How much of each stage leads to nodes, and which passes dropped locations."""

    def __init__(self, stages: Sequence[Stage]) -> None:
        self._stages = stages

    def as_json(self) -> dict[str, Any]:
        return {"coverage": [_coverage_json(stage) for stage in self._stages]}

    def as_text(self) -> str:
        rows = [
            [
                s.index,
                s.name,
                s.phase,
                "bytes" if s.language == "asm" else "ops",
                sum(s.origins),
                *_shares(s),
                s.lost or "",
            ]
            for s in self._stages
        ]
        heading = ["#", "stage", "phase", "of", "all", "direct", "derived", "nowhere", "lost"]
        return table(heading, rows, frozenset({"stage", "phase", "of"}))


def _shares(stage: Stage) -> list[str]:
    """The three shares in percent; one that is not all is never rounded up to it, one that is not none never down."""
    whole = sum(stage.origins)
    return [_percent(part, whole) for part in stage.origins]


def _percent(part: int, whole: int) -> str:
    if not part:
        return ""
    return "100 %" if part == whole else f"{min(max(100 * part / whole, 0.01), 99.99):.2f} %"


def _coverage_json(stage: Stage) -> dict[str, Any]:
    direct, derived, nowhere = stage.origins
    return {
        "stage": stage.name, "phase": stage.phase, "language": stage.language,
        "of": "bytes" if stage.language == "asm" else "ops",
        "direct": direct, "derived": derived, "nowhere": nowhere, "lost": stage.lost,
    }  # fmt: skip


class _Down:
    """Nodes with their lines in every stage."""

    def __init__(self, stages: Sequence[Stage], found: Sequence[tuple[NodeRow, dict[str, NodeTrace]]]) -> None:
        self._stages, self._found = stages, found

    def as_json(self) -> dict[str, Any]:
        return {"nodes": [{**node_json(row), "stages": self._stages_json(traces)} for row, traces in self._found]}

    def _stages_json(self, traces: dict[str, NodeTrace]) -> list[dict[str, Any]]:
        return [
            {
                "stage": stage.name, "phase": stage.phase, "own": trace.own, "derived": trace.derived,
                "lines": [
                    {"line": line + 1, "derived": mark, "text": excerpt}
                    for line, mark, excerpt in zip(trace.lines, trace.marks, trace.excerpts, strict=True)
                ],
            }
            for stage in self._stages if (trace := traces.get(stage.text))
        ]  # fmt: skip

    def as_text(self) -> str:
        return "\n\n".join(self._told(row, traces) for row, traces in self._found)

    def _told(self, row: NodeRow, traces: dict[str, NodeTrace]) -> str:
        pairs = [(stage, traces[stage.text]) for stage in self._stages if stage.text in traces]
        rows = [
            [stage.index, stage.name, stage.phase, trace.own or "", trace.derived or "", *_first_line(trace)]
            for stage, trace in pairs
        ]
        heading = ["#", "stage", "phase", "lines", "derived", "line", "text"]
        return f"{about(row)}\n{table(heading, rows, frozenset({'stage', 'phase', 'text'}))}"


def _first_line(trace: NodeTrace) -> list[object]:
    if not trace.lines:
        return ["", ""]
    excerpt = trace.excerpts[0]
    short = excerpt if len(excerpt) <= _SHOWN else excerpt[: _SHOWN - 3] + "..."
    return [trace.lines[0] + 1, short + " (derived)" * trace.marks[0]]


class _Up:
    """The nodes that lines of a stage come from."""

    def __init__(self, info: GraphInfo, stage: Stage, lines: tuple[int, int], found: OriginsFound) -> None:
        self._rows = {row.stable: row for row in info.rows}
        self._stage, self._lines, self._found = stage, lines, found
        if not 1 <= lines[0] <= lines[1] or lines[0] > found.total:
            raise UsageError(f"stage {stage.name} has lines 1 to {found.total}")

    def as_json(self) -> dict[str, Any]:
        known = [origin for origin in self._found.origins if origin.node in self._rows]
        return {
            "stage": self._stage.name, "phase": self._stage.phase, "lines": list(self._lines),
            "nodes": [{**node_json(self._rows[one.node]), "own": one.own, "derived": one.derived} for one in known],
        }  # fmt: skip

    def as_text(self) -> str:
        first, last = self._lines
        lines = f"line {first}" if first == last else f"lines {first} to {last}"
        if not self._found.origins:
            return f"{lines} of {self._stage.name}: no node"
        rows = [self._row(origin) for origin in self._found.origins]
        heading = ["node", "lines", "", "target", "Python line", "module"]
        return f"{lines} of {self._stage.name}\n" + table(heading, rows, frozenset(heading) - {"lines"})

    def _row(self, origin: Origin) -> list[object]:
        row = self._rows.get(origin.node)
        mark = "" if origin.own else "(derived)"
        facts = [row.name, row.target, row.location, row.module] if row else [origin.node, "", "", ""]
        return [facts[0], origin.own or origin.derived, mark, *facts[1:]]


def node_json(row: NodeRow) -> dict[str, str]:
    """What of a node says where it stands in the program."""
    keys = ("stable", "name", "target", "module", "location")
    return {key: getattr(row, key) for key in keys}


def about(row: NodeRow) -> str:
    """A node on one line: name, target, Python line, module."""
    return " · ".join(part for part in (row.name, row.target, row.location, row.module) if part)
