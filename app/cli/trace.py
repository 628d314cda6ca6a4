"""`buddy-tui trace SOURCE [NODE|LINE]`: maps nodes and Python lines to lines of stages, and these back to nodes."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

from buddy.app.cli import FAILURE, VERBS, arguments
from buddy.app.cli.dump import choose_stage
from buddy.app.cli.headless import Failure, Headless, run_verb_on_program
from buddy.app.cli.recipes import UsageError
from buddy.app.reports.compilations import FrontendPipeline, frontend_pipelines, phase_stages
from buddy.app.reports.formatting import table
from buddy.app.workspace.presets import dialects_of
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

_PYTHON_LINE_PATTERN = re.compile(r"(.*\.py):(\d+)")
_STAGE_LINES_PATTERN = re.compile(r"(.+):(\d+)(?:-(\d+))?")
# Maximum number of lines listed for each stage.
_MAX_LINES = 10_000
_MAX_TEXT_WIDTH = 76


def make_parser() -> arguments.Parser:
    parser = arguments.source_parser("trace", VERBS["trace"])
    text = (
        "a node ('layer.3/mm.0'), its module, its FX name ('mm_3'), or a pattern ('mm_*'); a Python line: "
        "'model.py:12'; lines of a stage: 'STAGE:120' or 'STAGE:120-140', with the name, phase or number of the stage. "
        "Without this argument, prints the same as --coverage"
    )
    parser.add_argument("selector", metavar="NODE|LINE", nargs="?", default="", help=text)
    text = "compare the node in this compiler's top-level IR with its IR in each phase of the given torch-mlir pipeline"
    choices = [preset_of(TORCH_MLIR, dialect) for dialect in dialects_of(TORCH_MLIR)]
    parser.add_argument("--beside", choices=choices, metavar="torch-mlir[-tosa|-stablehlo]", help=text)
    text = "print how much of each stage is mapped to nodes, and how many ops lost their location in each pass"
    parser.add_argument("--coverage", action="store_true", help=text)
    arguments.add_recipe_options(parser)
    arguments.add_output_options(parser)
    return parser


def main(words: Sequence[str]) -> int:
    return run_verb_on_program(make_parser(), words, _trace)


async def _trace(engine: Headless, options: argparse.Namespace, script: tuple[str, ...]) -> int:
    """Traces what the options select in each graph, and prints it. Returns the exit code. Raises `UsageError`."""
    if options.beside and options.coverage:
        raise UsageError("--beside cannot be combined with --coverage: omit one of them")
    if options.beside and not options.selector:
        raise UsageError("--beside needs a node: give its name after SOURCE")
    code, graphs = 0, []
    errors: list[UsageError] = []  # reported only if no graph has the node
    for recipe in await engine.open_program(options, script):
        info = engine.graphs[recipe.graph]
        stages: Sequence[Stage] = ()
        if not options.beside:
            stages, problem = await _compile_stages(engine, recipe, f"graph {recipe.graph}")
            code = FAILURE if problem else code
            if not stages:
                continue
        try:
            if options.beside:
                comparison = await _compare_pipelines(engine, options, recipe, info)
                answer: _TwoPipelines | _Coverage | _NodeLines | _LineNodes = comparison
                code = FAILURE if any(pipeline.problem for pipeline in comparison.pipelines) else code
            else:
                answer = await _trace_selector(engine, options, recipe, info, stages)
        except UsageError as error:
            errors.append(error)
            continue
        graphs.append({"graph": recipe.graph, "name": info.name, **answer.as_json()})
        if not options.json:
            print(f"graph {recipe.graph}, {info.name}\n{answer.as_text()}")
    if errors and not graphs:
        raise UsageError("\n".join(map(str, errors)))
    if options.json:
        print(json.dumps({"source": options.source, "graphs": graphs}, indent=2))
    return code


async def _compile_stages(engine: Headless, recipe: Recipe, subject: str) -> tuple[tuple[Stage, ...], str]:
    """Compiles `recipe`. Returns its stages, and an empty string.

    If the compilation fails, prints the error of `subject`, and returns the stages up to the failure and the error.
    """
    try:
        return (await engine.compile(recipe)).ordered_stages(), ""
    except Failure as failure:
        engine.console.error(failure.diagnostic, subject)
        return failure.stages, str(failure.diagnostic)


async def _compare_pipelines(
    engine: Headless, options: argparse.Namespace, recipe: Recipe, info: GraphInfo
) -> _TwoPipelines:
    """Traces the selected nodes in both pipelines, in the last stage of each compared phase. Raises `UsageError`."""
    rows = find_nodes(info, options.selector)
    if not rows:
        raise UsageError(_unknown_node_error(options.selector, recipe))
    if info.entry_phase:
        raise UsageError(
            f"graph {recipe.graph} was given as IR, so it has no FX nodes: choose another graph with --graph"
        )
    presets = (await engine.client.request(ListPresets(0))).presets
    dialect = next(name for name in dialects_of(TORCH_MLIR) if preset_of(TORCH_MLIR, name) == options.beside)
    pipelines = []
    for pipeline in frontend_pipelines(recipe, presets, dialect):
        all_stages, problem = await _compile_stages(engine, pipeline.recipe, pipeline.title)
        stages = [stage for _, stage in phase_stages(pipeline, all_stages)]
        pipelines.append(_PipelineLines(pipeline, await _trace_nodes(engine, stages, rows), problem))
    return _TwoPipelines(pipelines)


async def _trace_selector(
    engine: Headless, options: argparse.Namespace, recipe: Recipe, info: GraphInfo, stages: Sequence[Stage]
) -> _Coverage | _NodeLines | _LineNodes:
    """Traces what the selector names. Returns the coverage, the lines of nodes, or the nodes of lines.

    Raises `UsageError`.
    """
    if options.coverage or not options.selector:
        return _Coverage(stages)
    python_line = _PYTHON_LINE_PATTERN.fullmatch(options.selector)
    stage_lines = _STAGE_LINES_PATTERN.fullmatch(options.selector)
    if python_line is not None:
        rows = [row for row in info.rows if _comes_from_line(row, python_line[1], int(python_line[2]))]
        if not rows:
            raise UsageError(
                f"no node of graph {recipe.graph} comes from {options.selector}: give a line with a tensor operation"
            )
        return await _trace_nodes(engine, stages, rows)
    rows = find_nodes(info, options.selector)
    if rows:
        return await _trace_nodes(engine, stages, rows)
    if stage_lines is not None:
        stage = choose_stage(stages, stage_lines[1])
        first = int(stage_lines[2])
        last = int(stage_lines[3] or first)
        frame = FindOrigins(0, stage.text, first - 1, last - 1)
        return _LineNodes(info, stage, (first, last), await engine.client.request(frame))
    raise UsageError(_unknown_node_error(options.selector, recipe))


def _unknown_node_error(name: str, recipe: Recipe) -> str:
    return f"unknown node {name!r} in graph {recipe.graph}; `buddy-tui dump SOURCE --stage fx` lists the nodes"


def find_nodes(info: GraphInfo, pattern: str) -> list[NodeRow]:
    """The nodes called `pattern`, or in the module called so; without such nodes, those whose name matches it."""
    return info.nodes_named(pattern) or [
        row for row in info.rows if fnmatchcase(row.name, pattern) or fnmatchcase(row.stable, pattern)
    ]


def _comes_from_line(row: NodeRow, path: str, line: int) -> bool:
    """Whether a node comes from line `line` of a file whose path ends in `path`."""
    return row.location == f"{path}:{line}" or row.location.endswith(f"/{path}:{line}")


async def _trace_nodes(engine: Headless, stages: Sequence[Stage], rows: Sequence[NodeRow]) -> _NodeLines:
    """Finds the lines of nodes in each stage."""
    texts = tuple(dict.fromkeys(stage.text for stage in stages))
    traced_nodes = []
    for row in rows:
        followed = await engine.client.request(FollowNode(0, texts, row.stable, _MAX_LINES))
        traced_nodes.append((row, {trace.text: trace for trace in followed.traces}))
    return _NodeLines(stages, traced_nodes)


class _Coverage:
    """How much of each stage is mapped to nodes, and how many ops lost their location in each pass."""

    def __init__(self, stages: Sequence[Stage]) -> None:
        self._stages = stages

    def as_json(self) -> dict[str, object]:
        return {"coverage": [_coverage_json(stage) for stage in self._stages]}

    def as_text(self) -> str:
        rows = [
            [
                stage.index,
                stage.name,
                stage.phase,
                _coverage_unit(stage),
                sum(stage.origins),
                *(_percent(part, sum(stage.origins)) for part in stage.origins),
                stage.lost or "",
            ]
            for stage in self._stages
        ]
        heading = ["#", "stage", "phase", "unit", "total", "direct", "derived", "unmapped", "lost"]
        return table(heading, rows, frozenset({"stage", "phase", "unit"}))


def _coverage_unit(stage: Stage) -> str:
    """The unit of the counts in `Stage.origins`."""
    return {"asm": "bytes", "python": "lines", "cpp": "lines", "text": "lines"}.get(stage.language, "ops")


def _percent(part: int, total: int) -> str:
    """The share in percent. A part of zero is left blank; rounding never yields 0 % or 100 %."""
    if not part:
        return ""
    return "100 %" if part == total else f"{min(max(100 * part / total, 0.01), 99.99):.2f} %"


def _coverage_json(stage: Stage) -> dict[str, object]:
    direct, derived, unmapped = stage.origins
    return {
        "stage": stage.name, "phase": stage.phase, "language": stage.language, "of": _coverage_unit(stage),
        "direct": direct, "derived": derived, "nowhere": unmapped, "lost": stage.lost,
    }  # fmt: skip


class _NodeLines:
    """The lines of nodes in every stage. `traced_nodes` are nodes with their traces by the stage's text."""

    def __init__(self, stages: Sequence[Stage], traced_nodes: Sequence[tuple[NodeRow, dict[str, NodeTrace]]]) -> None:
        self._stages, self._traced_nodes = stages, traced_nodes

    def as_json(self) -> dict[str, object]:
        nodes = [{**node_json(row), "stages": self._stages_json(traces)} for row, traces in self._traced_nodes]
        return {"nodes": nodes}

    def _stages_json(self, traces: dict[str, NodeTrace]) -> list[dict[str, object]]:
        return [
            {
                "stage": stage.name, "phase": stage.phase, "own": trace.direct, "derived": trace.derived,
                "lines": [
                    {"line": line + 1, "derived": is_derived, "text": excerpt}
                    for line, is_derived, excerpt in zip(trace.lines, trace.marks, trace.excerpts, strict=True)
                ],
            }
            for stage in self._stages if (trace := traces.get(stage.text))
        ]  # fmt: skip

    def as_text(self) -> str:
        """A table for each node, with its first line in every stage."""
        return "\n\n".join(self._node_table(row, traces) for row, traces in self._traced_nodes)

    def full_text(self) -> str:
        """Every line of the nodes, stage by stage."""
        lines: list[str] = []
        for row, traces in self._traced_nodes:
            for stage in self._stages:
                if stage.text in traces:
                    lines += [f"{row.display_name}, {stage.phase}", *_numbered_lines(traces[stage.text])]
        return "\n".join(lines)

    def _node_table(self, row: NodeRow, traces: dict[str, NodeTrace]) -> str:
        pairs = [(stage, traces[stage.text]) for stage in self._stages if stage.text in traces]
        rows = [
            [stage.index, stage.name, stage.phase, trace.direct or "", trace.derived or "", *_first_line(trace)]
            for stage, trace in pairs
        ]
        heading = ["#", "stage", "phase", "direct", "derived", "line", "text"]
        return f"{node_line(row)}\n{table(heading, rows, frozenset({'stage', 'phase', 'text'}))}"


