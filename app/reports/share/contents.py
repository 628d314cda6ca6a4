"""The contents of a shared report as plain data: stages with provenance, Python code, the graph, and tables of results.

Stages have most of their lines in common. Each line is therefore stored once, with its colours, and a stage is a list
of runs of line numbers. Sets of nodes are stored the same way.
"""

from __future__ import annotations

import math
import os
import re
import shlex
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from datetime import datetime, timezone
from string import ascii_lowercase
from typing import Any, NamedTuple

from buddy.app.reports import formatting, numerics, profile
from buddy.app.reports.python_lines import PythonLines
from buddy.app.reports.run_report import eager_assignments, memory_parts_text
from buddy.app.workspace.inputs import relative_to_working_directory
from buddy.compiler.protocol import (
    Assignment,
    Diagnostic,
    FetchLines,
    GraphInfo,
    Lines,
    NodeTime,
    OpenPython,
    OutputReport,
    ProfileReport,
    Request,
    RunReport,
    Stage,
    Timing,
    Welcome,
)
from buddy.compiler.protocol.compatibility import own_version
from buddy.compiler.protocol.errors import BuddyError
from buddy.compiler.protocol.numerics import NodeNumbers, NumericsReport
from buddy.compiler.protocol.recipe import Recipe, to_toml
from buddy.themes.lexers import SYNTAX, open_string, python_spans, spans

# ---- tables of results -----------------------------------------------------------------------------------------------


# The maximum number of nodes in the tables of the slowest nodes and of those with the largest errors.
_MAX_NODES = 20
# A table as the page's script reads it: `title`, and either `columns`, `right` (the right-aligned columns) and `rows`,
# or `text` and `file` (the name to save the text as). Optional: `note`, `bad` (a failure) and `badRows` (row numbers).
Table = dict[str, Any]


def shown_path(location: str) -> str:
    """Returns `location` as it is shared: relative to the current folder if it is inside, `~` for the home folder."""
    home = os.path.expanduser("~")
    short = relative_to_working_directory(location)
    return f"~{short[len(home) :]}" if len(home) > 1 and short.startswith(f"{home}{os.sep}") else short


def result_tables(graph: SharedGraph, welcome: Welcome | None) -> list[Table]:
    """Returns the tables of a graph, in the order in which the report shows them."""
    return [
        *_failure_tables(graph.problem),
        *_run_tables(graph),
        *_node_tables(graph),
        *_condition_tables(graph, welcome),
    ]


def _table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]], right: Sequence[str] = ()) -> Table:
    """Returns a table whose columns with names in `right` are right-aligned."""
    cells = [[str(cell) for cell in row] for row in rows]
    return {"title": title, "columns": list(columns), "right": list(right), "rows": cells}


def _failure_tables(problem: Diagnostic | None) -> Iterator[Table]:
    """Yields a table of the problem, if any."""
    if problem is None:
        return
    rows = [("what", problem.what), ("where", problem.where), ("to do", problem.todo), ("details", problem.detail)]
    yield {**_table("Failure", ("", ""), [row for row in rows if row[1]]), "bad": True}


def _run_tables(graph: SharedGraph) -> Iterator[Table]:
    """Yields the tables of a run: outputs, measurements and notes."""
    report = graph.report
    if report is None:
        return
    heading = ("output", "shape", "dtype", "verdict", "max abs", "max rel", "conditions")
    rows = [_output_row(output) for output in report.outputs]
    bad = [number for number, output in enumerate(report.outputs) if output.verdict not in ("ok", "unchecked")]
    yield {**_table("Outputs", heading, rows, ("max abs", "max rel")), "badRows": bad}
    yield _table("Measurements", ("", ""), list(_measurements(report)))
    if report.notes:
        yield _table("Notes", ("",), [(note,) for note in report.notes])


def _output_row(output: OutputReport) -> tuple[object, ...]:
    """Returns the row of an output in the table of outputs."""
    shape = "x".join(map(str, output.shape)) or "scalar"
    texts = [*formatting.verdict_texts(output), formatting.nan_counts_text(output)]
    if output.verdict == "mismatch" and output.where:
        texts.insert(0, f"first differs at {output.where}")
    errors = ("", "") if output.verdict == "unchecked" else (f"{output.max_abs:.2e}", f"{output.max_rel:.2e}")
    return output.name, shape, output.dtype, output.verdict, *errors, "; ".join(text for text in texts if text)


