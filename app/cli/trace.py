"""`buddy-tui trace SOURCE [NODE|LINE]`: follows nodes and Python lines to every stage, and lines of a stage back."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from buddy.app.cli import FAILURE, VERBS, arguments
from buddy.app.cli.dump import choose_stage
from buddy.app.cli.headless import Failure, Headless, run_verb_on_program
from buddy.app.cli.recipes import UsageError
from buddy.app.reports.formatting import table
from buddy.app.reports.node_history import FrontendPipeline, frontend_pipelines, phase_stages
from buddy.app.workspace.frontends import dialects_of
from buddy.compiler.protocol import (
    FindOrigins,
    FollowNode,
    GraphInfo,
    LineOrigins,
    ListPresets,
    NodeRow,
    NodeTrace,
    OriginsFound,
    Stage,
)
from buddy.compiler.protocol.recipe import TORCH_MLIR, Recipe, preset_of

_PYTHON = re.compile(r"(.*\.py):(\d+)")
_LINES = re.compile(r"(.+):(\d+)(?:-(\d+))?")
# Maximum number of lines listed for each stage.
_LIMIT = 10_000
_SHOWN = 76


def parser() -> arguments.Parser:
    found = arguments.source_parser("trace", VERBS["trace"])
    text = (
        "a node: its name in the FX table ('mm_3') or its full name; a Python line: 'model.py:12'; lines of a stage: "
        "'STAGE:120' or 'STAGE:120-140', with the name, phase or number of the stage. Default: as with --coverage"
    )
    found.add_argument("wanted", metavar="NODE|LINE", nargs="?", default="", help=text)
    text = "show the node in this compiler's top-level IR and in each phase of this torch-mlir pipeline"
    choices = [preset_of(TORCH_MLIR, dialect) for dialect in dialects_of(TORCH_MLIR)]
    found.add_argument("--beside", choices=choices, metavar="torch-mlir[-tosa|-stablehlo]", help=text)
    text = "print the share of each stage that is mapped to nodes, and the ops that lost their location in each pass"
    found.add_argument("--coverage", action="store_true", help=text)
    arguments.add_recipe_options(found)
    arguments.add_output_options(found)
    return found


def main(words: Sequence[str]) -> int:
    return run_verb_on_program(parser(), words, _trace)


async def _trace(engine: Headless, options: argparse.Namespace, script: tuple[str, ...]) -> int:
    if options.beside and (options.coverage or not options.wanted):
        raise UsageError("--beside needs a node: give its name")
    code, found = 0, []
    errors: list[UsageError] = []  # other graphs may have the node
    for recipe in await engine.program(options, script):
        info = engine.graphs[recipe.graph]
        try:
            if options.beside:
                answer = await _compare_pipelines(engine, options, recipe, info)
                code = code or (FAILURE if any(side.problem for side in answer.sides) else 0)
            else:
                stages, failed = await _stages(engine, recipe, f"graph {recipe.graph}")
                code = FAILURE if failed else code
                if not stages:
                    continue
                answer = await _answer(engine, options, recipe, info, stages)
        except UsageError as error:
            errors.append(error)
            continue
        found.append({"graph": recipe.graph, "name": info.name, **answer.as_json()})
        if not options.json:
            print(f"graph {recipe.graph}, {info.name}\n{answer.as_text()}")
    if errors and not found:
        raise UsageError("\n".join(map(str, errors)))
    if options.json:
        print(json.dumps({"source": options.source, "graphs": found}, indent=2))
    return code


async def _stages(engine: Headless, recipe: Recipe, where: str) -> tuple[tuple[Stage, ...], str]:
    """The stages of a recipe (up to a failure), and the error, which is also printed."""
    try:
        return (await engine.compile(recipe)).ordered(), ""
    except Failure as failure:
        engine.console.error(failure.diagnostic, where)
        return failure.stages, str(failure.diagnostic)


async def _compare_pipelines(
    engine: Headless, options: argparse.Namespace, recipe: Recipe, info: GraphInfo
) -> _TwoPipelines:
    """The nodes in the phases of this compiler and of torch-mlir that the other does not have. Raises `UsageError`."""
    rows = find_nodes(info, options.wanted)
    if not rows:
        raise UsageError(_no_node(options.wanted, recipe))
    if info.enters:
        raise UsageError(
            f"graph {recipe.graph} starts as IR and has no captured nodes: choose another graph with --graph"
        )
    presets = (await engine.client.request(ListPresets(0))).presets
    dialect = next(name for name in dialects_of(TORCH_MLIR) if preset_of(TORCH_MLIR, name) == options.beside)
    sides = []
    for pipeline in frontend_pipelines(recipe, presets, dialect):
        found, problem = await _stages(engine, pipeline.recipe, pipeline.title)
        stages = [stage for _, stage in phase_stages(pipeline, found)]
        sides.append(
            _Side(pipeline, _NodeLines(stages, [await _follow_node(engine, stages, row) for row in rows]), problem)
        )
    return _TwoPipelines(sides)


async def _answer(
    engine: Headless, options: argparse.Namespace, recipe: Recipe, info: GraphInfo, stages: Sequence[Stage]
) -> Any:
    if options.coverage or not options.wanted:
        return _Coverage(stages)
    python, lines = _PYTHON.fullmatch(options.wanted), _LINES.fullmatch(options.wanted)
    if python is not None:
        rows = [row for row in info.rows if is_at(row, python[1], int(python[2]))]
        if not rows:
            raise UsageError(
                f"no node of graph {recipe.graph} comes from {options.wanted}: give a line that computes something"
            )
        return _NodeLines(stages, [await _follow_node(engine, stages, row) for row in rows])
    rows = find_nodes(info, options.wanted)
    if rows:
        return _NodeLines(stages, [await _follow_node(engine, stages, row) for row in rows])
    if lines is not None:
        stage = choose_stage(stages, lines[1])
        first = int(lines[2])
        last = int(lines[3] or first)
        frame = FindOrigins(0, stage.text, first - 1, last - 1)
        return _LineNodes(info, stage, (first, last), await engine.client.request(frame))
    raise UsageError(_no_node(options.wanted, recipe))


def _no_node(wanted: str, recipe: Recipe) -> str:
    return f"unknown node {wanted!r} in graph {recipe.graph}; `buddy-tui dump SOURCE --stage fx` lists the nodes"


def find_nodes(info: GraphInfo, wanted: str) -> list[NodeRow]:
    """The nodes with that stable name or FX name, or that match the pattern."""
    exact = [row for row in info.rows if wanted in (row.stable, row.name)]
    return exact or [row for row in info.rows if fnmatchcase(row.name, wanted) or fnmatchcase(row.stable, wanted)]


def is_at(row: NodeRow, path: str, line: int) -> bool:
    """Whether a node comes from line `line` of a file whose path ends in `path`."""
    return row.location == f"{path}:{line}" or row.location.endswith(f"/{path}:{line}")


async def _follow_node(engine: Headless, stages: Sequence[Stage], row: NodeRow) -> tuple[NodeRow, dict[str, NodeTrace]]:
    texts = tuple(dict.fromkeys(stage.text for stage in stages))
    frame = FollowNode(0, texts, row.stable, _LIMIT)
    found = await engine.client.request(frame)
    return row, {trace.text: trace for trace in found.traces}


class _Coverage:
    """The share of each stage that is mapped to nodes, and the locations that each pass lost."""

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
    """The three shares in percent. Rounding never makes 0 or 100 percent; a share of zero is left blank."""
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


class _NodeLines:
    """The lines of nodes in every stage."""

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
        return "\n\n".join(self._node_table(row, traces) for row, traces in self._found)

    def in_full(self) -> str:
        """Every line of the nodes, stage by stage."""
        return "\n".join(
            "\n".join([f"{row.name}, {stage.phase}", *_numbered(traces[stage.text])])
            for row, traces in self._found
            for stage in self._stages
            if stage.text in traces
        )

    def _node_table(self, row: NodeRow, traces: dict[str, NodeTrace]) -> str:
        pairs = [(stage, traces[stage.text]) for stage in self._stages if stage.text in traces]
        rows = [
            [stage.index, stage.name, stage.phase, trace.own or "", trace.derived or "", *_first_line(trace)]
            for stage, trace in pairs
        ]
        heading = ["#", "stage", "phase", "lines", "derived", "line", "text"]
        return f"{node_line(row)}\n{table(heading, rows, frozenset({'stage', 'phase', 'text'}))}"


def _numbered(trace: NodeTrace) -> list[str]:
    """The lines of a node in text order, with line numbers."""
    rows = sorted(zip(trace.lines, trace.excerpts, trace.marks, strict=True))
    return [f"{line + 1:>6}  {text}{' (derived)' * derived}" for line, text, derived in rows] or ["        none"]


class _Side(NamedTuple):
    """A pipeline, the nodes in its phases, and the error that ended it."""

    pipeline: FrontendPipeline
    nodes: _NodeLines
    problem: str


class _TwoPipelines:
    """The lines of nodes in two pipelines."""

    def __init__(self, sides: Sequence[_Side]) -> None:
        self.sides = sides

    def as_json(self) -> dict[str, Any]:
        return {
            "pipelines": [
                {"pipeline": side.pipeline.title, "problem": side.problem, **side.nodes.as_json()}
                for side in self.sides
            ]
        }

    def as_text(self) -> str:
        return "\n\n".join(f"---- {side.pipeline.title} ----\n{side.nodes.in_full()}" for side in self.sides)


def _first_line(trace: NodeTrace) -> list[object]:
    if not trace.lines:
        return ["", ""]
    excerpt = trace.excerpts[0]
    short = excerpt if len(excerpt) <= _SHOWN else excerpt[: _SHOWN - 3] + "..."
    return [trace.lines[0] + 1, short + " (derived)" * trace.marks[0]]


class _LineNodes:
    """The nodes that lines of a stage come from."""

    def __init__(self, info: GraphInfo, stage: Stage, lines: tuple[int, int], found: OriginsFound) -> None:
        self._rows = {row.stable: row for row in info.rows}
        self._stage, self._lines, self._found = stage, lines, found
        if not 1 <= lines[0] <= lines[1] or lines[0] > found.total:
            raise UsageError(f"no such lines: stage {stage.name} has lines 1 to {found.total}")

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

    def _row(self, origin: LineOrigins) -> list[object]:
        row = self._rows.get(origin.node)
        mark = "" if origin.own else "(derived)"
        facts = [row.name, row.target, row.location, row.module] if row else [origin.node, "", "", ""]
        return [facts[0], origin.own or origin.derived, mark, *facts[1:]]


def node_json(row: NodeRow) -> dict[str, str]:
    """The names and the location of a node."""
    keys = ("stable", "name", "target", "module", "location")
    return {key: getattr(row, key) for key in keys}


def node_line(row: NodeRow) -> str:
    """A node as one line: name, target, Python line, module."""
    return " · ".join(part for part in (row.name, row.target, row.location, row.module) if part)