def _numbered_lines(trace: NodeTrace) -> list[str]:
    """The lines of a node in text order, with line numbers."""
    rows = sorted(zip(trace.lines, trace.excerpts, trace.marks, strict=True))
    return [f"{line + 1:>6}  {text}{' (derived)' * is_derived}" for line, text, is_derived in rows] or ["        none"]


class _PipelineLines(NamedTuple):
    """The lines of nodes in the phases of a pipeline, and the error of its compilation, empty without one."""

    pipeline: FrontendPipeline
    nodes: _NodeLines
    problem: str


class _TwoPipelines:
    """The lines of nodes in two pipelines."""

    def __init__(self, pipelines: Sequence[_PipelineLines]) -> None:
        self.pipelines = pipelines

    def as_json(self) -> dict[str, object]:
        return {
            "pipelines": [
                {"pipeline": lines.pipeline.title, "problem": lines.problem, **lines.nodes.as_json()}
                for lines in self.pipelines
            ]
        }

    def as_text(self) -> str:
        return "\n\n".join(f"---- {lines.pipeline.title} ----\n{lines.nodes.full_text()}" for lines in self.pipelines)


def _first_line(trace: NodeTrace) -> list[object]:
    """The number and the shortened text of the node's first line; empty cells if it has no line."""
    if not trace.lines:
        return ["", ""]
    excerpt = trace.excerpts[0]
    short = excerpt if len(excerpt) <= _MAX_TEXT_WIDTH else excerpt[: _MAX_TEXT_WIDTH - 3] + "..."
    return [trace.lines[0] + 1, short + " (derived)" * trace.marks[0]]