def _measurements(report: RunReport) -> Iterator[tuple[str, str]]:
    """Yields the rows of the table of measurements."""
    yield "result", f"not compared: {report.not_compared}" if report.not_compared else report.word
    counts = [f"{report.nodes_compiled} compiled", f"{report.nodes_eager} in eager"]
    yield "nodes", ", ".join([*counts, *formatting.eager_path_texts(report)])
    yield "compiled code", _timing_text(report.compiled)
    if not report.not_compared:
        yield "eager", _timing_text(report.eager)
        yield "ratio", f"{report.ratio:.2f} x the time of eager"
    for side in report.sides:
        yield side.name, side.problem or f"{_timing_text(side.timing)}, {side.verdict}"
    yield "compiled in", formatting.seconds(report.compile_seconds)
    yield "loaded in", formatting.seconds(report.load_seconds)
    if report.memory is not None:
        yield "peak memory", f"{formatting.size(report.memory.compiled)}, eager {formatting.size(report.memory.eager)}"
        yield "memory", memory_parts_text(report.memory)
    if report.load is not None:
        yield "load", formatting.load_text(report.load).removeprefix("machine: ")


def _timing_text(timing: Timing) -> str:
    spread = f"{formatting.seconds(timing.low)} to {formatting.seconds(timing.high)}"
    runs = f"{formatting.counted(timing.runs, 'run')}, {formatting.thread_count(timing.threads)}"
    return f"{formatting.seconds(timing.median)} (quartiles {spread}, {runs})"


def _node_tables(graph: SharedGraph) -> Iterator[Table]:
    """Yields tables of nodes: those in eager, the slowest, and those with the largest errors."""
    rows = {row.stable: row for row in graph.info.rows}
    fallbacks = [a for a in eager_assignments(graph.assignments) if a.node in rows]
    if fallbacks:
        cells = [(rows[a.node].display_name, rows[a.node].target, a.reason) for a in fallbacks]
        yield _table("Nodes in eager", ("node", "op", "reason"), cells)
    if graph.profile is not None:
        timed = profile.timed_nodes(graph.profile, graph.info)[:_MAX_NODES]
        run_seconds = graph.profile.whole or 1.0
        times = [
            (node.row.display_name, node.row.target, profile.in_milliseconds(node.time.seconds),
             f"{node.time.seconds / run_seconds:.1%}", profile.share_text(node))
            for node in timed
        ]  # fmt: skip
        heading = ("node", "op", "ms", "of the run", "of the bound")
        yield {**_table("Slowest nodes", heading, times, heading[2:]), "note": profile.summary_lines(graph.profile)[0]}
    if graph.numerics is not None:
        worst = [
            (rows[node.node].display_name if node.node in rows else node.node, node.value_state,
             numerics.error_text(node.error), numerics.tolerance_multiple_text(node.error),
             numerics.tolerance_multiple_text(node.own_error), node.tolerance)
            for node in numerics.worst_nodes(graph.numerics, _MAX_NODES)
        ]  # fmt: skip
        columns = ("node", "value", "error", "of tolerance", "alone", "tolerance")
        note = numerics.summary_lines(graph.numerics, graph.info)[0]
        yield {**_table("Nodes with the largest errors", columns, worst, columns[2:5]), "note": note}