class _LineNodes:
    """The nodes that lines of a stage come from.

    `lines` are the numbers of the first and the last line, from 1. Raises `UsageError` if the stage has no such lines.
    """

    def __init__(self, info: GraphInfo, stage: Stage, lines: tuple[int, int], answer: OriginsFound) -> None:
        self._rows = {row.stable: row for row in info.rows}
        self._stage, self._lines, self._origins = stage, lines, answer.origins
        if not 1 <= lines[0] <= lines[1] or lines[0] > answer.line_count:
            raise UsageError(f"no such lines: stage {stage.name} has lines 1 to {answer.line_count}")

    def as_json(self) -> dict[str, object]:
        nodes = [
            {**node_json(self._rows[origin.node]), "own": origin.direct, "derived": origin.derived}
            for origin in self._origins
            if origin.node in self._rows
        ]
        return {
            "stage": self._stage.name, "phase": self._stage.phase, "lines": list(self._lines), "nodes": nodes,
        }  # fmt: skip

    def as_text(self) -> str:
        first, last = self._lines
        lines = f"line {first}" if first == last else f"lines {first} to {last}"
        if not self._origins:
            return f"{lines} of {self._stage.name}: no node"
        rows = [self._node_row(origin) for origin in self._origins]
        heading = ["node", "direct", "derived", "target", "Python line"]
        return f"{lines} of {self._stage.name}\n" + table(heading, rows, frozenset(heading) - {"direct", "derived"})

    def _node_row(self, origin: LineOrigins) -> list[object]:
        row = self._rows.get(origin.node)
        name, *description = [row.display_name, row.target, row.location] if row else [origin.node, "", ""]
        return [name, origin.direct or "", origin.derived or "", *description]


def node_json(row: NodeRow) -> dict[str, str]:
    """The names and the location of a node."""
    keys = ("stable", "name", "target", "module", "location")
    return {key: getattr(row, key) for key in keys}


def node_line(row: NodeRow) -> str:
    """A node as one line: name with module path, target, Python line."""
    return " · ".join(part for part in (row.display_name, row.target, row.location) if part)