def _condition_tables(graph: SharedGraph, welcome: Welcome | None) -> Iterator[Table]:
    """Yields the table of the program, the machine and the versions, and the recipe."""
    recipe = graph.recipe
    program = shlex.join((shown_path(recipe.source), *recipe.arguments))
    rows = [("program", program), ("graph", f"{recipe.graph}, {graph.info.name}"), ("preset", recipe.preset)]
    rows.append(("written", datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC")))
    if welcome is not None:
        rows += [("machine", f"{welcome.target}, {welcome.cores} cores"), ("buddy-tui", welcome.engine)]
        rows += sorted(welcome.packages.items())
    yield _table("Program, machine and versions", ("", ""), rows)
    yield {"title": "Recipe", "text": to_toml(recipe), "file": "recipe.toml"}


# ---- texts, nodes and the whole report -------------------------------------------------------------------------------


# Sends a request and returns its answer.
Send = Callable[[Request[Any]], Awaitable[Any]]
# Called with a description of the current step.
OnProgress = Callable[[str], object]

# The version of the format of the data, which the script of the page reads.
FORMAT = 1
# The number of lines that are fetched by one request.
_WINDOW_LINES = 10_000
# The number in a name such as `%12` or `%cst_3`.
_VALUE_NUMBER = re.compile(r"(?<=[%_])\d+")
# The names of colours, each with the letter that stands for it in the colours of a line.
SYNTAX_LETTERS = {"": "_", **dict(zip(sorted({*SYNTAX.values()}), ascii_lowercase, strict=False))}


class SharedGraph(NamedTuple):
    """A graph to share: recipe, stages and results. `problem` is the error of a compilation or run that failed."""

    info: GraphInfo
    recipe: Recipe
    stages: Sequence[Stage] = ()
    assignments: Sequence[Assignment] = ()
    report: RunReport | None = None
    numerics: NumericsReport | None = None
    profile: ProfileReport | None = None
    problem: Diagnostic | None = None


class _Numbers(dict[Any, int]):
    """Maps values to numbers. A new value gets the next number when it is looked up."""

    def __missing__(self, value: object) -> int:
        self[value] = number = len(self)
        return number


def _line_runs(numbers: Iterable[int]) -> list[int]:
    """Returns runs of consecutive numbers, as a flat list: first number, length, first number, length…"""
    runs: list[int] = []
    expected = -1
    for number in numbers:
        if number == expected:
            runs[-1] += 1
        else:
            runs += [number, 1]
        expected = number + 1
    return runs


def _equal_runs(numbers: Iterable[int]) -> list[int]:
    """Returns runs of equal numbers, as a flat list: number, length, number, length…"""
    runs: list[int] = []
    for number in numbers:
        if runs and runs[-2] == number:
            runs[-1] += 1
        else:
            runs += [number, 1]
    return runs


class _Texts:
    """Texts as runs of numbers of lines. A line has a number for each language, because its colours depend on it."""

    def __init__(self) -> None:
        # The number of each (language, quotes of the string that is open at the start of the line, line).
        self._lines: dict[tuple[str, str, str], int] = _Numbers()
        self.texts: list[dict[str, list[int]]] = []

    def add(self, language: str, lines: Sequence[str], sets: Sequence[int]) -> int:
        """Adds a text whose line `i` comes from the nodes of set `sets[i]`. Returns its number."""
        numbers, quotes = [], ""
        for line in lines:
            numbers.append(self._lines[language, quotes, line])
            if language == "python":
                quotes = open_string(line, quotes)
        self.texts.append({"lines": _line_runs(numbers), "sets": _equal_runs(sets)})
        return len(self.texts) - 1

    def encode(self) -> dict[str, object]:
        """Returns the lines, the texts, and the colours of lines: letters with lengths such as `o12_1`."""
        colours = _Numbers()
        colours_by_key: dict[tuple[str, str, str], str] = {}
        numbers = []
        for language, quotes, line in self._lines:
            # Most lines of a stage differ from others only in the numbers of values, whose colour is the same.
            key = language, quotes, _VALUE_NUMBER.sub(_zeros, line)
            if key not in colours_by_key:
                colours_by_key[key] = _colours(*key)
            numbers.append(colours[colours_by_key[key]])
        return {
            "lines": "\n".join(line.replace("\r", "\u240d") for _, _, line in self._lines),
            "lineColours": numbers,
            "colours": list(colours),
            "texts": self.texts,
        }


def _zeros(match: re.Match[str]) -> str:
    """Returns as many zeros as the match has characters."""
    return "0" * len(match[0])


def _colours(language: str, quotes: str, line: str) -> str:
    """Returns the colours of a line as letters with lengths. `quotes` belong to a string that is open at its start."""
    runs = python_spans(line, quotes) if language == "python" else spans(language, line)
    return "".join(f"{SYNTAX_LETTERS[name]}{_length(text)}" for name, text in runs)


def _length(text: str) -> int:
    """Returns the length of a text in JavaScript, which counts UTF-16 units."""
    return len(text) if text.isascii() else len(text.encode("utf-16-le", "surrogatepass")) // 2


class _GraphTexts:
    """Adds the texts of one graph: the stages and the Python code. `sets` are lists of indices of the graph's nodes.

    A node that was derived for a line, because a pass had dropped the location of its op, has the index `-1 - index`.
    """

    def __init__(self, texts: _Texts, send: Send, info: GraphInfo) -> None:
        self._texts, self._send = texts, send
        self._rows = {row.stable: number for number, row in enumerate(info.rows)}
        self._sets: dict[tuple[int, ...], int] = _Numbers({(): 0})
        self._added: dict[tuple[str, str], int] = {}

    @property
    def sets(self) -> list[list[int]]:
        """The sets of nodes, by their numbers."""
        return [list(key) for key in self._sets]

    async def add(self, text_hash: str, language: str) -> int:
        """Fetches a text and adds it. Returns its number; equal texts have the same one."""
        if (text_hash, language) not in self._added:
            lines: list[str] = []
            sets: list[int] = []
            while True:
                window = await self._send(FetchLines(0, text_hash, len(lines), _WINDOW_LINES))
                sets += self._line_sets(window)
                lines += window.lines
                if len(lines) >= window.line_count or not window.lines:
                    break
            self._added[text_hash, language] = self._texts.add(language, lines, sets)
        return self._added[text_hash, language]

    def _line_sets(self, window: Lines) -> list[int]:
        """Returns the number of the set of nodes of each line."""
        if not window.nodes:
            # A text without provenance: its lines come from the empty set, number 0.
            return [0] * len(window.lines)
        derived = frozenset(window.derived)
        indices = [self._index_of(name, number in derived) for number, name in enumerate(window.names)]
        set_numbers = {nodes: self._set_of(indices[number] for number in nodes) for nodes in set(window.nodes)}
        return [set_numbers[nodes] for nodes in window.nodes]

    def _index_of(self, name: str, is_derived: bool) -> int | None:
        """Returns the index that stands for a node in a set, `None` if the node is not one of the graph."""
        row = self._rows.get(name)
        return row if row is None or not is_derived else -1 - row

    def _set_of(self, indices: Iterable[int | None]) -> int:
        """Returns the number of the set of these nodes, which is added if necessary."""
        return self._sets[tuple(sorted(index for index in indices if index is not None))]


async def collect_contents(
    graphs: Sequence[SharedGraph], send: Send, welcome: Welcome | None, progress: OnProgress = lambda _text: None,
    is_shared: Callable[[str], bool] = lambda _path: True,
) -> Callable[[], dict[str, object]]:  # fmt: skip
    """Fetches the contents of a report on `graphs`. Returns a function that encodes them as plain values.

    The returned function computes the colours of all lines, which takes seconds for large programs, and needs no
    engine. `is_shared` says whether the report has the Python code with that path. Raises what `send` raises.
    """
    texts = _Texts()
    graph_values = [await _collect_graph(graph, texts, send, welcome, progress, is_shared) for graph in graphs]
    source, arguments = graphs[0].recipe.source, graphs[0].recipe.arguments

    def encode() -> dict[str, object]:
        return {
            "format": FORMAT,
            "written_by": own_version(),
            "source": shown_path(source),
            "arguments": list(arguments),
            "syntax": {letter: name for name, letter in SYNTAX_LETTERS.items()},
            "graphs": graph_values,
            **texts.encode(),
        }

    return encode


async def _collect_graph(
    graph: SharedGraph, texts: _Texts, send: Send, welcome: Welcome | None, progress: OnProgress,
    is_shared: Callable[[str], bool],
) -> dict[str, object]:  # fmt: skip
    """Fetches the texts of a graph, and returns its contents as plain values."""
    graph_texts = _GraphTexts(texts, send, graph.info)
    stages = []
    for number, stage in enumerate(graph.stages, 1):
        progress(f"reading stage {number}/{len(graph.stages)} {stage.name}")
        stages.append(_stage_values(stage, graph.recipe, await graph_texts.add(stage.text, stage.language)))
    progress("reading the Python code")
    shared = [path for path in PythonLines(graph.info.rows, graph.info.caller_locations).paths if is_shared(path)]
    paths, files = await _collect_python(graph, shared, graph_texts, send)
    return {
        "name": graph.info.name,
        "number": graph.recipe.graph,
        "stages": stages,
        "files": files,
        "nodes": _node_values(graph, paths),
        "sets": graph_texts.sets,
        "verdict": graph.report.word if graph.report is not None else "",
        "wrong": graph.problem is not None or (graph.report is not None and graph.report.wrong),
        "tables": result_tables(graph, welcome),
    }


async def _collect_python(
    graph: SharedGraph, shared: Sequence[str], texts: _GraphTexts, send: Send
) -> tuple[list[str], list[dict[str, object]]]:
    """Returns the paths and the contents of Python files that nodes come from, without those that cannot be opened."""
    paths, files = [], []
    for path in shared:
        try:
            opened = await send(OpenPython(0, graph.recipe.source, graph.recipe.arguments, graph.recipe.graph, path))
        except BuddyError as error:
            if getattr(error, "cancelled", False):
                raise
            continue
        paths.append(path)
        files.append({"path": shown_path(path), "text": await texts.add(opened.text, "python")})
    return paths, files


def _stage_values(stage: Stage, recipe: Recipe, text: int) -> dict[str, object]:
    """Returns a stage as plain values. `text` is the number of its text."""
    step = recipe.steps[stage.step] if 0 <= stage.step < len(recipe.steps) else None
    return {
        "name": stage.name,
        "spelling": step.spelling() if step is not None else stage.name,
        "phase": stage.phase,
        "language": stage.language,
        "text": text,
        "ops": stage.ops,
        "added": stage.added,
        "removed": stage.removed,
        "ms": round(stage.milliseconds, 2),
        "changed": stage.changed,
        "state": stage.state,
    }


def _node_values(graph: SharedGraph, paths: Sequence[str]) -> dict[str, list[object]]:
    """Returns the columns of the graph table. A node's `file` is the index of its Python file, -1 without one."""
    rows, by_node = graph.info.rows, {assignment.node: assignment for assignment in graph.assignments}
    assignments = [by_node.get(row.stable) for row in rows]
    locations = [row.location.rpartition(":") for row in rows]
    files = {path: number for number, path in enumerate(paths)}
    columns: dict[str, list[Any]] = {
        "name": [row.display_name for row in rows],
        "op": [row.target if row.opcode.startswith("call") else row.opcode for row in rows],
        "result": [f"{row.dtype}[{row.shape}]" if row.dtype or row.shape else "" for row in rows],
        "lowering": [assignment.lowering if assignment else "" for assignment in assignments],
        "function": [assignment.function if assignment else "" for assignment in assignments],
        "reason": [assignment.reason if assignment else "" for assignment in assignments],
        "file": [files.get(path, -1) for path, _, _ in locations],
        "line": [int(line) - 1 if line.isdecimal() else -1 for _, _, line in locations],
        "location": [shown_path(row.location) for row in rows],
    }
    if graph.profile is not None:
        times = {time.node: time for time in graph.profile.nodes}
        columns["ms"] = [_milliseconds_of(times.get(row.stable)) for row in rows]
    if graph.numerics is not None:
        numbers = graph.numerics.by_node()
        columns["error"] = [_error_of(numbers.get(row.stable)) for row in rows]
    return columns


def _milliseconds_of(time: NodeTime | None) -> float | None:
    """Returns the milliseconds of a node; `None` if it was not timed, or only as a part of another node."""
    return None if time is None or time.into else round(time.seconds * 1e3, 6)


def _error_of(numbers: NodeNumbers | None) -> float | None:
    """Returns the largest difference of a node from its reference, as a multiple of the tolerance.

    Returns `None` if it was not measured. Differing NaNs and infinities count as 1e9, because JSON has no infinity.
    """
    error = numbers.error if numbers is not None else None
    if error is None:
        return None
    multiple = numerics.tolerance_multiple(error)
    return float(f"{multiple:.3g}") if math.isfinite(multiple) else 1e9
